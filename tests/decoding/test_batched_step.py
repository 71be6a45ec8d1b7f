"""The joined step of several sequences equals the step of each, or is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from vkmnn.cpu_fallback import run_op
from vkmnn.decoding.batched_step import batched_step
from vkmnn.decoding.padded_graph import CannotRewriteError
from vkmnn.ir import Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AppendAttrs,
    AttentionAttrs,
    AxisAttrs,
    BinaryAttrs,
    ConvertTensorAttrs,
    CumSumAttrs,
    LayerNormAttrs,
    MatMulAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    RotaryAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TopKAttrs,
    TransposeAttrs,
    UnaryAttrs,
)

BATCH = 3
RNG = np.random.default_rng(5)


@dataclass
class Step:
    """A network of one sequence, with an input x of this shape."""

    shape: tuple[int, ...]
    ops: list[Op[Any]]
    constants: dict[str, Array] = field(default_factory=dict)
    more: dict[str, Array] = field(default_factory=dict)

    def graph(self) -> Graph:
        inputs = [TensorInfo("x", DType.FLOAT32, self.shape)]
        inputs += [
            TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
            for name, array in self.more.items()
        ]
        last = self.ops[-1].outputs[0]
        out = self._run({"x": np.ones(self.shape, np.float32), **self.more}, self.ops, {})[last]
        outputs = [TensorInfo(last, DType.from_numpy(out.dtype), out.shape)]
        return Graph("step", inputs, outputs, self.ops, dict(self.constants), {})

    def _run(
        self, feeds: dict[str, Array], ops: list[Op[Any]], constants: dict[str, Array]
    ) -> dict[str, Array]:
        values = {**self.constants, **constants, **feeds}
        for op in ops:
            arrays = run_op(op, [values[name] if name else None for name in op.inputs])
            values.update(zip(op.outputs, arrays, strict=False))
        return values

    def check(self) -> None:
        """Compare the joined step with that of each sequence."""
        made = batched_step(self.graph(), BATCH)
        last = self.ops[-1].outputs[0]
        texts = [RNG.standard_normal(self.shape).astype(np.float32) for _ in range(BATCH)]
        many = {n: np.repeat(a, BATCH, axis=0) for n, a in self.more.items()}
        feeds = {"x": np.concatenate(texts), **many}
        found = self._run(feeds, made.ops, made.constants)[last]
        assert made.outputs[0].shape == found.shape
        alone = [self._run({"x": text, **self.more}, self.ops, {})[last] for text in texts]
        np.testing.assert_allclose(found, np.concatenate(alone), rtol=1e-5, atol=1e-6)


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _op(kind: str, inputs: list[str], attrs: OpAttrs | None = None, outputs: int = 1) -> Op[Any]:
    names = ["y", "z", "w"][:outputs]
    return Op(kind, "op", inputs, names, attrs or OpAttrs())


W = RNG.standard_normal((4, 6)).astype(np.float32)
JOINED = {
    "unary": Step((1, 2, 4), [_op("UnaryOp", ["x"], UnaryAttrs("EXP"))]),
    "binary": Step((1, 2, 4), [_op("BinaryOp", ["x", "c"], BinaryAttrs("ADD"))], {"c": W[0, :4]}),
    "product": Step((1, 1, 4), [_op("MatMul", ["x", "c"], MatMulAttrs())], {"c": W}),
    "residual": Step((1, 4), [_op("MatMul", ["x", "c", "", "x"], MatMulAttrs())], {"c": W[:, :4]}),
    "norm": Step((1, 2, 4), [_op("LayerNorm", ["x", "c"], LayerNormAttrs(-1, 1e-5))],
                 {"c": W[0, :4]}),
    "softmax": Step((1, 2, 4), [_op("Softmax", ["x"], SoftmaxAttrs(-1))]),
    "sum": Step((1, 2, 4), [_op("Reduction", ["x", "a"], ReductionAttrs("SUM"))], {"a": _ints(1)}),
    "sums": Step((1, 4), [_op("CumSum", ["x", "a"], CumSumAttrs())], {"a": np.array(1)}),
    "sorted": Step((1, 4), [_op("TopK", ["x", "k"], TopKAttrs(), 2)], {"k": _ints(2)}),
    "reshaped": Step((1, 2, 4), [_op("Reshape", ["x", "s"], ReshapeAttrs())], {"s": _ints(1, -1)}),
    "expanded": Step((1, 1, 4), [_op("Expand", ["x", "s"])], {"s": _ints(1, 3, 4)}),
    "turned": Step((1, 2, 4), [_op("Transpose", ["x"], TransposeAttrs((0, 2, 1)))]),
    "cut": Step((1, 6), [_op("Split", ["x", "s"], SplitAttrs(1), 2)], {"s": _ints(2, 4)}),
    "sliced": Step((1, 6), [_op("Slice", ["x", "a", "b", "n"])],
                   {"a": _ints(1), "b": _ints(3), "n": _ints(1)}),
    "picked": Step((1, 3, 4), [_op("Gather", ["x", "i"], AxisAttrs(1))], {"i": _ints(2)}),
    "looked up": Step((1, 1), [_op("Gather", ["c", "i"], AxisAttrs(0))], {"c": W},
                      {"i": np.array([[2]])}),
    "side by side": Step((1, 4), [_op("Concat", ["x", "x"], AxisAttrs(-1))]),
    "unsqueezed": Step((1, 4), [_op("Unsqueeze", ["x", "a"])], {"a": _ints(1)}),
    "a matrix of each text": Step((1, 1, 4), [_op("MatMul", ["x", "c"], MatMulAttrs())],
                                  more={"c": W[None, :, :]}),
    "matrices of experts": Step((1, 1, 4), [_op("MatMul", ["x", "c"], MatMulAttrs())],
                                {"c": W[None]}),
    "flat softmax": Step((1, 2, 4), [_op("Softmax", ["x"], SoftmaxAttrs(-1, flatten=True))]),
    "products": Step((1, 4), [_op("CumProd", ["x", "a"], CumSumAttrs())], {"a": np.array(1)}),
}  # fmt: skip
REFUSED = {
    "no axis for texts": Step((4,), [_op("UnaryOp", ["x"], UnaryAttrs("EXP"))]),
    "an axis too few": Step((1, 2, 4), [_op("BinaryOp", ["x", "r"], BinaryAttrs("ADD"))],
                            more={"r": W[:1, :4]}),
    "a sum of texts": Step((1, 2), [_op("Reduction", ["x", "a"], ReductionAttrs("SUM"))],
                           {"a": _ints(0)}),
    "all summed": Step((1, 2), [_op("Reduction", ["x"], ReductionAttrs("MAX"))]),
    "softmax of texts": Step((1, 2), [_op("Softmax", ["x"], SoftmaxAttrs(0))]),
    "sums of texts": Step((1, 2), [_op("CumSum", ["x", "a"], CumSumAttrs())], {"a": np.array(0)}),
    "turned": Step((1, 1, 4), [_op("Transpose", ["x"], TransposeAttrs((1, 0, 2)))]),
    "one after the other": Step((1, 4), [_op("Concat", ["x", "c"], AxisAttrs(0)),
                                         _op("Slice", ["y", "n", "n1"])],
                                {"c": W[:1, :4], "n": _ints(0), "n1": _ints(1)}),
    "beside what all share": Step((1, 4), [_op("Concat", ["x", "c"], AxisAttrs(1))],
                                  {"c": W[:1, :4]}),
    "the first one": Step((1, 4), [_op("Gather", ["x", "i"], AxisAttrs(0))], {"i": _ints(0)}),
    "an axis before": Step((1, 4), [_op("Unsqueeze", ["x", "a"])], {"a": _ints(0)}),
    "a product over texts": Step((1, 4), [_op("MatMul", ["c", "x"], MatMulAttrs())],
                                 {"c": W[:3, :1]}),
    "softmax of all": Step((1, 2, 4), [_op("Softmax", ["x"], SoftmaxAttrs(0, flatten=True))]),
    "the only text": Step((1, 4), [_op("Slice", ["x", "a", "b", "n"])],
                          {"a": _ints(0), "b": _ints(1), "n": _ints(0)}),
    "what all share beside a text": Step((1, 4), [_op("MatMul", ["x", "c", "", "r"],
                                                      MatMulAttrs())], {"c": W, "r": W[:1]}),
    "tables of one text": Step((1, 1, 1, 4), [_op("Rotary", ["x", "c", "s"], RotaryAttrs(4))],
                               {"c": W[None, None, :1, :2]}, {"s": W[None, None, :1, 2:4]}),
    "an operand of fewer axes": Step((1, 4), [_op("Expand", ["x", "s"])], {"s": _ints(1, 3, 4)}),
    "an op of unknown axes": Step((1, 2), [_op("ConvertTensor", ["x"],
                                               ConvertTensorAttrs("NCHW", "NHWC"))]),
}  # fmt: skip


@pytest.mark.parametrize("step", JOINED.values(), ids=JOINED)
def test_texts_stay_apart(step: Step) -> None:
    step.check()


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_what_mixes_texts_is_refused(step: Step) -> None:
    with pytest.raises(CannotRewriteError):
        batched_step(step.graph(), BATCH)


@pytest.mark.parametrize("depth", [8, 6])
def test_attention_has_to_know_how_many_rows_each_text_has(depth: int) -> None:
    """Heads of six elements are not whole vec4s: they are not joined, as joined steps require."""
    rng = np.random.default_rng(1)
    cache = rng.standard_normal((1, 2, 9, depth)).astype(np.float32)
    append, total = AppendAttrs(2), "vkmnn:total"
    ops = [
        Op("Append", "a", ["k", "x", "n"], ["pk"], append),
        Op("Append", "b", ["v", "x", "n"], ["pv"], append),
        Op("BinaryOp", "c", ["n", "one"], [total], BinaryAttrs("ADD")),
        Op("Attention", "d", ["x", "pk", "pv", "", total], ["y"], AttentionAttrs(0.5)),
    ]
    step = Step((1, 2, 1, depth), ops, {"one": _ints(1)},
                {"k": cache, "v": cache[::-1].copy(), "n": _ints(4)})  # fmt: skip
    if depth == 6:
        with pytest.raises(CannotRewriteError, match="CachedAttention"):
            batched_step(step.graph(), BATCH)
    else:
        step.check()
