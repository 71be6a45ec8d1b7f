"""ScatterND to a box of its data, as exporters write `x[:, 1:, 2:5] = y`: slices and joins."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.ops import AxisAttrs, BinaryAttrs, OpAttrs, ScatterNDAttrs

GRID_BYTES = 1 << 20
"""Larger index grids are not materialised: they are not needed if they are a box."""

_VIEWS = ("Unsqueeze", "Reshape")
_INDICES = 1  # of ScatterND


@dataclass(frozen=True, slots=True)
class Box:
    """The target of an assignment.

    Attributes:
        begins: begins along the leading axes of the data.
        ends: the first places after it.
        sizes: sizes along all axes of the data.
        adds: the updates are added to the existing values.
    """

    begins: tuple[int, ...]
    ends: tuple[int, ...]
    sizes: tuple[int, ...]
    adds: bool


class AssignSlices(PatternPass[Box]):
    """ScatterND whose indices form a box: the surrounding data joined with the updates.

    The indices are a join, along their last axis, of ranges that are expanded to the sizes of the
    box, one for each axis; or a constant of that kind. They take 8 bytes for every axis and place,
    and are not even made where they take more than `GRID_BYTES`.
    """

    name = "assign_slices"
    roots = frozenset({"ScatterND"})

    def match(self, op: Op[ScatterNDAttrs], index: GraphIndex) -> Box | NoMatch:
        if op.attrs.reduction not in ("none", "add"):
            return NoMatch("neither assigned nor added")
        sizes = index.static_shape(op.inputs[0])
        shape = index.static_shape(op.inputs[_INDICES])
        if sizes is None or shape is None or 0 in shape or 0 in sizes:
            return NoMatch("sizes are not known, or nothing is assigned")
        if shape[-1] != len(shape) - 1:
            return NoMatch("the indices do not have one axis per number of an index")
        ranges = _ranges(op.inputs[_INDICES], shape[:-1], index)
        if ranges is None:
            return NoMatch("the indices do not cover a box")
        begins, ends = [], []
        for (begin, end), size in zip(ranges, sizes, strict=False):
            if begin < 0:
                begin, end = begin + size, end + size
            if begin < 0 or end > size:
                return NoMatch("an index is out of range")
            begins.append(begin)
            ends.append(end)
        return Box(tuple(begins), tuple(ends), sizes, op.attrs.reduction == "add")

    def rewrite(self, op: Op, match: Box, index: GraphIndex) -> None:
        ops: list[Op[Any]] = []
        data, _, updates = op.inputs
        dtype = index.dtype(data)
        assert dtype is not None

        def add(kind: str, inputs: list[str], attrs: OpAttrs, shape: tuple[int, ...]) -> str:
            name = index.unique_name(f"{op.name}_{kind.lower()}")
            index.add_info(name, dtype, shape)
            ops.append(Op(kind, name, inputs, [name], attrs, op.source))
            return name

        def sliced(begins: tuple[int, ...], ends: tuple[int, ...]) -> str:
            bounds = [
                index.add_constant(f"{op.name}_bounds", np.array(values, np.int64))
                for values in (begins, ends, range(len(begins)))
            ]
            shape = tuple(b - a for a, b in zip(begins, ends, strict=True))
            whole = shape + match.sizes[len(begins) :]
            return add("Slice", [data, *bounds], OpAttrs(), whole)

        begins, ends = match.begins, match.ends
        shape = tuple(b - a for a, b in zip(begins, ends, strict=True))
        inner = updates
        if match.adds:
            there = sliced(begins, ends)
            whole = shape + match.sizes[len(begins) :]
            inner = add("BinaryOp", [there, updates], BinaryAttrs("ADD"), whole)
        # From the last axis on: the parts before and after the box along it, inside the box along
        # the axes before it.
        for axis in reversed(range(len(begins))):
            size = match.sizes[axis]
            parts = []
            if begins[axis] > 0:
                parts.append(sliced((*begins[:axis], 0), (*ends[:axis], begins[axis])))
            parts.append(inner)
            if ends[axis] < size:
                parts.append(sliced((*begins[:axis], ends[axis]), (*ends[:axis], size)))
            if len(parts) > 1:
                whole = shape[:axis] + match.sizes[axis:]
                inner = add("Concat", parts, AxisAttrs(axis), whole)
        if not ops:
            ops.append(Op("Identity", op.name, [inner], list(op.outputs), OpAttrs(), op.source))
        else:
            ops[-1].name, ops[-1].outputs = op.name, list(op.outputs)
        index.replace(op, *ops)


def feeds_box(op: Op, index: GraphIndex) -> bool:
    """Return whether an Expand is a large part of an index grid that is likely a box."""
    if op.type != "Expand":
        return False
    part, sizes = index.constant(op.inputs[0]), index.ints(op.inputs[1])
    if part is None or sizes is None or part.dtype.kind != "i":
        return False
    wide = [axis for axis, size in enumerate(part.shape[::-1]) if size > 1]
    elements = np.prod(np.maximum(np.array(sizes, np.float64), 1.0))
    if elements * part.itemsize <= GRID_BYTES or len(wide) > 1 or _range(part) is None:
        return False
    return _reaches_indices(op.outputs[0], index)


def _reaches_indices(name: str, index: GraphIndex) -> bool:
    """Return whether a tensor is read, via views and a join, only as the indices of ScatterND."""
    readers = index.readers(name)
    return (
        bool(readers)
        and not index.is_output(name)
        and all(
            reader.inputs[_INDICES] == name and reader.inputs.count(name) == 1
            if reader.type == "ScatterND"
            else reader.type in (*_VIEWS, "Concat")
            and reader.inputs[0 if reader.type in _VIEWS else reader.inputs.index(name)] == name
            and _reaches_indices(reader.outputs[0], index)
            for reader in readers
        )
    )


def _ranges(indices: str, grid: tuple[int, ...], index: GraphIndex) -> list[tuple[int, int]] | None:
    """Return the range along each axis if the indices form a box."""
    whole = index.constant(indices)
    if whole is not None:
        parts: list[Array | None] = [whole[..., axis] for axis in range(len(grid))]
    else:
        join = index.producer_of_type(indices, "Concat")
        if join is None or join.attrs.axis not in (-1, len(grid)):
            return None
        if len(join.inputs) != len(grid):
            return None
        parts = [_part(name, grid, index) for name in join.inputs]
    found = []
    for axis, part in enumerate(parts):
        if part is None:
            return None
        along = part[tuple(slice(None) if i == axis else 0 for i in range(len(grid)))]
        spread = along.reshape([-1 if i == axis else 1 for i in range(len(grid))])
        bounds = _range(along)
        if bounds is None or not np.array_equal(part, np.broadcast_to(spread, grid)):
            return None
        found.append(bounds)
    return found


def _part(name: str, grid: tuple[int, ...], index: GraphIndex) -> Array | None:
    """Return the numbers along one axis of all indices, which are `grid` and a last axis of 1."""
    if index.static_shape(name) != (*grid, 1):
        return None
    value = index.constant(name)
    if value is not None:
        return value[..., 0]
    while (view := index.producer_of_type(name, *_VIEWS)) is not None:
        name = view.inputs[0]
    if index.static_shape(name) not in (grid, (*grid, 1)):
        return None
    expand = index.producer_of_type(name, "Expand")
    value = None if expand is None else index.constant(expand.inputs[0])
    if value is None:
        return None
    if index.static_shape(name) == grid:
        return np.broadcast_to(value, grid)
    return np.broadcast_to(value, (*grid, 1))[..., 0]


def _range(values: Array) -> tuple[int, int] | None:
    """Return the bounds of consecutive whole numbers, both below 0 or neither; None for others."""
    line = [int(value) for value in values.reshape(-1)]
    if not line or any(after != before + 1 for before, after in pairwise(line)):
        return None
    return None if line[0] < 0 <= line[-1] else (line[0], line[-1] + 1)
