"""onnx.shape_inference, guarded against models that crash it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import inner_graphs

if TYPE_CHECKING:
    import onnx

_READ_TYPES = frozenset(
    {
        *("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"),
    }
)
"""Operators whose inference rules assume that the first input's type is known."""


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the shapes and types that onnx infers.

    Args:
        model: the model; negative sizes that it declares are removed from it.

    Raises:
        ValueError: a rule would read invalid memory.
        Exception: the rules find a mistake; native code may throw anything.
    """
    import onnx

    outer = model.graph
    _check_nodes(outer.node, _typed(outer))
    for function in model.functions:
        _check_nodes(function.node, set())
    for graph in chain([outer], _graphs(model)):
        for value in chain(graph.input, graph.output, graph.value_info):
            _forget_negative(value.type)
        _check_sizes(graph.initializer)
        if graph is not outer:
            _check_nodes(graph.node, set())
    return onnx.shape_inference.infer_shapes(model)


def _typed(graph: onnx.GraphProto) -> set[str]:
    """Return the values whose types the graph declares."""
    values = (*graph.input, *graph.value_info)
    typed = {value.name for value in values if value.type.WhichOneof("value")}
    return typed | {tensor.name for tensor in graph.initializer}


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the nodes of the model, at any depth."""
    pending = [model.graph.node, *(function.node for function in model.functions)]
    while pending:
        for graph in chain.from_iterable(map(inner_graphs, pending.pop())):
            yield graph
            pending.append(graph.node)


def _check_nodes(nodes: Iterable[onnx.NodeProto], typed: set[str]) -> None:
    for node in nodes:
        if node.op_type in _READ_TYPES and not typed.issuperset(node.input[:1]):
            raise ValueError(f"{node.op_type} needs the type of its input")
        for attribute in node.attribute:
            if attribute.name == "batch_dims" and attribute.i < 0:
                raise ValueError(f"{node.op_type} has {attribute.i} batch dimensions")
            _check_sizes((attribute.t,))


def _check_sizes(tensors: Iterable[onnx.TensorProto]) -> None:
    if any(size < 0 for tensor in tensors for size in tensor.dims):
        raise ValueError("a tensor has a negative size")


def _forget_negative(proto: onnx.TypeProto) -> None:
    """Remove negative sizes, which inference rules mistake for counts."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        for dim in getattr(proto, kind).shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    elif kind in ("sequence_type", "optional_type"):
        _forget_negative(getattr(proto, kind).elem_type)
    elif kind == "map_type":
        _forget_negative(proto.map_type.value_type)
