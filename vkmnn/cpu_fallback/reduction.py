"""Reductions, softmax, extrema, TopK, CumSum and CumProd."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from vkmnn.cpu_fallback.binary import truncated_division
from vkmnn.cpu_fallback.registry import (
    AnyArray,
    Inputs,
    cpu_execution,
    optional,
    required,
    widen,
)
from vkmnn.cpu_fallback.requantize import decoded, mean_of_codes
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Op
from vkmnn.ir.ops import (
    ArgReduceAttrs,
    CumSumAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    TopKAttrs,
)
from vkmnn.shape.common import int_list, int_scalar, normalize_axis
from vkmnn.shape.reduction import flatten_axis, reduction_axes

Axes = tuple[int, ...]


def total(x: AnyArray, axes: Axes) -> AnyArray:
    """Sum over `axes`, keeping them as 1; floats are accumulated in float64."""
    dtype = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.sum(x, axis=axes, keepdims=True, dtype=dtype))


def _as_float(x: AnyArray) -> AnyArray:
    return x.astype(np.float64, copy=False)


def _mean(x: AnyArray, axes: Axes) -> AnyArray:
    count = prod(x.shape[axis] for axis in axes)
    if x.dtype.kind == "f":
        return np.asarray(total(x, axes) / np.float64(count))
    summed = np.asarray(np.sum(x, axis=axes, keepdims=True))
    return truncated_division(summed, np.asarray(count, dtype=summed.dtype))


def _extreme(ufunc: np.ufunc, *, largest: bool) -> Callable[[AnyArray, Axes], AnyArray]:
    def reduce(x: AnyArray, axes: Axes) -> AnyArray:
        # ONNX: the maximum of nothing is the lowest value of the type, the minimum the highest.
        if x.dtype.kind == "f":
            initial = -np.inf if largest else np.inf
        elif x.dtype.kind == "b":
            initial = not largest
        else:
            limits = np.iinfo(x.dtype)
            initial = limits.min if largest else limits.max
        start = x.dtype.type(initial)
        return np.asarray(ufunc.reduce(x, axis=axes, keepdims=True, initial=start))

    return reduce


_MAX = _extreme(np.maximum, largest=True)
_MIN = _extreme(np.minimum, largest=False)


def _prod(x: AnyArray, axes: Axes) -> AnyArray:
    dtype = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.prod(x, axis=axes, keepdims=True, dtype=dtype))


def _log_sum_exp(x: AnyArray, axes: Axes) -> AnyArray:
    wide = _as_float(x)
    peak = _MAX(wide, axes)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    return np.asarray(np.log(total(np.exp(wide - peak), axes)) + peak)


_REDUCTIONS: dict[str, Callable[[AnyArray, Axes], AnyArray]] = {
    "SUM": total,
    "MEAN": _mean,
    "MAX": _MAX,
    "MIN": _MIN,
    "PROD": _prod,
    "L1": lambda x, axes: total(np.abs(x), axes),
    "L2": lambda x, axes: np.sqrt(total(_as_float(x) ** 2, axes)),
    "LOG_SUM": lambda x, axes: np.log(total(_as_float(x), axes)),
    "LOG_SUM_EXP": _log_sum_exp,
    "SUM_SQUARE": lambda x, axes: total(np.square(x), axes),
}


@cpu_execution("Reduction")
def _reduction(op: Op[ReductionAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    reduce = _REDUCTIONS.get(attrs.kind)
    if reduce is None:
        raise InvalidInputError(f"reduction kind '{attrs.kind}' is unknown")
    x = required(inputs, 0)
    given = int_list(inputs, 1, "axes") if optional(inputs, 1) is not None else None
    axes = reduction_axes(x.ndim, given, noop_with_empty_axes=attrs.noop_with_empty_axes)
    result = reduce(widen(x), axes).astype(x.dtype, copy=False)
    return [result if attrs.keepdims else np.squeeze(result, axis=axes)]


def softmax(x: AnyArray, axes: Axes, *, log: bool = False) -> AnyArray:
    """Softmax, or its logarithm, over `axes` jointly; computed in the type of `x`."""
    if x.size == 0:
        return x
    shifted = x - np.max(x, axis=axes, keepdims=True)
    powers = np.exp(shifted)
    summed = np.sum(powers, axis=axes, keepdims=True)
    return np.asarray(shifted - np.log(summed) if log else powers / summed)


@cpu_execution("Softmax")
def _softmax(op: Op[SoftmaxAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = decoded(required(inputs, 0), attrs.of_input)
    if attrs.flatten:
        axes = tuple(range(flatten_axis(attrs.axis, x.ndim), x.ndim))
    else:
        axes = (normalize_axis(attrs.axis, x.ndim),)
    result = softmax(widen(x), axes, log=attrs.log).astype(x.dtype, copy=False)
    return [mean_of_codes(result, attrs.ending) if attrs.ending else result]


def _arg_reduce(op: Op[ArgReduceAttrs], x: AnyArray, *, largest: bool) -> AnyArray:
    attrs = op.attrs
    axis = normalize_axis(attrs.axis, x.ndim)
    ordered = np.flip(x, axis) if attrs.select_last_index else x
    if x.size == 0:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        if 0 in shape or attrs.empty_gives_zero:
            found = np.zeros(shape, dtype=np.int64)
            return found if attrs.keepdims else np.squeeze(found, axis)
    function = np.argmax if largest else np.argmin
    found = np.asarray(function(ordered, axis=axis, keepdims=attrs.keepdims))
    if attrs.select_last_index:
        found = x.shape[axis] - 1 - found
    return np.asarray(found, dtype=np.int64)


@cpu_execution("ArgMax")
def _arg_max(op: Op[ArgReduceAttrs], inputs: Inputs) -> list[AnyArray]:
    return [_arg_reduce(op, required(inputs, 0), largest=True)]


@cpu_execution("ArgMin")
def _arg_min(op: Op[ArgReduceAttrs], inputs: Inputs) -> list[AnyArray]:
    return [_arg_reduce(op, required(inputs, 0), largest=False)]


@cpu_execution("TopK")
def _topk(op: Op[TopKAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = required(inputs, 0)
    axis = normalize_axis(attrs.axis, x.ndim)
    size, count = x.shape[axis], int_scalar(inputs, 1, "k")
    if not 0 <= count <= size:
        raise InvalidInputError(f"k = {count} is outside [0, {size}]")
    if attrs.largest:
        # Sorting the mirrored axis and mirroring back keeps the lower index first among equals.
        order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = size - 1 - np.flip(order, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    order = np.take(order, np.arange(count), axis=axis).astype(np.int64, copy=False)
    return [np.take_along_axis(x, order, axis), order]


@cpu_execution("SampleToken")
def _sample_token(op: Op, inputs: Inputs) -> list[AnyArray]:
    rows = zip(*(required(inputs, place) for place in range(3)), strict=True)
    chosen = [_drawn(logits, settings, float(number[0])) for logits, settings, number in rows]
    return [np.array(chosen, np.int64).reshape(-1, 1)]


def _drawn(logits: AnyArray, settings: AnyArray, number: float) -> int:
    """Return the index of a row that a random number selects."""
    inverse, top_k, top_p, min_p = (float(one) for one in settings)
    x = np.nan_to_num(logits.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    with np.errstate(invalid="ignore"):
        away = np.where(x == x.max(), 0.0, (x.max() - x) * inverse)
    away[~(away >= 0.0)] = np.inf
    order = np.argsort(away, kind="stable")
    weights = np.exp(-away[order])
    possible = int(np.count_nonzero(weights >= min(max(min_p, 2.0**-40), 1.0)))
    count = int(max(1, min(top_k, possible)))
    sums = np.cumsum(weights[:count])
    if top_p < 1.0:
        sums = sums[: int(np.searchsorted(sums, top_p * sums[-1])) + 1]
    drawn = np.searchsorted(sums, number * sums[-1], side="right")
    return int(order[min(int(drawn), len(sums) - 1)])


@cpu_execution("CumProd")
@cpu_execution("CumSum")
def _cumsum(op: Op[CumSumAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = required(inputs, 0)
    axis = normalize_axis(int_scalar(inputs, 1, "axis"), x.ndim)
    wide = widen(x)
    if attrs.reverse:
        wide = np.flip(wide, axis)
    is_product = op.type == "CumProd"
    result = (np.cumprod if is_product else np.cumsum)(wide, axis=axis, dtype=wide.dtype)
    if attrs.exclusive:
        result = np.roll(result, 1, axis=axis)
        result[(slice(None),) * axis + (slice(0, 1),)] = is_product
    if attrs.reverse:
        result = np.flip(result, axis)
    return [result.astype(x.dtype, copy=False)]


@cpu_execution("DynamicRange")
def _dynamic_range(op: Op, inputs: Inputs) -> list[AnyArray]:
    """Return the scale of eight bits and the zero point for a range that has zero in it.

    The formula is that of ONNX's DynamicQuantizeLinear; for all zeros, or no elements, the scale is
    1, as in onnxruntime.
    """
    x = required(inputs, 0)
    low, high = np.min(x, initial=0.0), np.max(x, initial=0.0)
    scale = np.float32(high - low) / np.float32(255)
    scale = np.float32(1) if scale == 0 else scale
    with np.errstate(invalid="ignore"):
        point = np.rint(np.clip(np.float32(-low) / scale, 0, 255))
    return [np.asarray(value, np.float32) for value in (scale, point)]
