"""Geometry of operators that move elements: Transpose, Concat, Slice, Tile and their like."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.geometry.indexing import axis_copy, combine_axes
from vkmnn.geometry.regions import row_major
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import Region, View
from vkmnn.ir.ops import AxisAttrs, BlockAttrs, SplitAttrs, TransposeAttrs
from vkmnn.shape.common import normalize_axis
from vkmnn.shape.movement import transpose_perm
from vkmnn.shape.slicing import slice_ranges, split_sizes


def permuted(shape: tuple[int, ...], perm: tuple[int, ...]) -> Region:
    """Return the region that transposes a tensor of `shape`."""
    strides = row_major(shape)
    size = tuple(shape[axis] for axis in perm)
    return Region(View(0, tuple(strides[axis] for axis in perm)), View(0, row_major(size)), size)


@geometry("Transpose")
def _transpose(ctx: GeometryContext[TransposeAttrs]) -> None:
    source = ctx.input(0)
    perm = transpose_perm(len(source.dims), ctx.attrs.perm)
    ctx.raster(ctx.outputs[0], [source.name], [permuted(source.dims, perm)])


@geometry("Concat")
def _concat(ctx: GeometryContext[AxisAttrs]) -> None:
    output = ctx.outputs[0]
    axis = normalize_axis(ctx.attrs.axis, len(output.dims))
    strides = row_major(output.dims)
    regions, offset = [], 0
    for origin in range(len(ctx.inputs)):
        shape = ctx.input(origin).dims
        regions.append(
            Region(View(0, row_major(shape)), View(offset * strides[axis], strides), shape, origin)
        )
        offset += shape[axis]
    ctx.raster(output, ctx.op.inputs, regions)


@geometry("Split")
def _split(ctx: GeometryContext[SplitAttrs]) -> None:
    source = ctx.input(0)
    shape = source.dims
    attrs = ctx.attrs
    axis = normalize_axis(attrs.axis, len(shape))
    sizes = split_sizes(shape[axis], ctx.ints(1, "split"), attrs.num_outputs, len(ctx.op.outputs))
    strides = row_major(shape)
    offset = 0
    for output, size in zip(ctx.outputs, sizes, strict=True):
        part = (*shape[:axis], size, *shape[axis + 1 :])
        region = Region(View(offset * strides[axis], strides), View(0, row_major(part)), part)
        ctx.raster(output, [source.name], [region])
        offset += size


@geometry("Slice")
def _slice(ctx: GeometryContext) -> None:
    source, output = ctx.input(0), ctx.outputs[0]
    ranges = slice_ranges(
        source.dims,
        ctx.ints(1, "starts") or [],
        ctx.ints(2, "ends") or [],
        ctx.ints(3, "axes"),
        ctx.ints(4, "steps"),
    )
    axes = [[axis_copy(count, start, 0, step)] for start, step, count in ranges]
    regions = combine_axes(ctx, axes, row_major(source.dims), row_major(output.dims))
    ctx.raster(output, [source.name], regions)


@geometry("Expand")
def _expand(ctx: GeometryContext) -> None:
    source, output = ctx.input(0), ctx.outputs[0]
    size = output.dims
    shape = (1,) * (len(size) - len(source.dims)) + source.dims
    strides = tuple(
        0 if dim == 1 else stride for dim, stride in zip(shape, row_major(shape), strict=True)
    )
    ctx.raster(output, [source.name], [Region(View(0, strides), View(0, row_major(size)), size)])


@geometry("Tile")
def _tile(ctx: GeometryContext) -> None:
    source, output = ctx.input(0), ctx.outputs[0]
    axes = [
        [Region(View(0, (0, 1)), View(0, (dim, 1)), (repeats, dim))]
        for dim, repeats in zip(source.dims, ctx.ints(1, "repeats") or [], strict=True)
    ]
    regions = combine_axes(ctx, axes, row_major(source.dims), row_major(output.dims))
    ctx.raster(output, [source.name], regions)


@geometry("DepthToSpace")
def _depth_to_space(ctx: GeometryContext[BlockAttrs]) -> None:
    source, output = ctx.input(0), ctx.outputs[0]
    attrs = ctx.attrs
    region = depth_to_space(source.dims, attrs.block_size, attrs.mode == "DCR")
    ctx.raster(output, [source.name], [region])


def depth_to_space(shape: Sequence[int], block: int, depth_first: bool) -> Region:
    """Return the region of a DepthToSpace; `depth_first`: of mode DCR, else CRD."""
    n, c, h, w = shape
    depth = c // (block * block)
    # to [N, C', H, block row, W, block column]
    if depth_first:
        return permuted((n, block, block, depth, h, w), (0, 3, 4, 1, 5, 2))
    return permuted((n, depth, block, block, h, w), (0, 1, 4, 2, 5, 3))


@geometry("SpaceToDepth")
def _space_to_depth(ctx: GeometryContext[BlockAttrs]) -> None:
    source, output = ctx.input(0), ctx.outputs[0]
    n, c, h, w = source.dims
    attrs = ctx.attrs
    block = attrs.block_size
    blocks = (n, c, h // block, block, w // block, block)
    # to [N, block row, block column, C, H', W'], or with C before the blocks
    order = (0, 3, 5, 1, 2, 4) if attrs.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    region = permuted(blocks, order)
    ctx.raster(output, [source.name], [region])
