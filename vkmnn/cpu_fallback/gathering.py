"""Gathers, scatters and OneHot."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required, widen
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Op
from vkmnn.ir.ops import AxisAttrs, GatherNDAttrs, ScatterElementsAttrs, ScatterNDAttrs
from vkmnn.shape.common import int_scalar, normalize_axis

_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def checked_indices(indices: AnyArray, size: int, axis: int) -> AnyArray:
    """Return indices into an axis of `size` elements as int64 >= 0; negative ones count backwards.

    Raises:
        InvalidInputError: one is out of range.
    """
    outside = (indices < -size) | (indices >= size)
    if outside.any():
        bad = indices[outside].reshape(-1)[0]
        raise InvalidInputError(
            f"index {bad} is outside [{-size}, {size - 1}] of axis {axis}",
            hint="check the values that the model computes indices from",
        )
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + size, wide)


@cpu_execution("Gather")
def _gather(op: Op[AxisAttrs], inputs: Inputs) -> list[AnyArray]:
    data, indices = required(inputs, 0), required(inputs, 1)
    axis = normalize_axis(op.attrs.axis, data.ndim)
    chosen = checked_indices(indices, data.shape[axis], axis)
    return [np.take(data, chosen, axis=axis)]


def _along(indices: AnyArray, axis: int) -> tuple[AnyArray, ...]:
    """Return an index tuple that uses `indices` on `axis` and the own position elsewhere."""
    grid = list(np.ogrid[tuple(slice(0, size) for size in indices.shape)])
    grid[axis] = indices
    return tuple(grid)


@cpu_execution("GatherElements")
def _gather_elements(op: Op[AxisAttrs], inputs: Inputs) -> list[AnyArray]:
    data, indices = required(inputs, 0), required(inputs, 1)
    axis = normalize_axis(op.attrs.axis, data.ndim)
    return [data[_along(checked_indices(indices, data.shape[axis], axis), axis)]]


def _flat_rows(indices: AnyArray, shape: tuple[int, ...], first_axis: int) -> AnyArray:
    """Return index tuples (last axis) into `shape` as row numbers in plain order."""
    rows = np.zeros(indices.shape[:-1], dtype=np.int64)
    for position, size in enumerate(shape):
        part = checked_indices(indices[..., position], size, first_axis + position)
        rows = rows * size + part
    return rows


@cpu_execution("GatherND")
def _gather_nd(op: Op[GatherNDAttrs], inputs: Inputs) -> list[AnyArray]:
    batch = op.attrs.batch_dims
    data, indices = required(inputs, 0), required(inputs, 1)
    depth = indices.shape[-1]
    batches = prod(data.shape[:batch])
    addressed, rest = data.shape[batch : batch + depth], data.shape[batch + depth :]
    rows = _flat_rows(indices, addressed, batch).reshape(batches, -1 if indices.size else 0)
    table = data.reshape(batches, prod(addressed), *rest)
    result = table[np.arange(batches)[:, None], rows]
    return [result.reshape(indices.shape[:-1] + rest)]


def _reduce_at(
    target: AnyArray, index: AnyArray | tuple[AnyArray, ...], updates: AnyArray, reduction: str
) -> None:
    if reduction == "none":
        target[index] = updates
        return
    ufunc = _REDUCTIONS.get(reduction)
    if ufunc is None:
        raise InvalidInputError(f"reduction '{reduction}' is unknown")
    ufunc.at(target, index, updates)


@cpu_execution("ScatterND")
def _scatter_nd(op: Op[ScatterNDAttrs], inputs: Inputs) -> list[AnyArray]:
    data, indices, updates = (required(inputs, index) for index in range(3))
    depth = indices.shape[-1]
    addressed, rest = data.shape[:depth], data.shape[depth:]
    rows = _flat_rows(indices, addressed, 0).reshape(-1)
    result = np.array(widen(data), copy=True, order="C")
    table = result.reshape(prod(addressed), *rest)
    values = widen(updates).reshape(rows.size, *rest)
    _reduce_at(table, rows, values, op.attrs.reduction)
    return [result.astype(data.dtype, copy=False)]


@cpu_execution("ScatterElements")
def _scatter_elements(op: Op[ScatterElementsAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    data, indices, updates = (required(inputs, index) for index in range(3))
    axis = normalize_axis(attrs.axis, data.ndim)
    chosen = _along(checked_indices(indices, data.shape[axis], axis), axis)
    result = np.array(widen(data), copy=True)
    _reduce_at(result, chosen, widen(updates), attrs.reduction)
    return [result.astype(data.dtype, copy=False)]


@cpu_execution("OneHot")
def _one_hot(op: Op[AxisAttrs], inputs: Inputs) -> list[AnyArray]:
    indices, depth_value, pair = (required(inputs, index) for index in range(3))
    depth = int_scalar([depth_value.astype(np.int64)], 0, "depth")
    axis = normalize_axis(op.attrs.axis, indices.ndim + 1)
    wanted = np.expand_dims(indices.astype(np.int64), axis)
    wanted = np.where(wanted < 0, wanted + depth, wanted)
    classes = np.arange(depth).reshape(-1, *(1,) * (indices.ndim - axis))
    return [np.where(wanted == classes, pair[1], pair[0])]
