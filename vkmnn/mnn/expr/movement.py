"""MNN.expr's functions that move elements: shapes, axes, parts and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.types import NC4HW4, NCHW, NHWC, PadValue_Mode, data_format, dtype
from vkmnn.mnn.expr.values import axes_of, integer, normal_axis, result, results, to_var
from vkmnn.mnn.expr.var import Var

FUNCTIONS: dict[str, Callable[..., Any]] = {}


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def exported(function: FunctionT) -> FunctionT:
    """List a function under its name, without the underscore that spares Python's own."""
    FUNCTIONS[function.__name__.rstrip("_")] = function
    return function


def integers(value: Any, what: str) -> Var:
    """Return a Var of integers.

    Raises:
        ArgumentError: it holds others.
    """
    made = to_var(value)
    if made.size == 0:
        return to_var(made, dtype.int)
    if made.dtype not in (dtype.int, dtype.int64):
        raise ArgumentError(f"{what} consists of integers, not {made.dtype.name}")
    return made


@exported
def reshape(x: Any, shape: Any, original_format: data_format = NCHW) -> Var:
    """Return the elements in another shape; one size may be -1, which is computed.

    A Var of format NC4HW4 is read in the order of `original_format`.
    """
    x, sizes = to_var(x), axes_of(shape)
    last = x.data_format == NC4HW4 and original_format == NHWC

    def compute(a: Array) -> Any:
        return (np.moveaxis(a, 1, -1) if last and a.ndim > 2 else a).reshape(sizes)

    return result("Reshape", compute, x)


@exported
def transpose(x: Any, perm: Any) -> Var:
    """Return the Var with its axes in another order."""
    axes = axes_of(perm)
    return result("Permute", lambda a: a.transpose(axes), to_var(x))


@exported
def expand_dims(x: Any, axis: Any) -> Var:
    """Return the Var with another axis of size 1."""
    return unsqueeze(x, axis)


@exported
def unsqueeze(x: Any, axes: Any = ()) -> Var:
    """Return the Var with further axes of size 1, added one after the other."""
    places = axes_of(axes)

    def compute(a: Array) -> Any:
        for place in places:
            a = np.expand_dims(a, place)
        return a

    return result("Unsqueeze", compute, to_var(x))


@exported
def squeeze(x: Any, axes: Any = ()) -> Var:
    """Return the Var without axes of size 1: those given, or all."""
    places = tuple(axes_of(axes))

    def compute(a: Array) -> Any:
        kept = [one for one in places if a.shape[normal_axis(one, a.ndim)] == 1]
        return np.squeeze(a, tuple(kept) if places else None)

    return result("Squeeze", compute, to_var(x))


@exported
def broadcast_to(input: Any, shape: Any) -> Var:
    """Return copies of a Var that fill a shape."""
    sizes = axes_of(shape)
    return result("BroadcastTo", lambda a: np.broadcast_to(a, sizes).copy(), to_var(input))


@exported
def tile(x: Any, multiples: Any) -> Var:
    """Return copies of a Var side by side, a number along each axis."""
    x, counts = to_var(x), integers(multiples, "multiples")
    if counts.shape != [x.ndim]:
        raise ArgumentError(f"a Var of {x.ndim} axes needs as many multiples, not {counts.shape}")
    return result("Tile", lambda a, m: np.tile(a, m.tolist()), x, counts)


@exported
def concat(values: Any, axis: Any) -> Var:
    """Return Vars one after the other along an axis, in the widest of their types."""
    if not isinstance(values, list | tuple) or not values:
        raise ArgumentError("expr.concat takes a list of Vars")
    along = integer(axis, "axis")
    parts = [to_var(value) for value in values]
    return result("Concat", lambda *arrays: np.concatenate(arrays, along), *parts)


@exported
def stack(values: Any, axis: Any = 0) -> Var:
    """Return Vars of one shape and type along a new axis."""
    if not isinstance(values, list | tuple) or not values:
        raise ArgumentError("expr.stack takes a list of Vars")
    along = integer(axis, "axis")
    parts = [to_var(value) for value in values]
    if any((one.shape, one.dtype) != (parts[0].shape, parts[0].dtype) for one in parts):
        raise ArgumentError("expr.stack takes Vars of one shape and type")
    return result("Pack", lambda *arrays: np.stack(arrays, along), *parts)


@exported
def unstack(x: Any, axis: Any = 0) -> list[Var]:
    """Return the parts of a Var along an axis, without that axis."""
    x = to_var(x)
    along = normal_axis(integer(axis, "axis"), x.ndim)
    return results("Unpack", lambda a: tuple(np.moveaxis(a, along, 0)), x.shape[along], x)


@exported
def split(x: Any, size_splits: Any, axis: Any) -> list[Var]:
    """Return the parts of a Var along an axis: of the sizes given, or of equal size for a number.

    Raises:
        ArgumentError: the sizes exceed the axis.
    """
    x, sizes = to_var(x), axes_of(size_splits)
    along = normal_axis(integer(axis, "axis"), x.ndim)
    if len(sizes) == 1 and sizes[0] > 0 and x.shape[along] % sizes[0] == 0:
        sizes = [x.shape[along] // sizes[0]] * sizes[0]
    if sum(sizes) > x.shape[along] or min(sizes, default=0) < 0:
        raise ArgumentError(f"an axis of {x.shape[along]} has no parts of {sizes}")
    ends = np.cumsum(sizes).tolist()
    return results("Slice", lambda a: tuple(np.split(a, ends, along)[:-1]), len(sizes), x)


@exported
def slice_(x: Any, starts: Any, sizes: Any) -> Var:
    """Return a part of a Var: from its starts, of its sizes; -1 for what remains."""

    def compute(a: Array, first: Array, counts: Array) -> Any:
        if not len(first) == len(counts) == a.ndim:
            raise ArgumentError("starts and sizes have one number for each axis")
        pairs = zip(first.tolist(), counts.tolist(), strict=True)
        return a[tuple(slice(at, None if size < 0 else at + size) for at, size in pairs)]

    return result(
        "SliceTf", compute, to_var(x), integers(starts, "starts"), integers(sizes, "sizes")
    )


@exported
def strided_slice(
    x: Any,
    begin: Any,
    end: Any,
    strides: Any,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Var:
    """Return a part of a Var, as TensorFlow's strided_slice; masks have a bit for each part."""
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)

    def compute(a: Array, first: Array, last: Array, steps: Array) -> Any:
        triples = zip(first.tolist(), last.tolist(), steps.tolist(), strict=True)
        return a[tuple(_part(number, *parts, masks) for number, parts in enumerate(triples))]

    named = {"begin": begin, "end": end, "strides": strides}
    given = [integers(value, what) for what, value in named.items()]
    return result("StridedSlice", compute, to_var(x), *given)


def _part(number: int, first: int, last: int, step: int, masks: tuple[int, ...]) -> Any:
    begins, ends, dots, added, shrunk = (bool(mask >> number & 1) for mask in masks)
    if dots:
        return ...
    if added:
        return None
    if shrunk:
        return first
    return slice(None if begins else first, None if ends else last, step)


@exported
def crop(x: Any, size: Any, axis: int, offset: Sequence[int]) -> Var:
    """Return a part of an image as large as another: its height and width, or its width alone.

    Args:
        x: [N, C, H, W].
        size: a Var whose shape is the result's.
        axis: 2 for height and width, 3 for width alone.
        offset: where the part begins: a number for each axis, or one for all.
    """
    x, like = to_var(x), to_var(size)
    count = 4 - axis
    if axis not in (2, 3) or x.ndim != 4 or like.ndim != 4 or len(offset) not in (1, count):
        raise ArgumentError("expr.crop takes two Vars of 4 axes, axis 2 or 3, and its offsets")
    starts = [*(0 for _ in range(axis)), *(list(offset) * count)[:count]]
    sizes = [*x.shape[:axis], *like.shape[axis:]]
    return slice_(x, starts, sizes)


_PADS = {PadValue_Mode.REFLECT: "reflect", PadValue_Mode.SYMMETRIC: "symmetric"}


@exported
def pad(x: Any, paddings: Any, mode: PadValue_Mode = PadValue_Mode.CONSTANT) -> Var:
    """Return a Var with a border: zeros, or its elements reflected.

    Args:
        x: the Var.
        paddings: [axes, 2]: how many before and after, for each axis.
        mode: CONSTANT, REFLECT (the edge once) or SYMMETRIC (the edge twice).
    """
    x, widths = to_var(x), integers(paddings, "paddings")
    if widths.shape != [x.ndim, 2]:
        raise ArgumentError(f"paddings of a Var of {x.ndim} axes have shape [{x.ndim}, 2]")
    how: Any = _PADS.get(PadValue_Mode(mode), "constant")
    return result("Padding", lambda a, w: np.pad(a, w.tolist(), how), x, widths)


@exported
def reverse(x: Any, axis: Any) -> Var:
    """Return a Var with its elements in reverse order along axes."""
    axes = tuple(axes_of(axis))
    return result("Reverse", lambda a: np.flip(a, axes).copy(), to_var(x))


@exported
def reverse_sequence(x: Any, y: Any, batch_dim: int, seq_dim: int) -> Var:
    """Return a Var whose first elements along an axis are reversed: y[n] of them in sample n."""
    x, y = to_var(x), integers(y, "y")
    if not (0 <= batch_dim < x.ndim and 0 <= seq_dim < x.ndim and batch_dim != seq_dim):
        raise ArgumentError(f"a Var of {x.ndim} axes has no axes {batch_dim} and {seq_dim}")
    if y.shape != [x.shape[batch_dim]]:
        raise ArgumentError(f"y has one number for each of {x.shape[batch_dim]} samples")

    def compute(a: Array, counts: Array) -> Any:
        made = a.copy()
        rows = np.moveaxis(made, (batch_dim, seq_dim), (0, 1))
        for row, count in zip(rows, counts.tolist(), strict=True):
            row[:count] = row[:count][::-1].copy()
        return made

    return result("ReverseSequence", compute, x, y)


@exported
def channel_shuffle(x: Any, axis: Any) -> Var:
    """Return an image whose channels are interleaved from groups.

    Args:
        x: [N, C, H, W].
        axis: how many groups.
    """
    groups = integer(axis, "axis")
    x = to_var(x)
    channel = 1 if x.data_format != NHWC else x.ndim - 1

    def compute(a: Array) -> Any:
        parts = np.stack(np.split(a, groups, channel), channel + 1)
        return parts.reshape(a.shape)

    return result("ChannelShuffle", compute, x)


def _last(x: Var, function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function of images with their channels last, for a Var of any format."""
    if x.data_format == NHWC:
        return function
    return lambda a: np.moveaxis(function(np.moveaxis(a, 1, -1)), -1, 1)


@exported
def depth_to_space(x: Any, axis: Any) -> Var:
    """Return an image with blocks of pixels made from its channels; `axis` is a block's size."""
    x, block = to_var(x), integer(axis, "axis")

    def compute(a: Array) -> Any:
        n, h, w, c = a.shape
        parts = a.reshape(n, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
        return parts.reshape(n, h * block, w * block, c // block**2)

    return result("DepthToSpace", _last(x, compute), x)


@exported
def space_to_depth(x: Any, axis: Any) -> Var:
    """Return an image with channels made from its blocks of pixels; `axis` is a block's size."""
    x, block = to_var(x), integer(axis, "axis")

    def compute(a: Array) -> Any:
        n, h, w, c = a.shape
        parts = a.reshape(n, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
        return parts.reshape(n, h // block, w // block, block**2 * c)

    return result("SpaceToDepth", _last(x, compute), x)


@exported
def batch_to_space_nd(x: Any, block_shape: Any, crops: Any) -> Var:
    """Return images made of several: the inverse of `space_to_batch_nd`, cropped."""

    def compute(a: Array, blocks: Array, cuts: Array) -> Any:
        high, wide = blocks.tolist()
        n, c, h, w = a.shape
        parts = a.reshape(high, wide, n // (high * wide), c, h, w).transpose(2, 3, 4, 0, 5, 1)
        made = parts.reshape(n // (high * wide), c, h * high, w * wide)
        (top, bottom), (left, right) = cuts.tolist()
        return made[:, :, top : h * high - bottom, left : w * wide - right]

    return result(
        "BatchToSpaceND",
        compute,
        to_var(x),
        integers(block_shape, "block_shape"),
        integers(crops, "crops"),
    )


@exported
def space_to_batch_nd(x: Any, block_shape: Any, paddings: Any) -> Var:
    """Return several images for each, of the pixels at the same place in their blocks."""

    def compute(a: Array, blocks: Array, widths: Array) -> Any:
        high, wide = blocks.tolist()
        a = np.pad(a, [(0, 0), (0, 0), *widths.tolist()])
        n, c, h, w = a.shape
        parts = a.reshape(n, c, h // high, high, w // wide, wide).transpose(3, 5, 0, 1, 2, 4)
        return parts.reshape(high * wide * n, c, h // high, w // wide)

    return result(
        "SpaceToBatchND",
        compute,
        to_var(x),
        integers(block_shape, "block_shape"),
        integers(paddings, "paddings"),
    )


@exported
def matrix_band_part(x: Any, num_lower: Any, num_upper: Any) -> Var:
    """Return matrices with zeros but for diagonals near the main one; -1 keeps all on a side."""

    def compute(a: Array, lower: Array, upper: Array) -> Any:
        row, column = np.indices(a.shape[-2:])
        below = (lower < 0) | (row - column <= lower)
        above = (upper < 0) | (column - row <= upper)
        return np.where(below & above, a, a.dtype.type(0))

    given = (integers(num_lower, "num_lower"), integers(num_upper, "num_upper"))
    return result("MatrixBandPart", compute, to_var(x), *given)


@exported
def rank(x: Any) -> Var:
    """Return the number of axes."""
    return result("Rank", lambda a: np.asarray(a.ndim), to_var(x))


@exported
def size(x: Any) -> Var:
    """Return the number of elements."""
    return result("Size", lambda a: np.asarray(a.size), to_var(x))


@exported
def shape(x: Any) -> Var:
    """Return the sizes of the axes."""
    return result("Shape", lambda a: np.asarray(a.shape, np.int32), to_var(x))


@exported
def fill(shape: Any, value: Any) -> Var:
    """Return a Var of a shape, all of whose elements have one value."""
    filled = to_var(value)
    if filled.ndim:
        raise ArgumentError("expr.fill takes a single number as value")
    sizes = integers(shape, "shape")
    return result("Fill", lambda s, v: np.full(s.reshape(-1).tolist(), v), sizes, filled)


@exported
def range_(start: Any, limit: Any, delta: Any) -> Var:
    """Return the numbers from a start up to a limit, which is excluded."""
    parts = [to_var(one) for one in (start, limit, delta)]
    if len({one.dtype for one in parts}) > 1:
        raise ArgumentError("start, limit and delta are of one type", hint="all int or all float")

    def compute(first: Array, last: Array, step: Array) -> Any:
        numbers = [one.item() for one in (first, last, step)]
        if not numbers[2]:
            raise ArgumentError("the step of a range is not 0")
        count = max(int(np.ceil((numbers[1] - numbers[0]) / numbers[2])), 0)
        return (numbers[0] + np.arange(count) * numbers[2]).astype(first.dtype)

    return result("Range", compute, *parts)


@exported
def randomuniform(
    shape: Any,
    dtype: dtype = dtype.float,
    low: float = 0.0,
    high: float = 1.0,
    seed0: int = 0,
    seed1: int = 1,
) -> Var:
    """Return random numbers between two limits; two seeds of 0 differ from call to call."""
    sizes = axes_of(shape)
    if min(sizes, default=0) < 0:
        raise ArgumentError(f"{sizes} is not a shape")
    seed = (seed0, seed1) if seed0 else None
    values = np.random.default_rng(seed).uniform(low, high, prod(sizes)).reshape(sizes)
    return to_var(Var(values.astype(np.float32)), dtype)
