"""Interp (Resize) and GridSample."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.convolution import at
from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required, widen
from vkmnn.cpu_fallback.requantize import decoded, mean_of_codes
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Op
from vkmnn.ir.ops import GridSampleAttrs, InterpAttrs
from vkmnn.shape.resizing import axis_taps, cubic_kernel, resize_axes

# A few taps are summed directly; with more (antialiasing) one matrix product is faster.
_MAX_TAPS = 8
_GRID_CUBIC_A = -0.75  # ONNX GridSample fixes it


def _saturated(x: AnyArray, dtype: np.dtype[np.generic]) -> AnyArray:
    """Round half to even and clamp, as ONNX's reference stores resized integers."""
    if dtype.kind not in "iu":
        return x.astype(dtype, copy=False)
    limits = np.iinfo(dtype.name)
    rounded = np.clip(np.rint(x), float(limits.min), float(limits.max))
    # float(2^63 - 1) is 2^63, which int64 cannot represent.
    inside = rounded < float(limits.max)
    return np.where(inside, np.where(inside, rounded, 0).astype(dtype), dtype.type(limits.max))


def _resize_axis(x: AnyArray, axis: int, indices: AnyArray, weights: AnyArray) -> AnyArray:
    weights = weights.astype(x.dtype)
    column = (-1,) + (1,) * (x.ndim - axis - 1)
    if weights.shape[1] <= _MAX_TAPS:
        result = np.take(x, indices[:, 0], axis=axis) * weights[:, 0].reshape(column)
        for tap in range(1, weights.shape[1]):
            result += np.take(x, indices[:, tap], axis=axis) * weights[:, tap].reshape(column)
        return result
    matrix = np.zeros((weights.shape[0], x.shape[axis]), dtype=x.dtype)
    np.add.at(matrix, (np.arange(weights.shape[0])[:, None], indices), weights)
    return np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)


@cpu_execution("Interp")
def _interp(op: Op[InterpAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = required(inputs, 0)
    axes = resize_axes(op, x.shape, inputs)
    output = tuple(axis.output for axis in axes)
    if 0 in output:
        return [np.zeros(output, dtype=x.dtype)]
    exact, ending = attrs.mode == "nearest", attrs.ending
    if ending is not None:
        x = mean_of_codes(x, ending) if exact else decoded(x, ending.of_x)
    result = x if exact else widen(x) if x.dtype.kind == "f" else x.astype(np.float64)
    masks: list[AnyArray] = []
    for number, axis in enumerate(axes):
        if axis.is_identity:
            continue
        indices, weights, outside = axis_taps(axis, attrs)
        if exact:
            result = np.take(result, indices[:, 0], axis=number)
        else:
            result = _resize_axis(result, number, indices, weights)
        if outside.any():
            masks.append(outside.reshape(-1, *(1,) * (x.ndim - number - 1)))
    for mask in masks:
        result = np.where(mask, result.dtype.type(attrs.extrapolation_value), result)
    if ending is not None and not exact:
        result = mean_of_codes(result, replace(ending, of_x=1.0))
    return [_saturated(result, x.dtype)]


def _unnormalised(grid: AnyArray, size: int, *, align_corners: bool) -> AnyArray:
    """Turn [-1, 1] into coordinates along an axis of `size` elements."""
    if align_corners:
        return np.asarray((grid + 1) / 2 * (size - 1))
    return np.asarray(((grid + 1) * size - 1) / 2)


def _reflected(x: AnyArray, size: int, *, align_corners: bool) -> AnyArray:
    """Reflect coordinates at the borders of an axis until they are inside."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return np.full_like(x, low)
    inside = (x >= low) & (x <= high)
    distance = np.where(x < low, low - x, x - high)
    turns = np.trunc(distance / span)
    rest = distance - turns * span
    from_low = (x < low) == (turns % 2 == 0)
    return np.where(inside, x, np.where(from_low, low + rest, high - rest)).astype(x.dtype)


def _element(
    position: AnyArray, size: int, padding: str, *, align_corners: bool
) -> tuple[AnyArray, AnyArray]:
    """Return which elements integer coordinates mean, and which of them count (zeros: inside)."""
    counts = np.ones(position.shape, dtype=np.bool_)
    if padding == "zeros":
        counts = (position >= 0) & (position < size)
    elif padding == "reflection":
        position = np.trunc(_reflected(position, size, align_corners=align_corners))
    # Coordinates may be huge or NaN; both must not reach the conversion to int.
    clamped = np.clip(np.nan_to_num(position, nan=0.0), 0, max(size - 1, 0))
    return clamped.astype(np.int64), counts


def _taps(mode: str, x: AnyArray) -> list[tuple[AnyArray, AnyArray | None]]:
    """Return (integer coordinate, weight) of every element that `x` touches along an axis."""
    if mode == "nearest":
        return [(np.rint(x), None)]
    first = np.floor(x)
    if mode == "linear":
        return [(first, 1 - (x - first)), (first + 1, x - first)]
    return [
        (first + offset, cubic_kernel(x - first - offset, _GRID_CUBIC_A).astype(x.dtype))
        for offset in (-1, 0, 1, 2)
    ]


@cpu_execution("GridSample")
def _grid_sample(op: Op[GridSampleAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x, grid = required(inputs, 0), widen(required(inputs, 1))
    spatial = x.shape[2:]
    if grid.ndim != x.ndim or grid.shape[-1] != len(spatial) or grid.shape[0] != x.shape[0]:
        raise InvalidInputError(f"grid {grid.shape} does not fit x {x.shape}")
    output = (x.shape[0], x.shape[1], *grid.shape[1:-1])
    if 0 in output:
        return [np.zeros(output, dtype=x.dtype)]
    exact = attrs.mode == "nearest"
    source = x if exact else widen(x) if x.dtype.kind == "f" else x.astype(np.float64)
    per_axis = []
    for axis, size in enumerate(spatial):
        # The grid's last axis is in x, y, z order, the tensor's in z, y, x.
        along = _unnormalised(grid[..., -1 - axis], size, align_corners=attrs.align_corners)
        if exact:
            along = np.rint(along)
        low, high = (0.0, size - 1.0) if attrs.align_corners else (-0.5, size - 0.5)
        beyond = (along < low) | (along > high)
        # Cubic weights depend on the unclamped point; each of its elements is clamped separately.
        moves = attrs.mode != "cubic"
        if moves and attrs.padding_mode == "border":
            along = np.where(beyond, np.clip(along, 0, size - 1), along)
        elif moves and attrs.padding_mode == "reflection":
            along = _reflected(along, size, align_corners=attrs.align_corners)
        per_axis.append(
            [
                (
                    *_element(place, size, attrs.padding_mode, align_corners=attrs.align_corners),
                    weight,
                )
                for place, weight in _taps(attrs.mode, along)
            ]
        )
    rows = np.arange(x.shape[0]).reshape(-1, *(1,) * len(spatial))
    channels_last = np.moveaxis(source, 1, -1)
    result = np.zeros((x.shape[0], *grid.shape[1:-1], x.shape[1]), dtype=source.dtype)
    for combination in product(*per_axis):
        counts = np.ones(grid.shape[:-1], dtype=np.bool_)
        weight: AnyArray | None = None
        for _, inside, factor in combination:
            counts &= inside
            if factor is not None:
                weight = factor if weight is None else weight * factor
        values = channels_last[at(rows, *(index for index, _, _ in combination))]
        values = np.where(counts[..., None], values, values.dtype.type(0))
        result += values if weight is None else values * weight[..., None].astype(source.dtype)
    return [np.moveaxis(result, -1, 1).astype(x.dtype, copy=False)]
