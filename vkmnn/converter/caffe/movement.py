"""Layers that move elements: joins, parts, other shapes and orders, other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.caffe.nodes import CaffeLayer, Size, reads
from vkmnn.converter.nodes import INT64

_END = 2**31 - 1


@reads("Concat")
def concat(op: CaffeLayer) -> None:
    """Concat."""
    op.need(1)
    by = op.proto.concat_param
    axis = by.concat_dim if by.HasField("concat_dim") else by.axis
    op.finish("Concat", *op.inputs, axis=op.axis(axis, op.known_rank()))


@reads("Slice")
def slices(op: CaffeLayer) -> None:
    """Equal parts along an axis, or parts between stated points."""
    op.need(1)
    by, shape = op.proto.slice_param, op.sizes(op.inputs[0])
    axis = op.axis(by.slice_dim if by.HasField("slice_dim") else by.axis, len(shape))
    points, size, count = list(by.slice_point), shape[axis], len(op.outputs)
    if points:
        bounds = [0, *points, size if size is not None else _END]
        if len(points) != count - 1 or sorted(set(bounds)) != bounds:
            raise op.damaged(f"parts at {points} of {size or '?'} elements for {count} outputs")
    elif size is None:
        raise op.unreadable("equal parts of an axis of unknown size")
    elif size % count:
        raise op.damaged(f"{size} elements in {count} equal parts")
    else:
        bounds = [size // count * number for number in range(count + 1)]
    if size is not None:
        sizes = op.constant(np.diff(bounds))
        op.scope.emit("Split", [op.inputs[0], sizes], op.outputs, op.name, axis=axis)
        return
    for name, begin, end in zip(op.outputs, bounds, bounds[1:], strict=False):
        limits = [op.constant([one]) for one in (begin, end, axis)]
        op.scope.emit("Slice", [op.inputs[0], *limits], [name], op.name)


@reads("Flatten")
def flatten(op: CaffeLayer) -> None:
    """Reshape of several axes to one."""
    op.need(1)
    by, shape = op.proto.flatten_param, op.sizes(op.inputs[0])
    rank = len(shape)
    begin, end = op.axis(by.axis, rank), op.axis(by.end_axis, rank)
    if end < begin:
        raise op.damaged(f"axes {begin} to {end}")
    _reshape(op, [*[0] * begin, -1], shape[end + 1 :])


@reads("Reshape")
def reshape(op: CaffeLayer) -> None:
    """Reshape of some axes; 0 keeps a size, -1 infers one."""
    op.need(1)
    by, shape = op.proto.reshape_param, op.sizes(op.inputs[0])
    rank = len(shape)
    axis = op.axis(by.axis, rank, 1) if by.axis >= 0 else by.axis + rank + 1
    end = rank if by.num_axes == -1 else axis + by.num_axes
    dims = list(by.shape.dim)
    if not 0 <= axis <= end <= rank or dims.count(-1) > 1 or min(dims, default=0) < -1:
        raise op.damaged(f"the shape {dims} for axes {axis} to {end} of {rank}")
    for number, dim in enumerate(dims):
        if dim == 0 and axis + number >= rank:
            raise op.damaged(f"the shape {dims} keeps an axis that does not exist")
    if len(dims) == end - axis and -1 not in dims:  # the remaining axes keep their position
        _reshape(op, [*[0] * axis, *dims, *[0] * (rank - end)], [])
    else:
        _reshape(op, [*[0] * axis, *dims], shape[end:])


def _reshape(op: CaffeLayer, sizes: list[int], rest: tuple[Size, ...] | list[Size]) -> None:
    """Reshape to sizes, counted as in ONNX, and to those that follow."""
    found = list(sizes)
    for size in rest:
        if size is None and -1 in found:
            raise op.unreadable("a shape with two unknown sizes")
        found.append(-1 if size is None else size)
    op.finish("Reshape", op.inputs[0], op.constant(found))


@reads("Permute")
def permute(op: CaffeLayer) -> None:
    """Transpose; axes that the order leaves out follow."""
    op.need(1)
    order, rank = list(op.proto.permute_param.order), op.known_rank()
    if len(set(order)) != len(order) or max(order, default=0) >= rank:
        raise op.damaged(f"the order {order} of {rank} axes")
    rest = [axis for axis in range(rank) if axis not in order]
    op.finish("Transpose", op.inputs[0], perm=order + rest)


@reads("Tile")
def tile(op: CaffeLayer) -> None:
    """Tile along one axis."""
    op.need(1)
    by, rank = op.proto.tile_param, op.known_rank()
    repeats = [1] * rank
    repeats[op.axis(by.axis, rank)] = by.tiles
    if by.tiles < 1:
        raise op.damaged(f"{by.tiles} tiles")
    op.finish("Tile", op.inputs[0], op.constant(repeats))


@reads("Crop")
def crop(op: CaffeLayer) -> None:
    """Slice of all axes from one on to the sizes of the second input, at an offset."""
    op.need(2)
    by, shape = op.proto.crop_param, op.sizes(op.inputs[0])
    rank = len(shape)
    axes = list(range(op.axis(by.axis, rank), rank))
    offsets = list(by.offset) or [0]
    offsets = offsets * len(axes) if len(offsets) == 1 else offsets
    if len(offsets) != len(axes) or len(op.sizes(op.inputs[1])) != rank:
        raise op.damaged(f"offsets {offsets} for axes {axes}")
    sizes = op.sizes(op.inputs[1])[axes[0] :]
    for offset, size, whole in zip(offsets, sizes, shape[axes[0] :], strict=True):
        if size is not None and whole is not None and offset + size > whole:
            raise op.damaged(f"{size} elements from {offset} on of {whole}")
    starts = op.constant(offsets)
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        ends = op.constant(np.add(offsets, known))
    else:
        ends = op.make("Add", starts, op.make("Shape", op.inputs[1], start=axes[0], dtype=INT64))
    op.finish("Slice", op.inputs[0], starts, ends, op.constant(axes))


@reads("BatchReindex")
def batch_reindex(op: CaffeLayer) -> None:
    """Gather along the first axis."""
    op.need(2)
    op.finish("Gather", op.inputs[0], op.cast(op.inputs[1], INT64), axis=0)


@reads("ShuffleChannel")
def shuffle_channel(op: CaffeLayer) -> None:
    """Interleaving of the channels of groups."""
    op.need(1)
    group, shape = op.proto.shuffle_channel_param.group, op.sizes(op.inputs[0])
    if len(shape) != 4 or shape[1] is None or group < 1 or shape[1] % group:
        raise op.damaged(f"{group} groups of the channels of a tensor {list(shape)}")
    height, width = shape[2:]
    if height is None or width is None:
        # Height and width as one axis: Reshape infers one size only.
        apart = op.make("Reshape", op.inputs[0], op.constant([0, group, shape[1] // group, -1]))
        turned = op.make("Transpose", apart, perm=[0, 2, 1, 3])
        sizes = op.make("Shape", op.inputs[0], dtype=INT64)
        op.finish("Reshape", turned, sizes)
        return
    apart = op.make(
        "Reshape", op.inputs[0], op.constant([0, group, shape[1] // group, height, width])
    )
    turned = op.make("Transpose", apart, perm=[0, 2, 1, 3, 4])
    op.finish("Reshape", turned, op.constant([0, shape[1], height, width]))


@reads("Interp")
def interp(op: CaffeLayer) -> None:
    """Linear interpolation whose corners are those of the input."""
    op.need(1)
    by, x = op.proto.interp_param, op.inputs[0]
    sizes = list(op.picture(x))
    if by.pad_beg > 0 or by.pad_end > 0:
        raise op.damaged(f"pads {by.pad_beg} and {by.pad_end}; only a crop is allowed")
    if by.pad_beg or by.pad_end:
        sizes = [size + by.pad_beg + by.pad_end for size in sizes]
        ends = [by.pad_end or _END] * 2
        limits = [op.constant(one) for one in ([-by.pad_beg] * 2, ends, [2, 3])]
        x = op.make("Slice", x, *limits)
    if len(op.inputs) > 1:
        target = list(op.picture(op.inputs[1]))
    elif by.height and by.width:
        target = [by.height, by.width]
    else:
        if by.shrink_factor < 1 or by.zoom_factor < 1:
            raise op.damaged(f"factors {by.zoom_factor} and {by.shrink_factor}")
        shrunk = [(size - 1) // by.shrink_factor + 1 for size in sizes]
        target = [size + (size - 1) * (by.zoom_factor - 1) for size in shrunk]
    if min(*target, *sizes) < 1:
        raise op.damaged(f"sizes {sizes} to {target}")
    _resize(op, x, target, mode="linear", coordinate_transformation_mode="align_corners")


def _resize(op: CaffeLayer, x: str, target: list[int], **mode: Any) -> None:
    op.finish("Resize", x, "", "", op.constant(target), axes=[2, 3], **mode)


@reads("Upsample")
def upsample(op: CaffeLayer) -> None:
    """MaxUnpool by a pooling's indices; without indices, nearest-neighbour upsampling."""
    op.need(1)
    by = op.proto.upsample_param
    height, width = op.picture(op.inputs[0])
    factors = [by.scale_h or by.stride or by.scale, by.scale_w or by.stride or by.scale]
    if min(factors) < 1:
        raise op.damaged(f"factors {factors}")
    target = [
        by.upsample_h or height * factors[0] - int(by.pad_out_h),
        by.upsample_w or width * factors[1] - int(by.pad_out_w),
    ]
    if len(op.inputs) == 1:
        _resize(
            op, op.inputs[0], target, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip
        return
    x, places = op.inputs[:2]
    flat = op.make("Reshape", x, op.constant([0, 0, -1]))
    where = op.cast(op.make("Reshape", places, op.constant([0, 0, -1])), INT64)
    lead = op.make("Shape", x, end=2, dtype=INT64)
    size = op.make("Concat", lead, op.constant([target[0] * target[1]]), axis=0, dtype=INT64)
    empty = op.make("Expand", op.number(0), size)
    filled = op.make("ScatterElements", empty, where, flat, axis=2)
    op.finish("Reshape", filled, op.constant([0, 0, *target]))
