"""Pooling in any number of dimensions."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from vkmnn.cpu_fallback.convolution import ALL, at, tap_slices
from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required, widen
from vkmnn.cpu_fallback.requantize import mean_of_codes
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Op
from vkmnn.ir.ops import PoolingAttrs
from vkmnn.shape.windows import Window, pool_window


def _lowest(dtype: np.dtype[Any]) -> float:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _reach(window: Window, axis: int) -> int:
    """Return how many padded elements the windows of `axis` cover."""
    span = (window.kernel[axis] - 1) * window.dilations[axis] + 1
    return (window.output[axis] - 1) * window.strides[axis] + span


def _filled(x: AnyArray, window: Window, fill: float) -> AnyArray:
    """Pad so that all windows are inside, including those that ceil_mode adds."""
    widths = [(0, 0), (0, 0)]
    for axis, size in enumerate(x.shape[2:]):
        begin = window.begins[axis]
        widths.append((begin, max(_reach(window, axis) - begin - size, 0)))
    if not any(begin or end for begin, end in widths):
        return x
    return np.pad(x, widths, constant_values=fill)


def _separable(x: AnyArray, window: Window, ufunc: np.ufunc) -> AnyArray:
    """Combine the elements of each window with `ufunc`, one axis after the other."""
    for axis in range(len(window.kernel)):
        result: AnyArray | None = None
        for position in range(window.kernel[axis]):
            first = position * window.dilations[axis]
            last = first + (window.output[axis] - 1) * window.strides[axis] + 1
            part = x[(slice(None),) * (axis + 2) + (slice(first, last, window.strides[axis]),)]
            result = part if result is None else ufunc(result, part)
        if result is not None:
            x = result
    return x


def _max_with_indices(x: AnyArray, window: Window, storage_order: int) -> tuple[AnyArray, AnyArray]:
    spatial = x.shape[2:]
    padded = _filled(x, window, _lowest(x.dtype))
    best = np.full((*x.shape[:2], *window.output), _lowest(x.dtype), dtype=x.dtype)
    where = np.full(best.shape, -1, dtype=np.int64)
    if storage_order:
        pitches = [prod(spatial[:axis]) for axis in range(len(spatial))]
    else:
        pitches = [prod(spatial[axis + 1 :]) for axis in range(len(spatial))]
    for tap in product(*(range(size) for size in window.kernel)):
        index = np.zeros(window.output, dtype=np.int64)
        inside = np.ones(window.output, dtype=np.bool_)
        for axis, size in enumerate(spatial):
            position = (
                np.arange(window.output[axis]) * window.strides[axis]
                + tap[axis] * window.dilations[axis]
                - window.begins[axis]
            ).reshape(-1, *(1,) * (len(spatial) - axis - 1))
            index += position * pitches[axis]
            inside &= (position >= 0) & (position < size)
        part = padded[at(ALL, ALL, *tap_slices(window, tap))]
        better = inside & ((part > best) | (where < 0) | (np.isnan(part) & ~np.isnan(best)))
        best = np.where(better, part, best)
        where = np.where(better, index, where)
    planes = np.arange(prod(x.shape[:2])).reshape(x.shape[:2] + (1,) * len(spatial))
    return best, np.where(where < 0, where, where + planes * prod(spatial))


def _counts(window: Window, spatial: tuple[int, ...], count_include_pad: bool) -> AnyArray:
    """Return how many elements each window averages over; those that ceil_mode adds never count."""
    result = np.ones((), dtype=np.float64)
    for axis, size in enumerate(spatial):
        low = -window.begins[axis] if count_include_pad else 0
        high = size + window.ends[axis] if count_include_pad else size
        position = (
            np.arange(window.output[axis])[:, None] * window.strides[axis]
            + np.arange(window.kernel[axis]) * window.dilations[axis]
            - window.begins[axis]
        )
        inside = ((position >= low) & (position < high)).sum(axis=1)
        result = result[..., None] * inside
    return result


def _global(x: AnyArray, attrs: PoolingAttrs) -> AnyArray:
    axes = tuple(range(2, x.ndim))
    if attrs.kind == "MAX":
        return np.asarray(np.max(x, axis=axes, keepdims=True, initial=_lowest(x.dtype)))
    if attrs.kind == "AVERAGE":
        total = np.sum(x, axis=axes, keepdims=True, dtype=np.float64)
        return np.asarray(total / np.float64(prod(x.shape[2:])))
    powers = np.abs(x.astype(np.float64)) ** attrs.p
    return np.asarray(np.sum(powers, axis=axes, keepdims=True) ** (1.0 / attrs.p))


@cpu_execution("Pooling")
def _pooling(op: Op[PoolingAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = widen(required(inputs, 0))
    dtype = required(inputs, 0).dtype
    window = pool_window(attrs, x.shape[2:])
    if attrs.kind == "MAX" and len(op.outputs) > 1:
        best, where = _max_with_indices(x, window, attrs.storage_order)
        return [best.astype(dtype, copy=False), where]
    if attrs.is_global:
        result = _global(x, attrs)
    elif 0 in window.output:
        result = np.zeros((*x.shape[:2], *window.output), dtype=x.dtype)
    elif attrs.kind == "MAX":
        result = _separable(_filled(x, window, _lowest(x.dtype)), window, np.maximum)
    elif attrs.kind == "AVERAGE":
        total = _separable(_filled(x, window, 0), window, np.add)
        result = total / _counts(window, x.shape[2:], attrs.count_include_pad).astype(x.dtype)
    elif attrs.kind == "LP":
        powers = _filled(np.abs(x) ** attrs.p, window, 0)
        result = _separable(powers, window, np.add) ** (1.0 / attrs.p)
    else:
        raise InvalidInputError(f"pooling kind '{attrs.kind}' is unknown")
    if attrs.ending is not None:
        result = mean_of_codes(result, attrs.ending)
    return [result.astype(dtype, copy=False)]
