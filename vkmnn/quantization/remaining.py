"""Nodes of a quantised model that still compute in float, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from vkmnn.quantization.model import graphs_of
from vkmnn.quantization.report import FloatNode

if TYPE_CHECKING:
    import onnx

_DECODE = "DequantizeLinear"
_QUANTISING = {"QuantizeLinear", _DECODE}
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_FLOAT_TYPES = {1, 10, 11, 16}  # TensorProto.DataType
# Operators without arithmetic: they create shapes and constants, or move data.
_SILENT = {"Constant", "ConstantOfShape", "Shape", "Size", "Cast", "Identity", "Range"}


def split_nodes(
    proto: onnx.ModelProto, exclude: Mapping[str, str], known: Collection[str]
) -> tuple[list[str], list[FloatNode]]:
    """Return the nodes between quantised tensors, and those that compute in float.

    Args:
        proto: a model with QuantizeLinear and DequantizeLinear.
        exclude: the excluded nodes, and why.
        known: the operators that the tool can quantise.
    """
    makers = {name: node for node in proto.graph.node for name in node.output}
    kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.value_info}
    quantized, in_float = [], []
    for graph in graphs_of(proto.graph):
        for node in graph.node:
            if node.op_type in _QUANTISING | _SILENT:
                continue
            read = node.input[: 2 if node.op_type in _PRODUCTS else 1]
            fed = all(name in makers and makers[name].op_type == _DECODE for name in read)
            if read and fed and node.op_type in known and node.name not in exclude:
                quantized.append(node.name)
            elif any(kinds.get(name, 1) in _FLOAT_TYPES for name in node.output):
                inside = graph is not proto.graph
                reason = _reason(node, exclude, known, inside, makers)
                in_float.append(FloatNode(node.name, node.op_type, reason))
    return quantized, in_float


def _reason(
    node: onnx.NodeProto,
    exclude: Mapping[str, str],
    known: Collection[str],
    inside: bool,
    makers: dict[str, onnx.NodeProto],
) -> str:
    if node.name in exclude:
        return exclude[node.name]
    if inside:
        return "it is inside a branch or a loop, which onnxruntime's tools do not enter"
    if node.op_type not in known:
        return f"onnxruntime's tools have no quantised form of {node.op_type}"
    maker = makers.get(node.input[0]) if node.input else None
    if maker is not None and maker.op_type not in _QUANTISING:
        return f"its input comes in float from {maker.op_type}"
    return "onnxruntime's tools left it as it is"
