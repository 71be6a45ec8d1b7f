"""Axes of ops that move data."""

from __future__ import annotations

from math import prod

from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import AppendAttrs, AxisAttrs, SplitAttrs, TransposeAttrs
from vkmnn.shape.axes.loops import Known, Loop, Numbering, Shape, axes_of, mixed, parallel
from vkmnn.shape.common import has_input, int_list, normalize_axes, normalize_axis
from vkmnn.shape.reduction import flatten_axis


@axes_of("Transpose")
def _transpose(op: Op[TransposeAttrs], known: Known) -> list[Loop]:
    shape = known.shape()
    perm = op.attrs.perm or tuple(reversed(range(len(shape))))
    if sorted(perm) != list(range(len(shape))):
        raise ShapeError(f"{perm} does not permute {len(shape)} axes")
    return [parallel(shape[own], [own], axis) for axis, own in enumerate(perm)]


def _product(shape: Shape) -> int:
    """Return the product of sizes; raises ShapeError if one is unknown."""
    sizes = [dim for dim in shape if isinstance(dim, int)]
    if len(sizes) != len(shape):
        raise ShapeError("sizes are not known")
    return prod(sizes)


@axes_of("Reshape", numbering={1: Numbering.SIZES})
def _reshape(op: Op, known: Known) -> list[Loop]:
    """Axes with the same size and the same product of sizes before them."""
    before, after = known.shape(), known.result()
    places = [(size, _product(after[:axis])) for axis, size in enumerate(after)]
    loops = []
    for axis, size in enumerate(before):
        place = size, _product(before[:axis])
        if place in places:
            loops.append(parallel(size, [axis], places.index(place)))
    return loops


@axes_of("Flatten")
def _flatten(op: Op[AxisAttrs], known: Known) -> list[Loop]:
    """Axes that are not joined with others."""
    shape = known.shape()
    split = flatten_axis(op.attrs.axis, len(shape))
    loops = []
    for axis, size in enumerate(shape):
        first, last = (0, split) if axis < split else (split, len(shape))
        if all(dim == 1 for n, dim in enumerate(shape) if n != axis and first <= n < last):
            loops.append(parallel(size, [axis], int(axis >= split)))
    return loops


@axes_of("Squeeze")
def _squeeze(op: Op, known: Known) -> list[Loop]:
    shape = known.shape()
    if has_input(known.inputs, 1):
        gone = normalize_axes(int_list(known.values, 1, "axes"), len(shape))
    elif all(isinstance(dim, int) for dim in shape):
        gone = [axis for axis, dim in enumerate(shape) if dim == 1]
    else:
        raise ShapeError("sizes are not known")
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    return [parallel(shape[own], [own], axis) for axis, own in enumerate(kept)]


@axes_of("Unsqueeze")
def _unsqueeze(op: Op, known: Known) -> list[Loop]:
    shape, axes = known.shape(), int_list(known.values, 1, "axes")
    rank = len(shape) + len(axes)
    new = normalize_axes(axes, rank)
    kept = [axis for axis in range(rank) if axis not in new]
    return [parallel(shape[own], [own], axis) for own, axis in enumerate(kept)]


@axes_of("Concat", numbering={"axis": Numbering.AXES})
def _concat(op: Op[AxisAttrs], known: Known) -> list[Loop]:
    shape, count = known.shape(), len(known.inputs)
    along = normalize_axis(op.attrs.axis, len(shape))
    return [
        (mixed if axis == along else parallel)(size, [axis] * count, axis)
        for axis, size in enumerate(shape)
    ]


@axes_of("Split", numbering={"axis": Numbering.AXES, 1: Numbering.KEPT})
def _split(op: Op[SplitAttrs], known: Known) -> list[Loop]:
    shape = known.shape()
    along = normalize_axis(op.attrs.axis, len(shape))
    return [
        (mixed if axis == along else parallel)(size, [axis], axis)
        for axis, size in enumerate(shape)
    ]


_SLICED: dict[str | int, Numbering] = {
    1: Numbering.PER_AXIS,
    2: Numbering.PER_AXIS,
    3: Numbering.AXES,
    4: Numbering.PER_AXIS,
}


@axes_of("Slice", numbering=_SLICED)
def _slice(op: Op, known: Known) -> list[Loop]:
    """Axes that are not split."""
    shape, result = known.shape(), known.result()
    starts = int_list(known.values, 1, "starts")
    axes, steps = (
        int_list(known.values, place, what) if has_input(known.inputs, place) else None
        for place, what in ((3, "axes"), (4, "steps"))
    )
    named = range(len(starts)) if axes is None else normalize_axes(axes, len(shape))
    whole = [True] * len(shape)
    for axis, start, step in zip(named, starts, steps or [1] * len(starts), strict=True):
        same = shape[axis] == result[axis] and shape[axis] is not None
        whole[axis] = same and start == 0 and step == 1
    return [
        (parallel if same else mixed)(size, [axis], axis)
        for axis, (size, same) in enumerate(zip(shape, whole, strict=True))
    ]


@axes_of("Pad", numbering={1: Numbering.PER_AXIS, 3: Numbering.AXES})
def _pad(op: Op, known: Known) -> list[Loop]:
    """Axes without pads."""
    shape, pads = known.shape(), int_list(known.values, 1, "pads")
    axes = int_list(known.values, 3, "axes") if has_input(known.inputs, 3) else range(len(shape))
    named = normalize_axes(axes, len(shape))
    if len(pads) != 2 * len(named):
        raise ShapeError(f"{len(pads)} pads of {len(named)} axes")
    half = len(named)
    padded = {axis for n, axis in enumerate(named) if pads[n] or pads[n + half]}
    return [
        (mixed if axis in padded else parallel)(size, [axis], axis)
        for axis, size in enumerate(shape)
    ]


@axes_of("Tile", numbering={1: Numbering.PER_AXIS})
def _tile(op: Op, known: Known) -> list[Loop]:
    """Axes that are not repeated."""
    shape, repeats = known.shape(), int_list(known.values, 1, "repeats")
    if len(repeats) != len(shape):
        raise ShapeError(f"{len(repeats)} repeats of {len(shape)} axes")
    return [
        (parallel if times == 1 else mixed)(size, [axis], axis)
        for axis, (size, times) in enumerate(zip(shape, repeats, strict=True))
    ]


@axes_of("DepthToSpace", "SpaceToDepth")
def _blocks(op: Op, known: Known) -> list[Loop]:
    """Images; channels, rows and columns become one another."""
    shape = known.shape()
    return [parallel(shape[0], [0], 0), *(mixed(shape[n], [n], n) for n in range(1, len(shape)))]


@axes_of("Trilu")
def _trilu(op: Op, known: Known) -> list[Loop]:
    """Matrices; the kept part of a row depends on its index."""
    shape = known.shape()
    last = len(shape) - 2
    return [
        (parallel if axis < last else mixed)(size, [axis], axis) for axis, size in enumerate(shape)
    ]


@axes_of("Append")
def _append(op: Op[AppendAttrs], known: Known) -> list[Loop]:
    shape = known.shape()
    along = normalize_axis(op.attrs.axis, len(shape))
    words = {along, len(shape) - 1} if op.attrs.packing else {along}
    return [
        (mixed if axis in words else parallel)(size, [axis, axis], axis)
        for axis, size in enumerate(shape)
    ]


@axes_of("UnpackRows")
def _unpack_rows(op: Op, known: Known) -> list[Loop]:
    """Rows; the words of a row belong together."""
    shape = known.shape()
    rows = [parallel(size, [axis], axis) for axis, size in enumerate(shape[:-1])]
    return [*rows, mixed(shape[-1], [len(shape) - 1], len(shape) - 1)]


@axes_of("JoinPast")
def _join_past(op: Op, known: Known) -> list[Loop]:
    """Sequences, heads and columns; new rows follow those of each sequence."""
    shape = known.shape()
    return [
        parallel(shape[0], [0, 0, 0], 0),
        parallel(shape[1], [1, 1], 1),
        mixed(shape[2], [2, 2], 2),
        parallel(shape[3], [3, 3], 3),
    ]
