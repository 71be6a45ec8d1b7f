"""Operators that move elements without changing them."""

from __future__ import annotations

import numpy as np

from vkmnn.base.packed_rows import pack_rows, unpack_rows
from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, optional, required
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Op
from vkmnn.ir.ops import (
    AppendAttrs,
    AxisAttrs,
    BlockAttrs,
    ImageToTensorAttrs,
    PadAttrs,
    ReshapeAttrs,
    SplitAttrs,
    TransposeAttrs,
    TriluAttrs,
    UnpackRowsAttrs,
)
from vkmnn.shape.common import (
    broadcast_shapes,
    int_list,
    int_scalar,
    normalize_axis,
)
from vkmnn.shape.movement import transpose_perm
from vkmnn.shape.reduction import flatten_axis
from vkmnn.shape.reshaping import reshape_dims, squeeze_dims, unsqueeze_dims
from vkmnn.shape.slicing import pad_widths, slice_ranges, split_sizes


@cpu_execution("Identity")
@cpu_execution("ConvertTensor")
def _identity(op: Op, inputs: Inputs) -> list[AnyArray]:
    return [required(inputs, 0)]


@cpu_execution("Reshape")
def _reshape(op: Op[ReshapeAttrs], inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    target = int_list(inputs, 1, "the target shape")
    allowzero = op.attrs.allowzero
    return [x.reshape(reshape_dims(x.shape, target, allowzero=allowzero))]


@cpu_execution("Flatten")
def _flatten(op: Op[AxisAttrs], inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    axis = flatten_axis(op.attrs.axis, x.ndim)
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    columns = int(np.prod(x.shape[axis:], dtype=np.int64))
    return [x.reshape(rows, columns)]


@cpu_execution("Squeeze")
def _squeeze(op: Op, inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    axes = int_list(inputs, 1, "axes") if optional(inputs, 1) is not None else None
    return [x.reshape(squeeze_dims(x.shape, axes))]


@cpu_execution("Unsqueeze")
def _unsqueeze(op: Op, inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    return [x.reshape(unsqueeze_dims(x.shape, int_list(inputs, 1, "axes")))]


@cpu_execution("ImageToTensor")
def _image_to_tensor(op: Op[ImageToTensorAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs, x = op.attrs, required(inputs, 0)
    if attrs.single:
        x = x[None]
    if attrs.channels_last:
        x = np.moveaxis(x, -1, 1)
    dtype = attrs.dtype.numpy
    per_channel = (-1, *[1] * (x.ndim - 2))
    if attrs.scale:
        x = x * np.array(attrs.scale, np.float32).reshape(per_channel)
    if attrs.bias:
        x = x + np.array(attrs.bias, np.float32).reshape(per_channel)
    return [np.ascontiguousarray(x, dtype)]


@cpu_execution("Transpose")
def _transpose(op: Op[TransposeAttrs], inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    return [np.transpose(x, transpose_perm(x.ndim, op.attrs.perm))]


@cpu_execution("Concat")
def _concat(op: Op[AxisAttrs], inputs: Inputs) -> list[AnyArray]:
    parts = [required(inputs, index) for index in range(len(inputs))]
    axis = normalize_axis(op.attrs.axis, parts[0].ndim)
    return [np.concatenate(parts, axis=axis)]


@cpu_execution("Split")
def _split(op: Op[SplitAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = required(inputs, 0)
    axis = normalize_axis(attrs.axis, x.ndim)
    given = int_list(inputs, 1, "split") if optional(inputs, 1) is not None else None
    sizes = split_sizes(x.shape[axis], given, attrs.num_outputs, len(op.outputs))
    return list(np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis))


@cpu_execution("Slice")
def _slice(op: Op, inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    ranges = slice_ranges(
        x.shape,
        int_list(inputs, 1, "starts"),
        int_list(inputs, 2, "ends"),
        int_list(inputs, 3, "axes") if optional(inputs, 3) is not None else None,
        int_list(inputs, 4, "steps") if optional(inputs, 4) is not None else None,
    )
    for axis, (start, step, count) in enumerate(ranges):
        stop: int | None = start + step * count
        if step < 0 and start + step * count < 0:
            stop = None
        part = slice(start, stop, step) if count else slice(0, 0)
        x = x[(slice(None),) * axis + (part,)]
    return [x]


@cpu_execution("Expand")
def _expand(op: Op, inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    target = int_list(inputs, 1, "the target shape")
    return [np.broadcast_to(x, broadcast_shapes(x.shape, target))]


@cpu_execution("Tile")
def _tile(op: Op, inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    repeats = int_list(inputs, 1, "repeats")
    if len(repeats) != x.ndim:
        raise InvalidInputError(f"repeats {repeats} must have one entry per axis of {x.shape}")
    return [np.tile(x, repeats)]


def _pad_indices(size: int, begin: int, end: int, mode: str) -> AnyArray:
    """Return which element each element of a padded axis copies."""
    index = np.arange(-begin, size + end)
    if mode == "edge" or size == 1:
        return np.clip(index, 0, size - 1)
    if mode == "wrap":
        return index % size
    period = 2 * (size - 1)
    index = index % period
    return np.minimum(index, period - index)


@cpu_execution("Pad")
def _pad(op: Op[PadAttrs], inputs: Inputs) -> list[AnyArray]:
    mode = op.attrs.mode
    x = required(inputs, 0)
    axes = int_list(inputs, 3, "axes") if optional(inputs, 3) is not None else None
    widths = pad_widths(x.shape, int_list(inputs, 1, "pads"), axes)
    for axis, (begin, end) in enumerate(widths):
        kept = slice(max(-begin, 0), max(x.shape[axis] + min(end, 0), 0))
        x = x[(slice(None),) * axis + (kept,)]
    # Cropping beyond the far end of an axis continues into the padding of the other side.
    adds = [
        (max(begin, 0) + min(size + end, 0), max(end, 0) + min(size + begin, 0))
        for size, (begin, end) in zip(required(inputs, 0).shape, widths, strict=True)
    ]
    if mode == "constant":
        value = optional(inputs, 2)
        fill = x.dtype.type(0) if value is None else value.reshape(()).astype(x.dtype)
        shape = [size + sum(add) for size, add in zip(x.shape, adds, strict=True)]
        result = np.full(shape, fill, dtype=x.dtype)
        inner = tuple(
            slice(begin, begin + size) for size, (begin, _) in zip(x.shape, adds, strict=True)
        )
        result[inner] = x
        return [result]
    for axis, (begin, end) in enumerate(adds):
        if begin or end:
            x = np.take(x, _pad_indices(x.shape[axis], begin, end, mode), axis=axis)
    return [x]


@cpu_execution("DepthToSpace")
def _depth_to_space(op: Op[BlockAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x, b = required(inputs, 0), attrs.block_size
    n, c, h, w = x.shape
    depth = c // (b * b)
    if attrs.mode == "DCR":
        blocks = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [blocks.reshape(n, depth, h * b, w * b)]


@cpu_execution("SpaceToDepth")
def _space_to_depth(op: Op[BlockAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x, b = required(inputs, 0), attrs.block_size
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if attrs.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return [blocks.transpose(order).reshape(n, c * b * b, h // b, w // b)]


@cpu_execution("Trilu")
def _trilu(op: Op[TriluAttrs], inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    k = int_scalar(inputs, 1, "k") if optional(inputs, 1) is not None else 0
    rows, columns = x.shape[-2:]
    # Beyond the matrix nothing changes, and numpy accepts no offset of 2^63.
    k = min(max(k, -rows - 1), columns + 1)
    return [np.triu(x, k) if op.attrs.upper else np.tril(x, k)]


@cpu_execution("JoinPast")
def _join_past(op: Op, inputs: Inputs) -> list[AnyArray]:
    past, new, before = (required(inputs, index) for index in range(3))
    total = int_scalar(inputs, 3, "total")
    batch, heads, room, depth = past.shape
    whole = np.zeros((batch, heads, max(room, total), depth), past.dtype)
    length = new.shape[2]
    firsts = [0] * batch if total == length else before.reshape(-1).tolist()
    if batch == 1 and total == room + length:
        firsts = [room]
    for rows, old, added, first in zip(whole, past, new, firsts, strict=True):
        rows[:, :first] = old[:, :first]
        there = rows[:, first : first + length]
        there[...] = added[:, : there.shape[1]]
    return [whole, whole[:, :, :total]]


@cpu_execution("Append")
def _append(op: Op[AppendAttrs], inputs: Inputs) -> list[AnyArray]:
    whole, rows = required(inputs, 0).copy(), required(inputs, 1)
    if op.attrs.packing:
        rows = pack_rows(rows, op.attrs.packing)
    axis, first = op.attrs.axis, int(required(inputs, 2).reshape(()))
    there = max(0, min(rows.shape[axis], whole.shape[axis] - first))
    target, source = np.moveaxis(whole, axis, 0), np.moveaxis(rows, axis, 0)
    target[first : first + there] = source[:there]
    return [whole]


@cpu_execution("UnpackRows")
def _unpack_rows(op: Op[UnpackRowsAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    rows = unpack_rows(required(inputs, 0), attrs.packing, attrs.depth)
    return [rows.astype(attrs.dtype.numpy)]
