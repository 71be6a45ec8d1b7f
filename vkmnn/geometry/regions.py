"""The algebra of regions: simplify, compose, merge, check. Pure functions over plain data.

Every region here describes the set of element copies `dst[d(i)] = src[s(i)]` for all index tuples
`i` inside `size`; the order of the axes and of the copies does not matter, because no two copies of
one region write the same element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd, prod

from vkmnn.base.records import dataclass
from vkmnn.errors import ModelError
from vkmnn.ir import Region, View

MAX_AXES = 6
"""Maximum rank of a region; larger ones are split."""

MAX_REGIONS = 64
"""Above this many regions composing gives up: one more copy costs less than many small ones."""

_STEPS_PER_REGION = 16


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of a region: its size, and the step in source and destination."""

    size: int
    dst: int
    src: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a composition's outer region; `src` counts from the start of the inner one."""

    axes: tuple[_Axis, ...]
    src: int
    dst: int

    def cut(self, index: int, begin: int, end: int) -> _Piece:
        """Return the part from `begin` to `end` along axis number `index`."""
        axis = self.axes[index]
        kept = () if end - begin == 1 else (replace(axis, size=end - begin),)
        return _Piece(
            self.axes[:index] + kept + self.axes[index + 1 :],
            self.src + begin * axis.src,
            self.dst + begin * axis.dst,
        )


@dataclass(frozen=True, slots=True)
class _Digit:
    """A digit of an inner region's destination address, as a mixed-radix number."""

    weight: int
    size: int
    src: int


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def copy_region(elements: int, origin: int = 0) -> Region:
    """Return the region that copies `elements` contiguous elements from start to start."""
    return Region(View(0, (1,)), View(0, (1,)), (elements,), origin)


def region_elements(region: Region) -> int:
    """Return how many elements a region copies."""
    return prod(region.size)


# Layers of a network repeat each other's regions.
@lru_cache(maxsize=4096)
def simplify(region: Region) -> Region:
    """Return the same copies in canonical form.

    Axes of size 1 are removed, axes that chain on both sides are merged, destination strides are
    positive and sorted, the most contiguous innermost. A region without elements becomes one empty
    axis.
    """
    if region_elements(region) == 0:
        return Region(View(0, (1,)), View(0, (1,)), (0,), region.origin)
    src_offset, dst_offset = region.src.offset, region.dst.offset
    axes: list[_Axis] = []
    for size, src, dst in zip(region.size, region.src.strides, region.dst.strides, strict=True):
        if size == 1:
            continue
        if dst < 0:
            src_offset += (size - 1) * src
            dst_offset += (size - 1) * dst
            src, dst = -src, -dst
        axes.append(_Axis(size, dst, src))
    axes.sort(key=lambda axis: -axis.dst)
    merged: list[_Axis] = []
    for axis in axes:
        if merged and _chains(merged[-1], axis):
            axis = _Axis(merged.pop().size * axis.size, axis.dst, axis.src)
        merged.append(axis)
    return _region(merged, src_offset, dst_offset, region.origin)


def _chains(outer: _Axis, inner: _Axis) -> bool:
    return outer.dst == inner.dst * inner.size and outer.src == inner.src * inner.size


def _region(axes: Sequence[_Axis], src: int, dst: int, origin: int) -> Region:
    return Region(
        View(src, tuple(axis.src for axis in axes)),
        View(dst, tuple(axis.dst for axis in axes)),
        tuple(axis.size for axis in axes),
        origin,
    )


def _axes(region: Region) -> tuple[_Axis, ...]:
    return tuple(
        map(_Axis, region.size, region.dst.strides, region.src.strides),
    )


def parts_of(region: Region) -> int:
    """Return an upper bound of the number of regions from `limit_axes`, without creating them."""
    return prod(sorted(region.size)[:-MAX_AXES])


def limit_axes(region: Region) -> list[Region]:
    """Return the simplified region as regions of at most MAX_AXES axes.

    The smallest axes are unrolled; an empty region gives an empty list.
    """
    region = simplify(region)
    if region_elements(region) == 0:
        return []
    if len(region.size) <= MAX_AXES:
        return [region]
    index = region.size.index(min(region.size))
    piece = _Piece(_axes(region), region.src.offset, region.dst.offset)
    slices = (piece.cut(index, at, at + 1) for at in range(region.size[index]))
    return [
        part
        for cut in slices
        for part in limit_axes(_region(cut.axes, cut.src, cut.dst, region.origin))
    ]


def is_identity(region: Region, elements: int) -> bool:
    """True when the region copies all `elements` in order, from element 0 to element 0."""
    plain = simplify(region)
    return plain == simplify(copy_region(elements, region.origin))


def covers(regions: Iterable[Region], elements: int) -> bool:
    """True when regions that do not overlap write every one of `elements` elements."""
    return sum(map(region_elements, regions)) == elements


def bounds(view: View, size: Sequence[int]) -> tuple[int, int]:
    """Return the lowest and the highest address of a view that is not empty."""
    reach = [stride * (count - 1) for stride, count in zip(view.strides, size, strict=True)]
    low = view.offset + sum(step for step in reach if step < 0)
    high = view.offset + sum(step for step in reach if step > 0)
    return low, high


def validate(region: Region, src_elements: int, dst_elements: int) -> None:
    """Check that a region is well formed and stays inside both tensors.

    Raises:
        ModelError: the numbers of axes differ or exceed MAX_AXES, a size is negative, an element
            would be written twice by an axis of stride 0, or an address is out of bounds.
    """
    axes = len(region.size)
    if not axes == len(region.src.strides) == len(region.dst.strides) or axes > MAX_AXES:
        raise ModelError(
            f"region has {axes} sizes, {len(region.src.strides)} source and "
            f"{len(region.dst.strides)} destination strides; they must be as many, "
            f"and no more than {MAX_AXES}"
        )
    if any(size < 0 for size in region.size):
        raise ModelError(f"region has a negative size: {region.size}")
    if region_elements(region) == 0:
        return
    if any(
        stride == 0 and size > 1
        for stride, size in zip(region.dst.strides, region.size, strict=True)
    ):
        raise ModelError(f"region writes an element twice: destination {region.dst}")
    for side, view, elements in (
        ("source", region.src, src_elements),
        ("destination", region.dst, dst_elements),
    ):
        low, high = bounds(view, region.size)
        if low < 0 or high >= elements:
            raise ModelError(
                f"region reaches {side} elements {low} to {high} of a tensor of {elements}"
            )


# --- composition -------------------------------------------------------------------------------


def compose(outer: Region, inner: Region, limit: int = MAX_REGIONS) -> list[Region] | None:
    """Compose two regions: read what `outer` reads directly from the source of `inner`.

    `inner` wrote the tensor. Elements that `outer` reads and `inner` did not write are left out, so
    that the results' element counts tell how much of `outer` is covered. The results have inner's
    origin.

    An address in inner's destination is a mixed-radix number whose digits are inner's indices.
    Where steps along the axes of `outer` move the digits without a carry, inner's indices are
    affine in outer's; so `outer` is cut and folded along its axes until nothing carries, then
    clipped to the digits' ranges.

    Returns:
        The regions (perhaps none), or None when they are more than `limit` or when inner's axes do
        not nest in the destination.
    """
    found = _composed(outer, inner, limit)
    return None if found is None else list(found)


@lru_cache(maxsize=4096)
def _composed(outer: Region, inner: Region, limit: int) -> tuple[Region, ...] | None:
    inner = simplify(inner)
    digits = _digits(inner)
    if digits is None:
        return None
    if not region_elements(outer) or not region_elements(inner):
        return ()
    read, written = bounds(outer.src, outer.size), bounds(inner.dst, inner.size)
    if read[0] > written[1] or read[1] < written[0]:
        return ()
    work = [_start(outer, inner.dst.offset)]
    found: list[Region] = []
    for _ in range(limit * _STEPS_PER_REGION):
        if not work:
            return tuple(found)
        result = _match(work.pop(), digits, inner)
        if isinstance(result, Region):
            found.extend(limit_axes(result))
        else:
            work.extend(result)
        if len(found) + len(work) > limit:
            return None
    return None


def _digits(inner: Region) -> list[_Digit] | None:
    """Return the digits, most significant first; the last has weight 1. None when they overlap."""
    digits = [_Digit(axis.dst, axis.size, axis.src) for axis in _axes(inner)]
    reach = 0
    for digit in reversed(digits):
        if digit.weight <= reach:
            return None
        reach += digit.weight * (digit.size - 1)
    if not digits or digits[-1].weight != 1:
        digits.append(_Digit(1, 1, 0))  # addresses between inner's elements are nobody's
    return digits


def _start(outer: Region, dst_offset: int) -> _Piece:
    src, dst = outer.src.offset - dst_offset, outer.dst.offset
    axes = []
    for axis in _axes(outer):
        if axis.size == 1:
            continue
        if axis.src < 0:
            src += (axis.size - 1) * axis.src
            dst += (axis.size - 1) * axis.dst
            axis = _Axis(axis.size, -axis.dst, -axis.src)
        axes.append(axis)
    return _Piece(tuple(axes), src, dst)


def _match(piece: _Piece, digits: Sequence[_Digit], inner: Region) -> Region | list[_Piece]:
    """Return the composed region, or the pieces to try instead (none: nothing was written)."""
    base = piece.src
    steps = [axis.src for axis in piece.axes]
    src_offset = inner.src.offset
    src_strides = [0] * len(steps)
    for digit in digits:
        weight = digit.weight
        below = [step % weight for step in steps]
        low, high = _span(base, below, piece.axes)
        if low // weight != high // weight:
            # an anti-diagonal moves one digit up and the next one down
            signed = [step - weight if 2 * step > weight else step for step in below]
            signed_low, signed_high = _span(base, signed, piece.axes)
            if signed_low // weight != signed_high // weight:
                return _avoid_carry(piece, below, weight, low, high)
            below, low = signed, signed_low
        value = low // weight
        moves = [(step - rest) // weight for step, rest in zip(steps, below, strict=True)]
        low, high = _span(value, moves, piece.axes)
        if low < 0 or high >= digit.size:
            return _clip(piece, moves, value, digit.size)
        src_offset += value * digit.src
        src_strides = [
            stride + move * digit.src for stride, move in zip(src_strides, moves, strict=True)
        ]
        base -= value * weight
        steps = below
    axes = [
        _Axis(axis.size, axis.dst, stride)
        for axis, stride in zip(piece.axes, src_strides, strict=True)
    ]
    return _region(axes, src_offset, piece.dst, inner.origin)


def _span(base: int, steps: Sequence[int], axes: Sequence[_Axis]) -> tuple[int, int]:
    return bounds(View(base, tuple(steps)), [axis.size for axis in axes])


def _avoid_carry(
    piece: _Piece, below: Sequence[int], weight: int, low: int, high: int
) -> list[_Piece]:
    """Fold the axis that moves the lower digits most into rows of one period, or cut it in two."""
    reach = [step * (axis.size - 1) for step, axis in zip(below, piece.axes, strict=True)]
    index = reach.index(max(reach))
    axis = piece.axes[index]
    period = weight // gcd(weight, below[index])
    if period < axis.size:
        whole = axis.size // period
        folded = (
            _Axis(whole, axis.dst * period, axis.src * period),
            _Axis(period, axis.dst, axis.src),
        )
        body = replace(piece, axes=piece.axes[:index] + folded + piece.axes[index + 1 :])
        if whole * period == axis.size:
            return [body]
        return [body, piece.cut(index, whole * period, axis.size)]
    room = (low // weight + 1) * weight - 1 - (high - reach[index])
    middle = min(max(room // below[index] + 1, 1), axis.size - 1)
    return [piece.cut(index, 0, middle), piece.cut(index, middle, axis.size)]


def _clip(piece: _Piece, moves: Sequence[int], value: int, size: int) -> list[_Piece]:
    """Clip the piece to where `value` + Σ index·step is within [0, size)."""
    reach = [abs(move) * (axis.size - 1) for move, axis in zip(moves, piece.axes, strict=True)]
    if not any(reach):
        return []
    index = reach.index(max(reach))
    move, count = moves[index], piece.axes[index].size
    others = [0 if at == index else step for at, step in enumerate(moves)]
    low, high = _span(value, others, piece.axes)
    begin, end = _solve(move, -high, size - 1 - low, count)
    if begin >= end:
        return []
    inside_begin, inside_end = _solve(move, -low, size - 1 - high, count)
    if inside_begin >= inside_end:
        # the other axes are clipped differently at every index: take them one by one
        inside_begin, inside_end = begin, begin + 1
    cuts = ((begin, inside_begin), (inside_begin, inside_end), (inside_end, end))
    return [piece.cut(index, *cut) for cut in cuts if cut[0] < cut[1]]


def _solve(move: int, low: int, high: int, count: int) -> tuple[int, int]:
    """Return the range of k in [0, count) with low <= move·k <= high."""
    if move < 0:
        low, high, move = -high, -low, -move
    return max(-(-low // move), 0), min(high // move + 1, count)


# --- merging -----------------------------------------------------------------------------------


def merge(regions: Iterable[Region]) -> list[Region]:
    """Return fewer regions with the same copies: neighbours of one origin that line up become one.

    Two regions line up when the second continues the first along an axis, or when both are equal
    but for their offsets (they become two steps of a new axis). Their order must not matter.
    """
    merged = [region for region in map(simplify, regions) if region_elements(region)]
    merged.sort(key=lambda region: (region.origin, region.dst.offset))
    while True:
        stack: list[Region] = []
        for region in merged:
            joined = _join(stack[-1], region) if stack else None
            if joined is None:
                stack.append(region)
            else:
                stack[-1] = joined
        if len(stack) == len(merged):
            return stack
        merged = stack


def _join(first: Region, second: Region) -> Region | None:
    if first.origin != second.origin:
        return None
    src = second.src.offset - first.src.offset
    dst = second.dst.offset - first.dst.offset
    for axes in _continuations(_axes(first), _axes(second), src, dst):
        region = simplify(_region(axes, first.src.offset, first.dst.offset, first.origin))
        if len(region.size) <= MAX_AXES and _digits(region) is not None:
            return region
    return None


def _continuations(
    first: tuple[_Axis, ...], second: tuple[_Axis, ...], src: int, dst: int
) -> Iterable[tuple[_Axis, ...]]:
    """Yield the axes of the joined region for each way in which `second` continues `first`."""
    if first == second:
        yield (*first, _Axis(2, dst, src))
    for index, axis in enumerate(first):
        if (dst, src) != (axis.dst * axis.size, axis.src * axis.size):
            continue
        rest = (*first[:index], *first[index + 1 :])
        if rest == second:
            added = 1
        elif index < len(second) and rest == (*second[:index], *second[index + 1 :]):
            other = second[index]
            if (other.dst, other.src) != (axis.dst, axis.src):
                continue
            added = other.size
        else:
            continue
        yield (*rest, replace(axis, size=axis.size + added))
    for index, axis in enumerate(second):
        if (dst, src) == (axis.dst, axis.src) and first == (*second[:index], *second[index + 1 :]):
            yield (*first, replace(axis, size=axis.size + 1))
