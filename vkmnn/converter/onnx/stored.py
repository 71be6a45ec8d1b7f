"""Size of a model's constants, by element type."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from vkmnn.converter.onnx.branches import inner_graphs
from vkmnn.converter.onnx.tensors import stored_bytes
from vkmnn.converter.onnx.types import DTYPES, type_name

if TYPE_CHECKING:
    import onnx

_UINT8 = 2  # TensorProto.DataType
_CODES = {"MatMulNBits": 1, "MatMulBnb4": 1, "GatherBlockQuantized": 0}
"""Operators that read packed values, and the input with these."""


class Stored(NamedTuple):
    """Number of elements and bytes of the constants of one element type."""

    elements: int
    nbytes: int


def stored_by_type(proto: onnx.ModelProto) -> dict[str, Stored]:
    """Return the size of a model's constants in its file, by element type, largest first.

    Weights packed into bytes count by their real type: those of a 4-bit MatMulNBits are "4-bit
    codes". Constants of branches and loop bodies count as well.

    Args:
        proto: the model; the data of its tensors need not be there.
    """
    graphs = list(_graphs(proto.graph))
    bits = dict(code for graph in graphs for code in _codes(graph))
    found: dict[str, Stored] = {}
    for graph in graphs:
        for key, tensor in _constants(graph):
            name, stored = _stored(tensor, bits.get(key))
            before = found.get(name, Stored(0, 0))
            found[name] = Stored(before.elements + stored.elements, before.nbytes + stored.nbytes)
    return dict(sorted(found.items(), key=lambda item: -item[1].nbytes))


def _stored(tensor: onnx.TensorProto, bits: int | None) -> tuple[str, Stored]:
    elements = prod(tensor.dims)
    dtype = DTYPES.get(tensor.data_type)
    if tensor.data_type == _UINT8 and bits:
        return f"{bits}-bit codes", Stored(elements * 8 // bits, elements)
    name = dtype.value if dtype else type_name(tensor.data_type).lower()
    return name, Stored(elements, stored_bytes(dtype, elements) if dtype else elements)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from _graphs(inner)


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse.values
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], attribute.t


def _codes(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the packed tensors, and the bits of a value."""
    for node in graph.node:
        at = _CODES.get(node.op_type)
        if at is not None and len(node.input) > at:
            bits = next((item.i for item in node.attribute if item.name == "bits"), 4)
            if bits in (2, 4, 8):
                yield node.input[at], bits
