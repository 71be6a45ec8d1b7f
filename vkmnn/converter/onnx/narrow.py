"""Operators on element types that numpy lacks: moved, computed in float32, or refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vkmnn.converter.onnx.branches import inner_graphs, is_if
from vkmnn.converter.onnx.names import Names
from vkmnn.converter.onnx.node import UnsupportedCaseError
from vkmnn.converter.onnx.schema import Schema
from vkmnn.converter.onnx.source import SourceNode
from vkmnn.ir import DType

_FLOAT, _BFLOAT16 = 1, 16  # TensorProto.DataType

MOVING = frozenset(
    {
        *(
            "BitCast",
            "Cast",
            "CastLike",
            "QuantizeLinear",
            "DequantizeLinear",
            "Identity",
            "Constant",
        ),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice"),
        *("Expand", "Tile", "Gather", "GatherElements", "GatherND", "DepthToSpace"),
        *("SpaceToDepth", "Where", "Shape", "Size", "Compress", "ReverseSequence"),
    }
)
"""Operators that convert elements, or leave them unchanged."""


def is_rounding(node: SourceNode, dtypes: Iterable[DType]) -> bool:
    """True for a node that computes in bfloat16, but could do so in float32.

    Raises:
        UnsupportedCaseError: it computes in an element type that kernels have no arithmetic for.
    """
    narrow = {dtype for dtype in dtypes if dtype.is_narrow}
    if not narrow or (not node.domain and node.op in MOVING) or is_if(node.proto):
        return False
    if narrow == {DType.BFLOAT16} and not any(inner_graphs(node.proto)):
        return True
    names = ", ".join(sorted(dtype.value for dtype in narrow))
    raise UnsupportedCaseError(f"{node.op} of {names}", op=node.op, node=node.name)


def rounded(
    node: SourceNode, schema: Schema, narrow: Iterable[str], tensors: Names, ops: Names
) -> list[SourceNode]:
    """Return a node of bfloat16 as one of float32, between casts.

    Args:
        node: the node.
        schema: the schema of its operator, which tells which outputs have the type of an input.
        narrow: its inputs of bfloat16.
        tensors: names of tensors that are in use.
        ops: names of nodes that are in use.
    """
    import onnx

    found = set(narrow)
    wide = {name: tensors.new(f"{name}/wide") for name in sorted(found)}
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.input[:] = [wide.get(name, name) for name in node.proto.input]
    formal = [_type_name(schema.inputs, index) for index in range(len(node.proto.input))]
    types = {kind for kind, name in zip(formal, node.proto.input, strict=True) if name in found}
    before = [_cast(node, name, wide[name], _FLOAT, ops) for name in wide]
    after = []
    for index, name in enumerate(node.proto.output):
        if name and _type_name(schema.outputs, index) in types:
            proto.output[index] = tensors.new(f"{name}/wide")
            after.append(_cast(node, proto.output[index], name, _BFLOAT16, ops))
    return [*before, replace(node, proto=proto), *after]


def _type_name(parameters: list[Schema], index: int) -> str:
    """Return the type variable of an input or output; the last one may repeat."""
    return str(parameters[min(index, len(parameters) - 1)].type_str)


def _cast(node: SourceNode, source: str, dest: str, to: int, ops: Names) -> SourceNode:
    from onnx import helper

    name = ops.new(f"{node.name}/Cast")
    proto = helper.make_node("Cast", [source], [dest], name=name, to=to)
    return replace(node, proto=proto, name=name, opsets={**node.opsets, "": 13})
