"""Requantisation: scale, round and clamp integer sums."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import CodeAttention, CodeMean, QuantizedConvolutionAttrs, QuantizedMatMulAttrs


def requantized(
    sums: AnyArray,
    factor: AnyArray,
    residual: AnyArray | None,
    attrs: QuantizedConvolutionAttrs | QuantizedMatMulAttrs,
    table: AnyArray | None = None,
    again: AnyArray | None = None,
) -> AnyArray:
    """Return exact sums as quantised values, in float32 arithmetic; `factor` broadcasts.

    Args:
        sums: sums of products of quantised values.
        factor: their factor.
        residual: codes; may be absent.
        attrs: bounds, and how the residual joins.
        table: a table applied to the results.
        again: how codes are rounded a second time, by the last axis.
    """
    if residual is not None and attrs.add is None:
        sums = sums + residual
    codes = np.clip(np.rint(sums.astype(np.float32) * factor), attrs.low, attrs.high)
    codes = codes.astype(np.float32)
    if again is not None:
        low, high, of_x, offset, unit, made_low, made_high = again.astype(np.float32)
        steps = (np.clip(codes, low, high) * of_x + offset) / unit
        codes = np.clip(np.rint(steps), made_low, made_high).astype(np.float32)
    if table is not None:
        places = codes.astype(np.int64) - attrs.first
        codes = table[np.clip(places, 0, len(table) - 1)].astype(np.float32)
    add = attrs.add
    if residual is not None and add is not None:
        one, other, unit = (np.float32(value) for value in (add.of_x, add.of_residual, add.unit))
        both = codes * one + residual.astype(np.float32) * other
        codes = np.clip(np.rint(both / unit), add.low, add.high).astype(np.float32)
    return np.asarray(codes * np.float32(attrs.scale))


def mean_of_codes(means: AnyArray, ending: CodeMean) -> AnyArray:
    """Return quantised means of quantised values, in float32; NaN becomes the lower bound."""
    scaled = means.astype(np.float32) * np.float32(ending.of_x)
    steps = np.nan_to_num(np.rint(scaled / np.float32(ending.unit)), nan=ending.low)
    codes = np.clip(steps, ending.low, ending.high)
    return np.asarray(codes.astype(np.float32) * np.float32(ending.scale))


def dynamic_codes(x: AnyArray, scale: AnyArray, point: AnyArray) -> AnyArray:
    """Return quantised values minus their zero point; NaN becomes 0 before the subtraction."""
    steps = np.rint(x / scale) + point
    codes = np.where(steps > 0, np.minimum(steps, np.float32(255)), np.float32(0))
    return np.asarray(codes - point)


def decoded(x: AnyArray, of_input: float) -> AnyArray:
    """Return dequantised values."""
    return x if of_input == 1.0 else np.asarray(x * x.dtype.type(of_input))


def attend_codes(
    q: AnyArray, k: AnyArray, v: AnyArray, scale: float, codes: CodeAttention
) -> AnyArray:
    """Return attention of quantised values; whole numbers up to 2^53 are exact in float64."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    sums = np.matmul(q, np.swapaxes(k, -1, -2)).astype(np.float32)
    table = np.asarray(codes.table, np.float32)
    scores = np.clip(np.rint(sums * np.float32(scale)) - np.float32(codes.low), 0, len(table) - 1)
    numbers = table[scores.astype(np.int64)]
    if codes.later:
        others = np.asarray(codes.later, np.float32)[scores.astype(np.int64)]
        rows, columns = np.indices(scores.shape[-2:])
        numbers = np.where(columns <= rows, numbers, others)
    powers = np.exp(numbers - numbers.max(-1, keepdims=True))
    weights = np.rint(powers / powers.sum(-1, keepdims=True) / np.float32(codes.unit))
    sums = np.matmul(np.clip(weights, *codes.weights).astype(np.float64), v).astype(np.float32)
    made = np.clip(np.rint(sums * np.float32(codes.factor)), *codes.made).astype(np.float32)
    return np.asarray(made * np.float32(codes.decoded))
