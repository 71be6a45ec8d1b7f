"""Col2Im: copies the elements of blocks to their positions in an image and adds overlaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from math import prod

from vkmnn.geometry.regions import row_major
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import Region, View
from vkmnn.ir.ops import BinaryAttrs, Col2ImAttrs
from vkmnn.shape.unfolding import Blocks, blocks_of

_MAX_LAYERS = 64
"""Maximum number of overlaps; more are added on the host."""


@geometry("Col2Im")
def _col2im(ctx: GeometryContext[Col2ImAttrs]) -> None:
    """Copy disjoint elements into one layer each, and add the layers."""
    x, output = ctx.input(0), ctx.outputs[0]
    blocks = blocks_of(ctx.attrs, x.dims, ctx.values)
    taps = prod(blocks.kernel)
    ctx.check_pieces(taps)
    layers: defaultdict[tuple[int, ...], list[Region]] = defaultdict(list)
    for number, place in enumerate(product(*map(range, blocks.kernel))):
        region = _copied(blocks, taps, number, place)
        if region is not None:
            layers[_layer(blocks, place)].append(region)
    if len(layers) > _MAX_LAYERS:
        return
    parts = list(layers.values()) or [[]]
    total = ""
    for count, regions in enumerate(parts, 1):
        last = count == len(parts)
        part = output if last and not total else ctx.temp(output.dtype, output.dims)
        ctx.raster(part, [x.name], regions)
        if total:
            added = output if last else ctx.temp(output.dtype, output.dims)
            ctx.emit("BinaryOp", [total, part.name], BinaryAttrs("ADD"), added)
            part = added
        total = part.name


def _layer(blocks: Blocks, place: Sequence[int]) -> tuple[int, ...]:
    """Number the elements of a block that may coincide in the image."""
    return tuple(
        sum((at - earlier) * dilation % stride == 0 for earlier in range(at))
        for at, dilation, stride in zip(place, blocks.dilations, blocks.strides, strict=True)
    )


def _copied(blocks: Blocks, taps: int, number: int, place: Sequence[int]) -> Region | None:
    """Return the copy of one element of all blocks, clipped to the image."""
    size, starts, firsts = [blocks.images], [], []
    for axis, at in enumerate(place):
        offset, stride = at * blocks.dilations[axis] - blocks.begins[axis], blocks.strides[axis]
        first = max(0, -(offset // stride))
        after = min(blocks.counts[axis], -((offset - blocks.image[axis]) // stride))
        if first >= after:
            return None
        size.append(after - first)
        firsts.append(first)
        starts.append(offset + first * stride)
    within, along = row_major(blocks.counts), row_major(blocks.image)
    count = prod(blocks.counts)
    source = number * count + sum(a * b for a, b in zip(firsts, within, strict=True))
    dest = sum(a * b for a, b in zip(starts, along, strict=True))
    steps = tuple(a * b for a, b in zip(blocks.strides, along, strict=True))
    return Region(
        View(source, (taps * count, *within)),
        View(dest, (prod(blocks.image), *steps)),
        tuple(size),
    )
