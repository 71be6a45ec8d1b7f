"""Parts of ONNX models in model files, checked before an evaluator sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import inner_graphs
from vkmnn.converter.onnx.host_nodes import HostCheck
from vkmnn.errors import ModelError, UnsupportedNode, UnsupportedOpError
from vkmnn.ir import Graph, HostGraphAttrs, Op

if TYPE_CHECKING:
    import onnx


def check_host_models(graph: Graph, host: HostCheck | None) -> None:
    """Check the parts of ONNX models in a graph.

    Args:
        graph: a valid graph.
        host: tells whether an evaluator can run such a part; None to refuse them.

    Raises:
        ModelError: one cannot be read, does not fit its op, or reads files.
        UnsupportedOpError: nothing runs them; all of them are named.
    """
    refused = []
    for op in graph.ops:
        if isinstance(op.attrs, HostGraphAttrs):
            model = _parsed(op, op.attrs)
            reason = "it runs on the host only" if host is None else host(model, ())
            if isinstance(reason, str):
                refused.append(
                    UnsupportedNode(op.attrs.kind, "vkmnn", 1, op.source or op.name, reason)
                )
    if refused:
        raise UnsupportedOpError(refused)


def _parsed(op: Op, attrs: HostGraphAttrs) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(attrs.model)
    except DecodeError as error:
        raise ModelError("its ONNX model is damaged", op=op.type, node=op.name) from error
    declared = {value.name for value in model.graph.input}
    made = {value.name for value in model.graph.output}
    fits = len(attrs.inputs) == len(op.inputs) and len(attrs.outputs) == len(op.outputs)
    named = set(attrs.inputs) <= declared | {""} and set(attrs.outputs) <= made | {""}
    if not fits or not named:
        raise ModelError("its ONNX model has other inputs or outputs", op=op.type, node=op.name)
    bodies = [node for function in model.functions for node in function.node]
    for tensor in (*_tensors(model.graph), *_node_tensors(bodies)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelError("its ONNX model reads files", op=op.type, node=op.name)
    return model


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
        for inner in inner_graphs(node):
            yield from _tensors(inner)
