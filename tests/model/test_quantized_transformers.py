"""Transformers that onnxruntime's tools quantised, all operators of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.quantized.byte_codes import keeps_rows_of_codes


class Encoder:
    """A transformer of layers that normalise first, with GELU and attention spelled out.

    `scaled`: a factor is applied to scores, not to queries. `hidden`: a constant mask is added to
    scores of keys after the query.
    """

    def __init__(
        self, tokens: int, width: int, heads: int, *, scaled: bool = True, hidden: float = 0.0
    ) -> None:
        self.tokens, self.width, self.heads, self.scaled = tokens, width, heads, scaled
        self.hidden = hidden
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._rng = np.random.default_rng(0)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def vector(self, size: int, around: float) -> str:
        return self.constant((around + 0.1 * self._rng.standard_normal(size)).astype(np.float32))

    def normalised(self, x: str) -> str:
        factors = self.vector(self.width, 1), self.vector(self.width, 0)
        return self.add("LayerNormalization", x, *factors, axis=-1)

    def linear(self, x: str, taken: int, made: int) -> str:
        w = self._rng.standard_normal((taken, made)) / np.sqrt(taken)
        product = self.add("MatMul", x, self.constant(w.astype(np.float32)))
        return self.add("Add", product, self.vector(made, 0))

    def attended(self, x: str) -> str:
        size = self.width // self.heads
        apart = self.constant(np.array([0, self.tokens, self.heads, size]))
        q, k, v = (
            self.add("Transpose", self.add("Reshape", x, apart), perm=perm)
            for x, perm in zip(
                (self.linear(x, self.width, self.width) for _ in range(3)),
                ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)),
                strict=True,
            )
        )
        factor = self.constant(np.float32(size**-0.5))
        if self.scaled:
            scores = self.add("Mul", self.add("MatMul", q, k), factor)
        else:
            scores = self.add("MatMul", self.add("Mul", q, factor), k)
        if self.hidden:
            mask = np.triu(np.full((self.tokens, self.tokens), self.hidden, np.float32), 1)
            scores = self.add("Add", scores, self.constant(mask[None, None]))
        made = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        together = self.constant(np.array([0, self.tokens, self.width]))
        made = self.add("Reshape", self.add("Transpose", made, perm=[0, 2, 1, 3]), together)
        return self.linear(made, self.width, self.width)

    def fed_forward(self, x: str) -> str:
        y = self.linear(x, self.width, 3 * self.width)
        error = self.add("Erf", self.add("Div", y, self.constant(np.float32(2**0.5))))
        gate = self.add("Add", error, self.constant(np.float32(1)))
        y = self.add("Mul", self.add("Mul", y, gate), self.constant(np.float32(0.5)))
        return self.linear(y, 3 * self.width, self.width)

    def model(self, layers: int) -> onnx.ModelProto:
        x = "x"
        for _ in range(layers):
            x = self.add("Add", x, self.attended(self.normalised(x)))
            x = self.add("Add", x, self.fed_forward(self.normalised(x)))
        y, shape = self.normalised(x), [2, self.tokens, self.width]
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, shape)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """A few random sequences."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._left: Iterator[Any] = iter([feeds(model, seed) for seed in range(4)])

    def get_next(self) -> Any:
        return next(self._left, None)


WAYS: dict[str, dict[str, Any]] = {
    "per channel": {"activation_type": QuantType.QUInt8, "per_channel": True},
    "per tensor": {"activation_type": QuantType.QInt8},
}


def quantised(model: onnx.ModelProto, way: str, folder: Path) -> onnx.ModelProto:
    made = folder / "quantised.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "float.onnx")
    options = {"quant_format": QuantFormat.QDQ, "weight_type": QuantType.QInt8, **WAYS[way]}
    quantize_static(folder / "float.onnx", made, Samples(model), **options)
    return onnx.load(made)


def ran(model: onnx.ModelProto, device: str) -> tuple[Any, Counter[str], int]:
    """Return the result, the ops by their type, and the dispatches, copies and fills of a run."""
    with InferenceSession(model, device) as session:
        (result,) = session.run(None, feeds(model, 9))
        before = session.counters().get("commands", 0)
        session.run(None, feeds(model, 9))
        types = Counter(op.type for op in session.placement())
        return result, types, session.counters().get("commands", 0) - before


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("tokens", "width", "heads"), [(8, 32, 2), (13, 30, 3)])
def test_chains_of_codes_are_parts_of_other_ops(
    tokens: int, width: int, heads: int, way: str, scaled: bool, tmp_path: Path
) -> None:
    model = Encoder(tokens, width, heads, scaled=scaled).model(1)
    made = quantised(model, way, tmp_path)
    got, types, commands = ran(made, "auto")
    on_host, _, _ = ran(made, "cpu")
    session = open_oracle(made, optimised=False)
    (want,) = session.run(None, feeds(made, 9))
    unit = np.diff(np.unique(want)).min()
    for other in (on_host, want):
        # Softmax and LayerNorm are sums of floats: now and then one is rounded the other way.
        assert np.abs(got - other).max() <= 2.01 * unit
        assert (got == other).mean() >= 0.97
    # Queries, keys and values; attention; its projection; two products; three normalisations.
    # Queries times a number are looked up, which is for a whole product: they stay apart.
    assert types["QuantizedMatMul"] == (4 if scaled else 5)
    assert types["LayerNorm"] == 3
    assert types["StridedAttention"] == 1
    # Codes of the input.
    assert types["Elementwise"] == 1
    _, _, commands_of_floats = ran(model, "auto")
    # Apart, queries also have rows of their own to be packed where their width is no multiple of 4.
    assert commands <= commands_of_floats + (1 if scaled else 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hidden", [-5.0, -1e4])
@pytest.mark.parametrize(("tokens", "width", "heads"), [(13, 30, 3), (40, 64, 2)])
def test_keys_after_the_query_are_hidden_by_attention_itself(
    tokens: int, width: int, heads: int, hidden: float, way: str, tmp_path: Path
) -> None:
    model = Encoder(tokens, width, heads, hidden=hidden).model(1)
    made = quantised(model, way, tmp_path)
    got, types, commands = ran(made, "auto")
    on_host, _, _ = ran(made, "cpu")
    whole = Encoder(tokens, width, heads).model(1)
    unit = np.diff(np.unique(on_host)).min()
    assert np.abs(got - on_host).max() <= 2.01 * unit
    assert (got == on_host).mean() >= 0.97
    assert types["StridedAttention"] == 1
    assert types["Softmax"] == 0
    # Codes of the input are all that floats have not; their mask takes no dispatch either.
    assert types["Elementwise"] == 1
    assert commands <= ran(whole, "auto")[2] + 1
    session = open_oracle(made, optimised=False)
    (want,) = session.run(None, feeds(made, 9))
    assert np.abs(got - want).max() <= 2.01 * unit
    assert (got == want).mean() >= 0.97


def activations(model: onnx.ModelProto) -> tuple[int, bool]:
    """Return the bytes between the ops of a run, and whether the device keeps quantised rows."""
    with InferenceSession(model, "auto") as session:
        session.run(None, feeds(model, 9))
        info = session.device
        keeps = isinstance(info, DeviceInfo) and keeps_rows_of_codes(info)
        return int(session._session.core.memory().activations), keeps


def test_rows_of_codes_take_a_byte_where_products_are_large(tmp_path: Path) -> None:
    model = Encoder(48, 256, 4).model(1)
    made = quantised(model, "per channel", tmp_path)
    got, _, commands = ran(made, "auto")
    on_host, _, _ = ran(made, "cpu")
    unit = np.diff(np.unique(on_host)).min()
    assert np.abs(got - on_host).max() <= 2.01 * unit
    assert (got == on_host).mean() >= 0.97
    assert commands <= ran(model, "auto")[2] + 1
    (in_codes, keeps), (in_floats, _) = activations(made), activations(model)
    assert in_codes <= (0.7 if keeps else 1.0) * in_floats


def test_layers_take_no_dispatch_more(tmp_path: Path) -> None:
    made, few = (
        quantised(Encoder(16, 64, 4).model(layers), "per channel", tmp_path) for layers in (3, 1)
    )
    floats, few_floats = (Encoder(16, 64, 4).model(layers) for layers in (3, 1))
    more = ran(made, "auto")[2] - ran(few, "auto")[2]
    assert more <= ran(floats, "auto")[2] - ran(few_floats, "auto")[2]


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8], ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("tokens", "width", "heads"), [(8, 32, 2), (13, 30, 3), (48, 64, 2)])
def test_ranges_of_a_run_take_a_dispatch_each(
    tokens: int, width: int, heads: int, per_channel: bool, weights: QuantType, tmp_path: Path
) -> None:
    source, made = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(Encoder(tokens, width, heads).model(1)), source)
    quantize_dynamic(source, made, weight_type=weights, per_channel=per_channel)
    model = onnx.load(made)
    got, types, commands = ran(model, "auto")
    on_host, _, _ = ran(model, "cpu")
    session = open_oracle(made, optimised=False)
    (want,) = session.run(None, feeds(model, 9))
    for other in (on_host, want):
        # Where a number lies half-way between two codes, any rounding error decides.
        assert np.abs(got - other).max() <= 0.02 * np.abs(other).max()
        assert np.abs(got - other).mean() <= 1e-3
    if per_channel and weights is QuantType.QUInt8:
        return  # Zero points by column lie too far apart for bytes.
    # Bytes with zero points of their own stay apart.
    together = weights is QuantType.QInt8
    assert types["DynamicQuantizeMatMul"] == (4 if together else 6)
    assert types["DynamicRange"] == 4
    assert types["LayerNorm"] == 3
    assert types["StridedAttention"] == 1
    assert not {"BinaryOp", "Elementwise", "MatMul", "QuantizedMatMul", "UnaryOp"} & set(types)
    if together:
        # A range and codes for each product; the range of the widest takes two dispatches.
        _, _, commands_of_floats = ran(onnx.load(source), "auto")
        assert commands <= commands_of_floats + 2 * 4 + 1
