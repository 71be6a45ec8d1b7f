"""Regions that move whole blocks of four channels, in addresses of channel-blocked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from vkmnn.base.records import dataclass
from vkmnn.geometry.regions import simplify
from vkmnn.ir import Region, View
from vkmnn.vulkan.copies.region_copy import MAX_AXES, is_contiguous
from vkmnn.vulkan.storage import ELEMENT_BYTES, VECTOR_BYTES

BLOCK = 4

_Axis = tuple[int, int, int]
"""Size, and the steps in the source and in the output."""


@dataclass(frozen=True, slots=True)
class _Side:
    """A tensor of `images` times `channels` times `pixels`, and the offset of a region in it."""

    images: int
    channels: int
    pixels: int
    offset: int

    def step(self, stride: int) -> int | None:
        """Return a step in blocks; None if blocks are split."""
        size = abs(stride)
        if size < self.pixels:
            return stride
        if size % self.pixels:
            return None
        if size >= self.channels * self.pixels:
            return None if size % (self.channels * self.pixels) else stride // self.channels
        return None if size // self.pixels % BLOCK else stride // BLOCK * self.images

    def begin(self, axes: Sequence[tuple[int, int]]) -> int | None:
        """Return the region's offset in blocks; None if its steps carry from pixels to channels.

        They may not carry from channels to images either.

        Args:
            axes: sizes and strides.
        """
        plane, pixel = divmod(self.offset, self.pixels)
        image, channel = divmod(plane, self.channels)
        if channel % BLOCK:
            return None
        image_step = self.channels * self.pixels
        of_pixels = [(n, s) for n, s in axes if abs(s) < self.pixels]
        of_channels = [(n, s // self.pixels) for n, s in axes if self.pixels <= abs(s) < image_step]
        for first, room, steps in (
            (pixel, self.pixels, of_pixels),
            (channel, self.channels, of_channels),
        ):
            low = first + sum((n - 1) * s for n, s in steps if s < 0)
            high = first + sum((n - 1) * s for n, s in steps if s > 0)
            if low < 0 or high >= room:
                return None
        return (channel // BLOCK * self.images + image) * self.pixels + pixel


def whole_blocks(region: Region, source: Sequence[int], output: Sequence[int]) -> Region | None:
    """Return a region in addresses of channel-blocked tensors, tail lanes with the last channel.

    Args:
        region: simplified, in plain addresses.
        source: shape of the source, of two axes or more.
        output: shape of the output, likewise.

    Returns:
        None if parts of blocks move, or channels change lanes.
    """
    sides = []
    for view, shape in ((region.src, source), (region.dst, output)):
        sides.append(_Side(shape[0], shape[1], prod(shape[2:]), view.offset))
    read, written = sides
    if 0 in region.size or not all(side.channels * side.pixels for side in sides):
        return None
    axes = _apart(region, read, written)
    lanes = (read.pixels, written.pixels)
    # Channels that are contiguous in both.
    several = all(side.channels > 1 for side in sides)
    along = [axis for axis in axes if several and axis[1:] == lanes]
    others = [axis for axis in axes if axis not in along]
    if len(along) > 1:
        return None
    count = along[0][0] if along else 1
    begins = [side.offset // side.pixels % side.channels for side in sides]
    if count % BLOCK:
        ends = [n + count for n in begins] == [side.channels for side in sides]
        if not ends or any(_moves_channels(axis, read, written) for axis in others):
            return None
    moved: list[_Axis] = [(-(-count // BLOCK), read.images * lanes[0], written.images * lanes[1])]
    for size, src, dst in others:
        steps = read.step(src), written.step(dst)
        if steps[0] is None or steps[1] is None:
            return None
        moved.append((size, steps[0], steps[1]))
    starts = (
        read.begin([(size, src) for size, src, _ in axes]),
        written.begin([(size, dst) for size, _, dst in axes]),
    )
    if starts[0] is None or starts[1] is None:
        return None
    made = simplify(
        Region(
            View(BLOCK * starts[0], (*(BLOCK * src for _, src, _ in moved), 1)),
            View(BLOCK * starts[1], (*(BLOCK * dst for _, _, dst in moved), 1)),
            (*(size for size, _, _ in moved), BLOCK),
            region.origin,
        )
    )
    return made if len(made.size) <= MAX_AXES else None


def keeps_its_place(region: Region, source: int, output: int, alignment: int | None) -> bool:
    """Return whether bytes can be aliased or written in place wherever floats can.

    Args:
        region: a region of `whole_blocks`.
        source: stored elements of the source.
        output: stored elements of the output.
        alignment: alignment of parts of a buffer, in bytes; None if parts cannot be bound.
    """
    if alignment is None or not is_contiguous(region):
        return True
    shift, (count,) = region.dst.offset - region.src.offset, region.size
    if shift * ELEMENT_BYTES % alignment:
        return True
    seen = count == output  # as a part of the source, else written as a part of the output
    ends = source == region.src.offset + count if seen else output == region.dst.offset + count
    return shift % alignment == 0 and (ends or count % VECTOR_BYTES == 0)


def _apart(region: Region, read: _Side, written: _Side) -> list[_Axis]:
    """Return the axes, split between pixels, channels and images."""
    work = list(zip(region.size, region.src.strides, region.dst.strides, strict=True))
    done: list[_Axis] = []
    bounds = [(side.pixels, side.channels * side.pixels) for side in (read, written)]
    while work:
        size, src, dst = work.pop()
        for step, limits in zip((src, dst), bounds, strict=True):
            inner = next((n for limit in limits if (n := _inside(size, step, limit))), None)
            if inner is not None:
                work.append((size // inner, src * inner, dst * inner))
                work.append((inner, src, dst))
                break
        else:
            done.append((size, src, dst))
    return done


def _inside(size: int, step: int, limit: int) -> int | None:
    """Return the number of steps below a limit, if an axis crosses it and can be split there."""
    step = abs(step)
    if not 0 < step < limit or limit % step or size * step <= limit:
        return None
    inner = gcd(limit // step, size)
    return inner if inner * step == limit else None


def _moves_channels(axis: _Axis, read: _Side, written: _Side) -> bool:
    _, src, dst = axis
    return any(
        side.pixels <= abs(step) < side.channels * side.pixels
        for side, step in ((read, src), (written, dst))
    )
