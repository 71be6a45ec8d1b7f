"""Operators that keep some elements, in order; their sizes depend on data.

Each kept element is written to an index given by a running sum, in a tensor with room for all. The
host reads their number; the following stage is planned for that size.
"""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ConstantOfShapeAttrs,
    CumSumAttrs,
    OpAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    ScatterNDAttrs,
    ShapeAttrs,
    TopKAttrs,
    TransposeAttrs,
    UnaryAttrs,
)

_MAX_COLUMNS = 32
"""Maximum elements of a slice to be sorted: each takes a dispatch or two."""


def _binary(node: NodeContext, kind: str, a: str, b: str) -> str:
    return node.emit("BinaryOp", [a, b], BinaryAttrs(kind))


def _cast(node: NodeContext, name: str, to: DType) -> str:
    return name if node.dtype(name) is to else node.emit("Cast", [name], CastAttrs(to))


def _flat(node: NodeContext, name: str) -> str:
    return node.emit("Reshape", [name, node.ints_constant([-1])], ReshapeAttrs())


def _column(node: NodeContext, name: str) -> str:
    return node.emit("Unsqueeze", [name, node.ints_constant([1])], OpAttrs())


def _slice(node: NodeContext, name: str, start: str, end: str) -> str:
    return node.emit("Slice", [name, start, end, node.ints_constant([0])], OpAttrs())


def _size(node: NodeContext, name: str) -> str:
    """Return the length of a vector as a vector of one element."""
    return node.emit("Shape", [name], ShapeAttrs())


def _numbers(node: NodeContext, count: str) -> str:
    """Return 0, 1, … to count − 1; `count` is a vector of one element."""
    end = node.emit("Squeeze", [count, node.ints_constant([0])], OpAttrs())
    return node.emit("Range", [node.constant(np.int64(0)), end, node.constant(np.int64(1))])


def _spread(node: NodeContext, size: str, places: str, values: str) -> str:
    """Return a zero vector with values scattered to indices, each used at most once."""
    zero = ConstantOfShapeAttrs(0, DType.INT64)
    room = node.emit("ConstantOfShape", [size], zero)
    return node.emit("ScatterND", [room, _column(node, places), values], ScatterNDAttrs())


def kept_places(node: NodeContext, flags: str) -> str:
    """Return the indices of the true elements of a bool vector, in order, as int64."""
    counted = _cast(node, flags, DType.INT32)
    axis = node.constant(np.int64(0))
    ranks = node.emit("CumSum", [counted, axis], CumSumAttrs(exclusive=True))
    count = node.emit("Reduction", [counted], ReductionAttrs("SUM", keepdims=True))
    count = _cast(node, count, DType.INT64)
    size = _size(node, flags)
    # Dropped elements go past the last index.
    target = node.emit("Select", [flags, _cast(node, ranks, DType.INT64), size])
    room = _binary(node, "ADD", size, node.ints_constant([1]))
    places = _spread(node, room, target, _numbers(node, size))
    return _slice(node, places, node.ints_constant([0]), count)


@converter("NonZero", since=9)
def _non_zero(node: NodeContext) -> None:
    """Convert flat indices into coordinates."""
    x = node.input(0)
    rank = node.rank(x)
    if rank == 0:
        raise node.unsupported("a scalar has no axes to count")
    flags = _cast(node, _flat(node, x), DType.BOOL)
    places = kept_places(node, flags)
    rows = []
    for axis in range(rank - 1, 0, -1):
        extent = node.emit("Shape", [x], ShapeAttrs(axis, axis + 1))
        rows.append(_binary(node, "MOD", places, extent))
        places = _binary(node, "DIV", places, extent)
    rows.append(places)
    first = node.ints_constant([0])
    rows = [node.emit("Unsqueeze", [row, first], OpAttrs()) for row in rows[::-1]]
    node.finish("Concat", rows, AxisAttrs(0))


@converter("Compress", since=9)
def _compress(node: NodeContext) -> None:
    """Gather the elements that a condition keeps; it may be shorter than the axis."""
    x, condition = node.inputs
    axis = node.int("axis") if node.has("axis") else None
    if axis is None:
        x, axis = _flat(node, x), 0
    else:
        axis = node.axis("axis", 0, node.rank(x))
    # A condition beyond the axis is ignored.
    extent = node.emit("Shape", [x], ShapeAttrs(axis, axis + 1))
    places = kept_places(node, _slice(node, condition, node.ints_constant([0]), extent))
    node.finish("Gather", [x, places], AxisAttrs(axis))


@converter("Unique", since=11)
def _unique(node: NodeContext) -> None:
    """Sort, keep each element that differs from its predecessor, and number the groups."""
    x = node.input(0)
    axis = node.axis("axis", 0, node.rank(x)) if node.has("axis") else None
    rows = _rows(node, x, axis)
    size = node.emit("Shape", [rows], ShapeAttrs(0, 1))
    ordered, origins = _sorted_rows(node, rows, size)
    is_first = _differs(node, ordered, size)
    groups = node.emit(
        "CumSum", [_cast(node, is_first, DType.INT32), node.constant(np.int64(0))], CumSumAttrs()
    )
    groups = _binary(node, "SUB", _cast(node, groups, DType.INT64), node.ints_constant([1]))
    starts = kept_places(node, is_first)
    number = _size(node, starts)
    firsts = node.emit("Gather", [origins, starts], AxisAttrs(0))
    inverse = _spread(node, size, origins, groups)
    ends = _slice(node, starts, node.ints_constant([1]), node.ints_constant([2**31 - 1]))
    ends = node.emit("Concat", [ends, size], AxisAttrs(0))
    # Without elements there are no groups, but one end.
    ends = _slice(node, ends, node.ints_constant([0]), number)
    results = [firsts, inverse, _binary(node, "SUB", ends, starts)]
    if not node.bool("sorted", True):
        results = _as_they_come(node, results, number)
    source = _flat(node, x) if axis is None else x
    values = node.emit("Gather", [source, results[0]], AxisAttrs(axis or 0))
    for result, output in zip([values, *results], node.outputs, strict=False):
        if output:
            node.emit("Identity", [result], None, [output])


def _rows(node: NodeContext, x: str, axis: int | None) -> str:
    """Return the elements to compare: a vector, or a matrix with a row per slice."""
    if node.dtype(x) is DType.BOOL:
        x = _cast(node, x, DType.INT32)
    rank = node.rank(x)
    if axis is None or rank == 1:
        return _flat(node, x)
    shape = node.shape(x)
    sizes = [size for place, size in enumerate(shape) if place != axis]
    width = prod(size for size in sizes if isinstance(size, int))
    if not all(isinstance(size, int) for size in sizes) or not 0 < width <= _MAX_COLUMNS:
        raise node.unsupported(f"only slices of 1 to {_MAX_COLUMNS} elements")
    if axis:
        perm = (axis, *(place for place in range(rank) if place != axis))
        x = node.emit("Transpose", [x], TransposeAttrs(perm))
    return node.emit("Reshape", [x, node.ints_constant([-1, width])], ReshapeAttrs())


def _sorted_rows(node: NodeContext, rows: str, size: str) -> tuple[str, str]:
    """Return rows in ascending order, and their former positions: sorted by the last column first.

    Equal elements stay in order, so that earlier columns take precedence.
    """
    if node.rank(rows) == 1:
        return _sorted(node, rows, size)
    order = ""
    for column in range(_columns(node, rows) - 1, -1, -1):
        place = node.constant(np.int64(column))
        keys = node.emit("Gather", [rows, place], AxisAttrs(1))
        if order:
            keys = node.emit("Gather", [keys, order], AxisAttrs(0))
        _, moved = _sorted(node, keys, size)
        order = node.emit("Gather", [order, moved], AxisAttrs(0)) if order else moved
    return node.emit("Gather", [rows, order], AxisAttrs(0)), order


def _columns(node: NodeContext, rows: str) -> int:
    (_, width) = node.shape(rows)
    assert isinstance(width, int)  # `_rows` has created it
    return width


def _sorted(node: NodeContext, vector: str, count: str) -> tuple[str, str]:
    """Return a vector in rising order, and where its elements were; equal ones stay in order."""
    attrs = TopKAttrs(axis=0, largest=False)
    values, places = node.new("sorted"), node.new("order")
    node.emit("TopK", [vector, count], attrs, [values, places])
    return values, places


def _differs(node: NodeContext, ordered: str, size: str) -> str:
    """Return, for each element of a sorted vector or row, whether it differs from the last one."""
    zero, one = node.ints_constant([0]), node.ints_constant([1])
    later = _slice(node, ordered, one, node.ints_constant([2**31 - 1]))
    earlier = _slice(node, ordered, zero, node.ints_constant([-1]))
    same = _binary(node, "EQUAL", later, earlier)
    if node.dtype(ordered).is_float:
        nothing = [node.emit("UnaryOp", [v], UnaryAttrs("ISNAN")) for v in (later, earlier)]
        same = _binary(node, "OR", same, _binary(node, "AND", *nothing))
    differs = node.emit("UnaryOp", [same], UnaryAttrs("NOT"))
    if node.rank(ordered) > 1:  # one column that differs is enough
        flags = _cast(node, differs, DType.INT32)
        most = ReductionAttrs("MAX", keepdims=False)
        flags = node.emit("Reduction", [flags, node.ints_constant([1])], most)
        differs = _cast(node, flags, DType.BOOL)
    differs = node.emit("Concat", [node.constant(np.array([True])), differs], AxisAttrs(0))
    return _slice(node, differs, zero, size)


def _as_they_come(node: NodeContext, results: list[str], number: str) -> list[str]:
    """Bring groups into the order of their first elements."""
    firsts, inverse, counts = results
    _, order = _sorted(node, firsts, number)
    firsts, counts = (node.emit("Gather", [one, order], AxisAttrs(0)) for one in (firsts, counts))
    rank_of = _spread(node, number, order, _numbers(node, number))
    return [firsts, node.emit("Gather", [rank_of, inverse], AxisAttrs(0)), counts]
