"""MNN.numpy's functions that move elements: shapes, axes, joining and splitting."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr import movement as moves
from vkmnn.mnn.expr.selection import select
from vkmnn.mnn.expr.selection import unravel_index as unravelled
from vkmnn.mnn.expr.selection import where as places
from vkmnn.mnn.expr.types import PadValue_Mode
from vkmnn.mnn.expr.values import axes_of, integer, normal_axis, result, to_var
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.numpy.creation import array, arrays


def shape(a: Any) -> tuple[int, ...]:
    """Return the sizes of the axes."""
    return tuple(to_var(a).shape)


def reshape(a: Any, *newshape: Any) -> Var:
    """Return the elements in another shape: a list, or several numbers."""
    sizes = newshape[0] if len(newshape) == 1 else newshape
    return moves.reshape(a, sizes)


def ravel(a: Any, order: str = "C") -> Var:
    """Return the elements along one axis."""
    return moves.reshape(a, [-1])


def transpose(a: Any, axes: Any = None) -> Var:
    """Return a Var with its axes in another order, reversed if none is given."""
    x = to_var(a)
    return moves.transpose(x, range(x.ndim - 1, -1, -1) if axes is None else axes)


def moveaxis(a: Any, source: Any, destination: Any) -> Var:
    """Return a Var with axes at other places."""
    x = to_var(a)
    ahead, behind = (
        [normal_axis(one, x.ndim) for one in axes_of(given)] for given in (source, destination)
    )
    if len(ahead) != len(behind):
        raise ArgumentError("moveaxis takes as many places as axes")
    return result("Permute", lambda array: np.moveaxis(array, ahead, behind), x)


def rollaxis(a: Any, axis: int, start: int = 0) -> Var:
    """Return a Var with an axis moved before another one."""
    return result("Permute", lambda array: np.rollaxis(array, axis, start), to_var(a))


def swapaxes(a: Any, axis1: int, axis2: int) -> Var:
    """Return a Var with two axes exchanged."""
    return result("Permute", lambda array: np.swapaxes(array, axis1, axis2), to_var(a))


def _atleast(count: int, arys: tuple[Any, ...]) -> Any:
    made = [array(one, copy=False, ndmin=count) for one in arys]
    return made[0] if len(made) == 1 else made


def atleast_1d(*arys: Any) -> Any:
    """Return Vars of at least one axis."""
    return _atleast(1, arys)


def atleast_2d(*arys: Any) -> Any:
    """Return Vars of at least two axes."""
    return _atleast(2, arys)


def atleast_3d(*arys: Any) -> Any:
    """Return Vars of at least three axes, added around those that are there."""
    made = [result("Reshape", lambda array: np.atleast_3d(array), to_var(one)) for one in arys]
    return made[0] if len(made) == 1 else made


def broadcast_to(array: Any, shape: Any) -> Var:
    """Return copies of a Var that fill a shape."""
    return moves.broadcast_to(array, shape)


def broadcast_arrays(*args: Any) -> Any:
    """Return copies of Vars that fill their common shape."""
    given = arrays(args)
    try:
        sizes = np.broadcast_shapes(*(tuple(one.shape) for one in given))
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    made = [moves.broadcast_to(one, sizes) for one in given]
    return made[0] if len(made) == 1 else made


def expand_dims(x: Any, axis: Any) -> Var:
    """Return a Var with further axes of size 1."""
    return moves.unsqueeze(x, axis)


def squeeze(a: Any, axis: Any = None) -> Var:
    """Return a Var without axes of size 1: those given, or all."""
    return moves.squeeze(a, () if axis is None else axis)


def concatenate(
    args: Any, axis: Any = 0, out: Any = None, dtype: Any = None, casting: str = "same_kind"
) -> Var:
    """Return Vars one after the other along an axis; flat if it is None."""
    parts = arrays(args)
    flat = axis is None
    return moves.concat([ravel(one) for one in parts] if flat else parts, 0 if flat else axis)


def stack(arrays: Any, axis: int = 0, out: Any = None) -> Var:
    """Return Vars of one shape along a new axis."""
    return moves.stack([to_var(one) for one in arrays], axis)


def vstack(tup: Any) -> Var:
    """Return Vars one below the other."""
    return concatenate([atleast_2d(one) for one in tup], 0)


def hstack(tup: Any) -> Var:
    """Return Vars side by side."""
    parts = [atleast_1d(one) for one in tup]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1)


def dstack(tup: Any) -> Var:
    """Return Vars along a third axis."""
    return concatenate([atleast_3d(one) for one in tup], 2)


def column_stack(tup: Any) -> Var:
    """Return Vars of one axis as the columns of a matrix."""
    parts = arrays(tup)
    columns = [transpose(atleast_2d(one)) if one.ndim < 2 else one for one in parts]
    return concatenate(columns, 1)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Var]:
    """Return the parts of a Var along an axis: equal ones, or those that end at indices.

    As in MNN, and unlike numpy, what follows the last index is left out; an index beyond the axis
    adds a Var of a single 0.

    Raises:
        ArgumentError: the axis cannot be divided into as many parts.
    """
    x, along = to_var(ary), integer(axis, "axis")
    size = x.shape[normal_axis(along, x.ndim)]
    if isinstance(indices_or_sections, list | tuple | Var):
        ends = axes_of(indices_or_sections)
        edges = [0, *(min(max(one, 0), size) for one in ends)]
        sizes = [max(b - a, 0) for a, b in pairwise(edges)]
        parts = _parts(x, sizes, along)
        return [*parts, to_var([0])] if max(ends, default=0) > size else parts
    count = integer(indices_or_sections, "sections")
    if count < 1 or size % count:
        raise ArgumentError(f"an axis of {size} is not divisible into {count} parts")
    return _parts(x, [size // count] * count, along)


def _parts(x: Var, sizes: list[int], axis: int) -> list[Var]:
    """Return parts of these sizes, also if there is only one."""
    if len(sizes) == 1:  # a single number means as many equal parts to expr.split
        return [moves.split(x, [*sizes, 0], axis)[0]]
    return moves.split(x, sizes, axis) if sizes else []


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Var]:
    """Return the parts of a Var along an axis, which need not be divisible."""
    if isinstance(indices_or_sections, list | tuple | Var):
        return split(ary, indices_or_sections, axis)
    x = to_var(ary)
    parts = np.array_split(x.read(), integer(indices_or_sections, "sections"), axis)
    return [Var(np.ascontiguousarray(one), x.data_format) for one in parts]


def dsplit(ary: Any, indices_or_sections: Any) -> list[Var]:
    """Return the parts of a Var along its third axis."""
    return _split_of(ary, indices_or_sections, 3, 2)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Var]:
    """Return the parts of a Var along its second axis, or its only one."""
    return _split_of(ary, indices_or_sections, 1, 1 if to_var(ary).ndim > 1 else 0)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Var]:
    """Return the parts of a Var along its first axis."""
    return _split_of(ary, indices_or_sections, 2, 0)


def _split_of(ary: Any, sections: Any, least: int, axis: int) -> list[Var]:
    x = to_var(ary)
    if x.ndim < least:
        raise ArgumentError(f"the Var has {x.ndim} axes, and needs {least}")
    return split(x, sections, axis)


def tile(A: Any, reps: Any) -> Var:
    """Return copies of a Var side by side."""
    counts = axes_of(reps)
    return result("Tile", lambda array: np.tile(array, counts), to_var(A))


def repeat(a: Any, repeats: Any, axis: Any = None) -> Var:
    """Return a Var with each element several times; flat, unless an axis is given."""
    count = integer(repeats, "repeats")
    return result("Tile", lambda array: np.repeat(array, count, axis), to_var(a))


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return elements of x or y by a condition; without them, the indices where it holds."""
    if x is None and y is None:
        return nonzero(condition)
    return select(condition, x, y)


def argwhere(a: Any) -> Var:
    """Return the indices of the elements that are not 0: [elements, axes]."""
    return places(a)


def nonzero(a: Any) -> tuple[Var, ...]:
    """Return the indices of the elements that are not 0, a Var for each axis."""
    found = places(a)
    return tuple(found[:, axis] for axis in range(to_var(a).ndim))


def flatnonzero(a: Any) -> Var:
    """Return the indices of the elements that are not 0, in the flat Var."""
    return nonzero(ravel(a))[0]


def unravel_index(indices: Any, shape: Any, order: str = "C") -> list[Var]:
    """Return the indices along each axis for indices of flat elements, a Var for each axis."""
    sizes = axes_of(shape)
    return [unravelled(indices, sizes)[axis] for axis in range(len(sizes))]


_PADS = {
    "constant": PadValue_Mode.CONSTANT,
    "reflect": PadValue_Mode.REFLECT,
    "symmetric": PadValue_Mode.SYMMETRIC,
}


def pad(array: Any, pad_width: Any, mode: str = "constant") -> Var:
    """Return a Var with a border of zeros, or of its elements reflected."""
    if mode not in _PADS:
        raise ArgumentError(f"pad has no mode {mode!r}", hint=f"use one of {', '.join(_PADS)}")
    x = to_var(array)
    try:
        widths = np.broadcast_to(to_var(pad_width).read(), (x.ndim, 2))
    except ValueError as error:
        raise ArgumentError(f"pad_width does not suit {x.ndim} axes") from error
    return moves.pad(x, widths, _PADS[mode])


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Replace the elements of a Var by those of another, broadcast, where a condition holds."""
    found = to_var(where).read() != 0
    dst[...] = select(found.astype(np.int32), to_var(src), dst)


def item(a: Var, idx: Any) -> Any:
    """Return an element, by its index in the flat Var or by its indices."""
    if isinstance(idx, tuple):
        return a[idx]
    return ravel(a)[integer(idx, "idx")]


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(argwhere, array_split, atleast_1d, atleast_2d, atleast_3d, broadcast_arrays),
        *(broadcast_to, column_stack, concatenate, copyto, dsplit, dstack, expand_dims),
        *(flatnonzero, hsplit, hstack, moveaxis, nonzero, pad, ravel, repeat, reshape, rollaxis),
        *(shape, split, squeeze, stack, swapaxes, tile, transpose, unravel_index, vsplit, vstack),
        where,
    )
}
FUNCTIONS["row_stack"] = vstack
