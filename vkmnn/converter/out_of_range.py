"""MNN's handling of indices out of range: gathers give zeros, scatters skip the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.errors import UnsupportedNode, UnsupportedOpError
from vkmnn.ir import DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    GatherNDAttrs,
    PadAttrs,
    ReductionAttrs,
    ShapeAttrs,
)


def skip_out_of_range(graph: Graph) -> Graph:
    """Return a graph in which no index is out of range.

    Negative indices count from the end, as in ONNX; those beyond it are out of range too. Indices
    into shapes are not changed.

    Raises:
        UnsupportedOpError: the rank of a tensor is not known.
    """
    made = replace(graph, ops=[], constants=dict(graph.constants), infos=dict(graph.infos))
    writer = _Writer(made, graph)
    shapes = {name for op in graph.ops if op.type == "Shape" for name in op.outputs}
    for op in graph.ops:
        rewrite = _REWRITTEN.get(op.type)
        if rewrite is None or op.inputs[0] in shapes:
            made.ops.append(op)
        else:
            writer.op = op
            rewrite(writer)
    return made


class _Writer:
    """Writes ops that replace `op`, with names derived from its own."""

    def __init__(self, made: Graph, graph: Graph) -> None:
        self.made = made
        self.graph = graph
        self.op: Op[Any] = graph.ops[0] if graph.ops else Op("", "", [], [], OpAttrs())
        self._infos: Mapping[str, TensorInfo] = {
            info.name: info for info in (*graph.infos.values(), *graph.inputs)
        }
        self._count = 0

    def rank(self, name: str) -> int:
        """Return how many axes a tensor has."""
        return len(self._sizes(name))

    def depth(self, name: str) -> int:
        """Return the last size of a tensor of index tuples."""
        size = self._sizes(name)[-1]
        return size if isinstance(size, int) else self._unknown(name)

    def _sizes(self, name: str) -> tuple[Any, ...]:
        if name in self.graph.constants:
            return self.graph.constants[name].shape
        info = self._infos.get(name)
        return self._unknown(name) if info is None or info.shape is None else info.shape

    def _unknown(self, name: str) -> Any:
        op, why = self.op, f"sizes of '{name}' are not known: indices cannot be left out"
        raise UnsupportedOpError([UnsupportedNode(op.type, "vkmnn", 1, op.source or op.name, why)])

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant; return its name."""
        name = self._new("constant")
        self.made.constants[name] = np.array(value, dtype)
        return name

    def emit(self, kind: str, inputs: list[str], attrs: OpAttrs | None = None) -> str:
        """Add an op with a new output; return its name."""
        name = self._new(kind)
        op = Op(kind, name, inputs, [name], attrs or OpAttrs(), self.op.source)
        self.made.ops.append(op)
        return name

    def finish(self, kind: str, inputs: list[str], attrs: OpAttrs | None = None) -> None:
        """Write the op that produces the output."""
        op = self.op
        self.made.ops.append(
            Op(kind, op.name, inputs, list(op.outputs), attrs or OpAttrs(), op.source)
        )

    def binary(self, kind: str, a: str, b: str) -> str:
        """Add an op of two operands."""
        return self.emit("BinaryOp", [a, b], BinaryAttrs(kind))

    def _new(self, what: str) -> str:
        self._count += 1
        return f"{self.op.name}/range/{what}{self._count}"

    def size(self, first: int, end: int) -> str:
        """Return sizes of the data, axes `first` to `end`."""
        return self.emit("Shape", [self.op.inputs[0]], ShapeAttrs(first, end))

    def index(self) -> str:
        """Return the indices as int64."""
        return self.emit("Cast", [self.op.inputs[1]], CastAttrs(DType.INT64))

    def inside(self, index: str, size: str) -> str:
        """Return which indices are in range."""
        least = self.binary("SUB", self.constant(0), size)
        not_low = self.binary("GREATER_EQUAL", index, least)
        return self.binary("AND", not_low, self.binary("LESS", index, size))

    def whole(self, inside: str) -> str:
        """Return which index tuples are in range: all of their numbers, along the last axis."""
        numbers = self.emit("Cast", [inside], CastAttrs(DType.INT32))
        least = self.emit("Reduction", [numbers, self.constant([-1])], ReductionAttrs("MIN"))
        return self.emit("Cast", [least], CastAttrs(DType.BOOL))

    def zero(self) -> str:
        """Return a zero of the data's type."""
        info = self._infos.get(self.op.inputs[0])
        array = self.graph.constants.get(self.op.inputs[0])
        dtype = array.dtype if array is not None else info.dtype.numpy if info else np.float32
        return self.constant(0, dtype)

    def widened(self, axis: int) -> str:
        """Return the data with one more element at the end of an axis."""
        pads = [0] * (2 * self.rank(self.op.inputs[0]))
        pads[len(pads) // 2 + axis] = 1
        return self.emit("Pad", [self.op.inputs[0], self.constant(pads), self.zero()], PadAttrs())

    def cut(self, data: str, axis: int, size: str) -> None:
        """Slice the output to a size of an axis."""
        self.finish("Slice", [data, self.constant([0]), size, self.constant([axis])])


def _gather(w: _Writer) -> None:
    data, index = w.op.inputs[0], w.index()
    rank = w.rank(data)
    axis = w.op.attrs.axis % rank
    inside = w.inside(index, _scalar(w, axis))
    safe = w.emit("Select", [inside, index, w.constant(0)])
    found = w.emit("Gather", [data, safe], w.op.attrs)
    after = rank - 1 - axis
    if after:
        inside = w.emit("Unsqueeze", [inside, w.constant([*range(-after, 0)])])
    w.finish("Select", [inside, found, w.zero()])


def _scalar(w: _Writer, axis: int) -> str:
    return w.emit("Squeeze", [w.size(axis, axis + 1)])


def _gather_elements(w: _Writer) -> None:
    data, index = w.op.inputs[0], w.index()
    axis = w.op.attrs.axis % w.rank(data)
    inside = w.inside(index, w.size(axis, axis + 1))
    safe = w.emit("Select", [inside, index, w.constant(0)])
    found = w.emit("GatherElements", [data, safe], w.op.attrs)
    w.finish("Select", [inside, found, w.zero()])


def _gather_nd(w: _Writer) -> None:
    attrs: GatherNDAttrs = w.op.attrs
    data, depth = w.op.inputs[0], w.depth(w.op.inputs[1])
    index, first = w.index(), attrs.batch_dims
    inside = w.whole(w.inside(index, w.size(first, first + depth)))
    safe = w.emit("Select", [inside, index, w.constant(0)])
    found = w.emit("GatherND", [data, safe], attrs)
    rest = w.rank(data) - first - depth
    if rest == 0:
        inside = w.emit("Squeeze", [inside, w.constant([-1])])
    elif rest > 1:
        inside = w.emit("Unsqueeze", [inside, w.constant([*range(1 - rest, 0)])])
    w.finish("Select", [inside, found, w.zero()])


def _scatter_elements(w: _Writer) -> None:
    axis = w.op.attrs.axis % w.rank(w.op.inputs[0])
    index, size = w.index(), w.size(axis, axis + 1)
    negative = w.binary("LESS", index, w.constant(0))  # counts from the end, which moves
    place = w.emit("Select", [negative, w.binary("ADD", index, size), index])
    place = w.emit("Select", [w.inside(index, size), place, size])
    made = w.emit("ScatterElements", [w.widened(axis), place, w.op.inputs[2]], w.op.attrs)
    w.cut(made, axis, size)


def _scatter_nd(w: _Writer) -> None:
    depth = w.depth(w.op.inputs[1])
    if depth == 0:
        w.made.ops.append(w.op)
        return
    index, sizes, size = w.index(), w.size(0, depth), w.size(0, 1)
    negative = w.binary("LESS", index, w.constant(0))
    place = w.emit("Select", [negative, w.binary("ADD", index, sizes), index])
    beyond = size
    if depth > 1:
        beyond = w.emit("Concat", [size, w.constant([0] * (depth - 1))], AxisAttrs(0))
    place = w.emit("Select", [w.whole(w.inside(index, sizes)), place, beyond])
    made = w.emit("ScatterND", [w.widened(0), place, w.op.inputs[2]], w.op.attrs)
    w.cut(made, 0, size)


_REWRITTEN: Mapping[str, Callable[[_Writer], None]] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
