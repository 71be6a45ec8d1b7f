"""Shapes of gathers, scatters and OneHot."""

from __future__ import annotations

from vkmnn.base.packed_rows import packed_words
from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, DType, Op
from vkmnn.ir.ops import (
    AppendAttrs,
    AxisAttrs,
    GatherNDAttrs,
    ScatterElementsAttrs,
    ScatterNDAttrs,
    UnpackRowsAttrs,
)
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    content_of,
    dtype_of,
    info_of,
    int_scalar,
    normalize_axis,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import like_first, shape_rule, value_rule

SCATTER_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _indices(inputs: Infos, index: int = 1) -> Shape:
    info = info_of(inputs, index)
    if not info.dtype.is_integer:
        raise ShapeError(f"indices must be integers, got {info.dtype.value}")
    return info.dims


def _check_reduction(reduction: str) -> None:
    if reduction not in SCATTER_REDUCTIONS:
        raise ShapeError(f"reduction '{reduction}' is not one of {', '.join(SCATTER_REDUCTIONS)}")


@shape_rule("Gather", exact=True)
def _gather(op: Op[AxisAttrs], facts: Facts) -> list[Found]:
    data, indices, dtype = facts.shape(op), facts.shape(op, 1), facts.dtype(op, 1)
    if dtype is not None and not dtype.is_integer:
        raise ShapeError(f"indices must be integers, got {dtype.value}")
    if data is None or indices is None:
        return [(facts.dtype(op), None)]
    axis = normalize_axis(op.attrs.axis, len(data))
    return [(facts.dtype(op), (*data[:axis], *indices, *data[axis + 1 :]))]


@value_rule("Gather")
def _gather_values(op: Op, facts: Facts) -> NamedShape | None:
    data, indices = facts.values(op, 0), facts.ints(op, 1)
    if data is None or indices is None or len(facts.shape(op) or ()) != 1:
        return None
    if not all(-len(data) <= place < len(data) for place in indices):
        return None
    return tuple(data[place] for place in indices)


def _check_elements(data: Shape, indices: Shape, axis: int) -> None:
    if len(data) != len(indices):
        raise ShapeError(f"data {data} and indices {indices} must have the same rank")
    axis = normalize_axis(axis, len(data))
    for i, (size, count) in enumerate(zip(data, indices, strict=True)):
        if i != axis and count > size:
            raise ShapeError(f"indices {indices} are longer than data {data} on axis {i}")


@size_computer("GatherElements")
def _gather_elements(op: Op[AxisAttrs], inputs: Infos, values: Values) -> Outputs:
    data, indices = shape_of(inputs, 0), _indices(inputs)
    _check_elements(data, indices, op.attrs.axis)
    return [(dtype_of(inputs, 0), indices)]


@shape_rule("GatherElements")
def _named_gather_elements(op: Op, facts: Facts) -> list[Found]:
    return [(facts.dtype(op), facts.shape(op, 1))]


@size_computer("GatherND")
def _gather_nd(op: Op[GatherNDAttrs], inputs: Infos, values: Values) -> Outputs:
    batch = op.attrs.batch_dims
    data, indices = shape_of(inputs, 0), _indices(inputs)
    if not indices or not data or not 0 <= batch < min(len(data), len(indices)):
        raise ShapeError(f"batch_dims {batch} does not fit data {data} and indices {indices}")
    if data[:batch] != indices[:batch]:
        raise ShapeError(f"the first {batch} axes of data {data} and indices {indices} differ")
    depth = indices[-1]
    if not 1 <= depth <= len(data) - batch:
        raise ShapeError(f"indices {indices} address {depth} axes of data {data}")
    return [(dtype_of(inputs, 0), indices[:-1] + data[batch + depth :])]


@shape_rule("GatherND")
def _named_gather_nd(op: Op[GatherNDAttrs], facts: Facts) -> list[Found]:
    batch = op.attrs.batch_dims
    data, indices = facts.shape(op), facts.shape(op, 1)
    if data is None or not indices or not isinstance(indices[-1], int):
        return [(facts.dtype(op), None)]
    return [(facts.dtype(op), indices[:-1] + data[batch + indices[-1] :])]


shape_rule("ScatterND", "ScatterElements")(like_first)


@size_computer("ScatterND")
def _scatter_nd(op: Op[ScatterNDAttrs], inputs: Infos, values: Values) -> Outputs:
    _check_reduction(op.attrs.reduction)
    data, indices, updates = shape_of(inputs, 0), _indices(inputs), shape_of(inputs, 2)
    if not indices or not data or not 1 <= indices[-1] <= len(data):
        raise ShapeError(f"indices {indices} do not address axes of data {data}")
    expected = indices[:-1] + data[indices[-1] :]
    if updates != expected:
        raise ShapeError(f"updates have shape {updates}, expected {expected}")
    return [(same_dtype(inputs, 0, 2), data)]


@size_computer("ScatterElements")
def _scatter_elements(op: Op[ScatterElementsAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    _check_reduction(attrs.reduction)
    data, indices, updates = shape_of(inputs, 0), _indices(inputs), shape_of(inputs, 2)
    _check_elements(data, indices, attrs.axis)
    if updates != indices:
        raise ShapeError(f"updates {updates} and indices {indices} must have the same shape")
    return [(same_dtype(inputs, 0, 2), data)]


@size_computer("OneHot")
def _one_hot(op: Op[AxisAttrs], inputs: Infos, values: Values) -> Outputs:
    indices, pair = shape_of(inputs, 0), shape_of(inputs, 2)
    if pair != (2,):
        raise ShapeError(f"values must hold [off, on], got shape {pair}")
    depth = content_of(values, 1)
    if depth.size != 1:
        raise ShapeError(f"depth must hold one number, got shape {depth.shape}")
    axis = normalize_axis(op.attrs.axis, len(indices) + 1)
    return [(dtype_of(inputs, 2), (*indices[:axis], int(depth.item()), *indices[axis:]))]


@shape_rule("OneHot")
def _named_one_hot(op: Op[AxisAttrs], facts: Facts) -> list[Found]:
    indices, depth = facts.shape(op), facts.values(op, 1)
    if indices is None:
        return [(facts.dtype(op, 2), None)]
    axis = normalize_axis(op.attrs.axis, len(indices) + 1)
    size = depth[0] if depth else None
    return [(facts.dtype(op, 2), (*indices[:axis], size, *indices[axis:]))]


@size_computer("Append")
def _append(op: Op[AppendAttrs], inputs: Infos, values: Values) -> Outputs:
    whole, rows, axis = shape_of(inputs, 0), shape_of(inputs, 1), op.attrs.axis
    if op.attrs.packing:
        check_packed(inputs, 0)
        if axis < len(rows) - 1:
            rows = (*rows[:-1], packed_words(op.attrs.packing, rows[-1]))
    else:
        same_dtype(inputs, 0, 1)
    if len(whole) != len(rows) or not 0 <= axis < len(whole):
        raise ShapeError(f"{rows} cannot be appended to {whole} along axis {axis}")
    if (*whole[:axis], *whole[axis + 1 :]) != (*rows[:axis], *rows[axis + 1 :]):
        raise ShapeError(f"{rows} and {whole} differ outside axis {axis}")
    return [(dtype_of(inputs, 0), whole)]


shape_rule("Append")(like_first)


@size_computer("UnpackRows")
def _unpack_rows(op: Op[UnpackRowsAttrs], inputs: Infos, values: Values) -> Outputs:
    words, attrs = shape_of(inputs, 0), op.attrs
    check_packed(inputs, 0)
    if not 0 <= attrs.axis < len(words) - 1:
        raise ShapeError(f"{words} has no rows of words along axis {attrs.axis}")
    if words[-1] != packed_words(attrs.packing, attrs.depth):
        raise ShapeError(f"rows of {words[-1]} words do not hold {attrs.depth} elements")
    return [(attrs.dtype, (*words[:-1], attrs.depth))]


@shape_rule("UnpackRows")
def _named_unpack_rows(op: Op[UnpackRowsAttrs], facts: Facts) -> list[Found]:
    words = facts.shape(op)
    return [(op.attrs.dtype, (*words[:-1], op.attrs.depth) if words else None)]


def check_packed(inputs: Infos, index: int) -> None:
    """Raise ShapeError unless an input can hold words of packed rows."""
    if dtype_of(inputs, index) is not DType.INT32:
        raise ShapeError(f"packed rows are int32, not {dtype_of(inputs, index).value}")


@size_computer("JoinPast")
def _join_past(op: Op, inputs: Infos, values: Values) -> Outputs:
    past, new, before = (shape_of(inputs, index) for index in range(3))
    total = int_scalar(values, 3, "the number of rows")
    dtype = same_dtype(inputs, 0, 1)
    if not len(past) == len(new) == 4 or (*past[:2], past[3]) != (*new[:2], new[3]):
        raise ShapeError(f"rows {new} cannot join the cache {past}")
    if before not in ((past[0],), (past[0], 1)):
        raise ShapeError(f"{before} are not the numbers of rows of {past[0]} sequences")
    if not new[2] <= total <= past[2] + new[2]:
        raise ShapeError(
            f"{new[2]} new rows and a cache of {past[2]} do not add up to the {total} rows "
            "of total_sequence_length",
            hint="it counts the old and new rows of the longest sequence",
        )
    rows = (max(past[2], total), total)
    return [(dtype, (*past[:2], count, past[3])) for count in rows]


@shape_rule("JoinPast")
def _named_join_past(op: Op, facts: Facts) -> list[Found]:
    past, new, given = facts.shape(op), facts.shape(op, 1), facts.values(op, 3)
    dtype, total = facts.dtype(op, 0, 1), given[0] if given else None
    known = past or new
    if known is None or len(known) != 4:
        return [(dtype, None)] * 2
    room = past[2] if past else None
    after = facts.algebra.add(room, new[2] if new else None)
    count: Dim = None
    if isinstance(room, int) and isinstance(total, int):
        count = max(room, total)
    elif total is not None and total in (room, after):
        count = total
    return [(dtype, (*known[:2], size, known[3])) for size in (count, total)]
