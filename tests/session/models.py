"""Small ONNX models for the tests of sessions."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    """Return a checked model of opset 17."""
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers or [])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(proto)
    return proto


def value(name: str, shape: list[object], dtype: int = FLOAT) -> onnx.ValueInfoProto:
    """Return a graph input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def tanh_chain(shape: list[object]) -> onnx.ModelProto:
    """Return y = -tanh(x)."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="tanh"),
        helper.make_node("Neg", ["t"], ["y"], name="neg"),
    ]
    return model(nodes, [value("x", shape)], [value("y", shape)])
