"""Decoders with caches, as exports of transformers write them; built by hand, for any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes and constants."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node; return its output."""
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        """Add a constant; return its name."""
        self.constants[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Add a matrix; return its name."""
        scale = 1 / np.sqrt(shape[0])
        return self.constant(name, self.rng.standard_normal(shape) * scale, np.float32)

    def linear(self, x: str, name: str, size: int, width: int) -> str:
        """Add a product with a matrix."""
        return self.node("MatMul", [x, self.weight(f"{name}.weight", size, width)], name)

    def norm(self, x: str, name: str, size: int) -> str:
        """Add a normalisation."""
        scale = self.constant(f"{name}.scale", np.ones(size), np.float32)
        return self.node("LayerNormalization", [x, scale], name, axis=-1)

    def heads(self, x: str, name: str) -> str:
        """Cut a projection in heads."""
        return self.node("Transpose", [self.node("Reshape", [x, "heads"], f"{name}.cut")], name,
                         perm=[0, 2, 1, 3])  # fmt: skip

    def attend(self, name: str, q: str, k: str, v: str, mask: str, fused: bool) -> str:
        """Add attention; if it must not be fused, with an op between scores and softmax."""
        turned = self.node("Transpose", [k], f"{name}.k_turned", perm=[0, 1, 3, 2])
        scores = self.node("Mul", [self.node("MatMul", [q, turned], f"{name}.qk"), "scale"],
                           f"{name}.scaled")  # fmt: skip
        if mask:
            scores = self.node("Add", [scores, mask], f"{name}.masked")
        if not fused:
            scores = self.node("Mul", [scores, "gain"], f"{name}.gained")
            scores = self.node("Max", [scores, "lowest"], f"{name}.bounded")
        weights = self.node("Softmax", [scores], f"{name}.weights", axis=-1)
        mixed = self.node("MatMul", [weights, v], f"{name}.mixed")
        turned = self.node("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
        return self.node("Reshape", [turned, "joined"], f"{name}.joined")


def _positions_and_mask(b: Builder) -> None:
    """Add positions and a mask that follow from shapes and the attention mask."""
    for name, number in (("zero", 0), ("one", 1), ("two", 2)):
        b.constant(name, number, np.int64)
    for name, axes in (("a0", [0]), ("a1", [1]), ("a01", [0, 1]), ("a12", [1, 2])):
        b.constant(name, axes, np.int64)
    b.constant("hidden", -3.4e38, np.float32)
    b.constant("shown", 0.0, np.float32)
    b.node("Shape", ["past.0.key"], "past_shape")
    b.node("Gather", ["past_shape", "two"], "past_length")
    b.node("Shape", ["input_ids"], "ids_shape")
    b.node("Gather", ["ids_shape", "one"], "length")
    b.node("Add", ["past_length", "length"], "total")
    b.node("Range", ["past_length", "total", "one"], "rows")
    b.node("Unsqueeze", ["rows", "a0"], "positions")
    b.node("Range", ["zero", "total", "one"], "columns")
    row, column = (b.node("Unsqueeze", [x, a], f"{x}_2") for x, a in
                   (("rows", "a1"), ("columns", "a0")))  # fmt: skip
    b.node("LessOrEqual", [column, row], "causal")
    b.node("Unsqueeze", ["causal", "a01"], "causal_4")
    b.node("Cast", ["attention_mask"], "kept", to=TensorProto.BOOL)
    b.node("Unsqueeze", ["kept", "a12"], "kept_4")
    b.node("And", ["causal_4", "kept_4"], "seen")
    b.node("Where", ["seen", "shown", "hidden"], "mask")


def decoder(
    layers: int = 2,
    width: int = 32,
    heads: int = 4,
    vocabulary: int = 61,
    seed: int = 0,
    fused: bool = True,
    positions: int = 600,
) -> bytes:
    """Return a decoder: input_ids, attention_mask, past.N.key|value -> logits, present.N.….

    Args:
        layers: number of layers.
        width: width of the residual stream.
        heads: attention heads.
        vocabulary: tokens.
        seed: seed of the weights.
        fused: whether a pass can fuse its attention into one op.
        positions: rows of the position table.
    """
    b, depth = Builder(seed), width // heads
    b.constant("heads", [0, 0, heads, depth], np.int64)
    b.constant("joined", [0, 0, width], np.int64)
    b.constant("scale", depth**-0.5, np.float32)
    b.constant("gain", 0.5, np.float32)
    b.constant("lowest", -3e38, np.float32)
    _positions_and_mask(b)
    tokens = b.node("Gather", [b.weight("tokens", vocabulary, width), "input_ids"], "embedded")
    placed = b.node("Gather", [b.weight("places", positions, width), "positions"], "placed")
    x = b.node("Add", [tokens, placed], "x")
    for layer in range(layers):
        name = f"layer.{layer}"
        y = b.norm(x, f"{name}.norm", width)
        q, k, v = (b.heads(b.linear(y, f"{name}.{part}", width, width), f"{name}.{part}.heads")
                   for part in "qkv")  # fmt: skip
        k = b.node("Concat", [f"past.{layer}.key", k], f"present.{layer}.key", axis=2)
        v = b.node("Concat", [f"past.{layer}.value", v], f"present.{layer}.value", axis=2)
        y = b.attend(name, q, k, v, "mask", fused)
        x = b.node("Add", [x, b.linear(y, f"{name}.out", width, width)], f"{name}.first")
        y = b.linear(b.norm(x, f"{name}.norm2", width), f"{name}.up", width, 4 * width)
        y = b.linear(b.node("Relu", [y], f"{name}.relu"), f"{name}.down", 4 * width, width)
        x = b.node("Add", [x, y], f"{name}.second")
    b.linear(b.norm(x, "norm", width), "logits", width, vocabulary)
    caches = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    info = helper.make_tensor_value_info
    inputs = [
        info("input_ids", TensorProto.INT64, ["b", "s"]),
        info("attention_mask", TensorProto.INT64, ["b", "t"]),
        *(info(f"past.{c}", TensorProto.FLOAT, ["b", heads, "p", depth]) for c in caches),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, ["b", "s", vocabulary]),
        *(info(f"present.{c}", TensorProto.FLOAT, ["b", heads, "t", depth]) for c in caches),
    ]
    return _model(b, inputs, outputs)


def grouped_attention(depth: int) -> bytes:
    """Return GroupQueryAttention of 4 heads that share 2, with caches and a mask of valid keys."""
    b = Builder(4)
    b.constant("one", 1, np.int64)
    b.constant("axis", [1], np.int64)
    for name in ("cos", "sin"):
        b.constant(name, b.rng.standard_normal((32, depth // 2)), np.float32)
    counted = b.node("ReduceSum", ["mask", "axis"], "counted", keepdims=0)
    b.node("Cast", [b.node("Sub", [counted, "one"], "last.wide")], "last", to=TensorProto.INT32)
    total = b.node("Gather", [b.node("Shape", ["mask"], "sizes"), "one"], "total.wide")
    b.node("Cast", [total], "total", to=TensorProto.INT32)
    names = [f"{{}}.0.{kind}" for kind in ("key", "value")]
    pasts, presents = ([name.format(when) for name in names] for when in ("past", "present"))
    inputs = ["x", "", "", *pasts, "last", "total", "cos", "sin"]
    b.nodes.append(
        helper.make_node("GroupQueryAttention", inputs, ["y", *presents], domain="com.microsoft",
                         num_heads=4, kv_num_heads=2, do_rotary=1)
    )  # fmt: skip
    value = helper.make_tensor_value_info
    floats = TensorProto.FLOAT
    return _model(
        b,
        [
            value("x", floats, ["batch", "new", 8 * depth]),
            value("mask", TensorProto.INT64, ["batch", "total"]),
            *(value(name, floats, ["batch", 2, "old", depth]) for name in pasts),
        ],
        [
            value("y", floats, ["batch", "new", 4 * depth]),
            *(value(name, floats, ["batch", 2, "total", depth]) for name in presents),
        ],
    )


def _model(b: Builder, inputs: list[Any], outputs: list[Any]) -> bytes:
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, list(b.constants.values()))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(proto)
    return proto.SerializeToString()
