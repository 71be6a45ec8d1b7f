"""Convolution and Deconvolution in 1 to 3 dimensions."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from vkmnn.cpu_fallback.narrow_floats import computes_fp16, fp16_product
from vkmnn.cpu_fallback.registry import (
    AnyArray,
    Inputs,
    cpu_execution,
    optional,
    required,
    sum_dtype,
    widen,
)
from vkmnn.cpu_fallback.requantize import dynamic_codes, requantized
from vkmnn.cpu_fallback.unary import activate, finish
from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import (
    ConvolutionAttrs,
    DeconvolutionAttrs,
    DynamicQuantizeConvolutionAttrs,
    QuantizedConvolutionAttrs,
)
from vkmnn.shape.windows import Direct, Window, conv_window, deconv_window


def _padded(x: AnyArray, window: Window) -> AnyArray:
    widths = [(0, 0), (0, 0), *zip(window.begins, window.ends, strict=True)]
    return np.pad(x, widths) if any(window.pads) else x


ALL = slice(None)
CHUNK = 1 << 20  # elements that are unfolded at a time: 8 MB of float64


def at(*parts: int | slice | AnyArray | None) -> tuple[Any, ...]:
    """Return an index of the given parts, one per axis."""
    return parts


def tap_slices(window: Window, tap: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the slices of the padded input that kernel element `tap` is multiplied with."""
    return tuple(
        slice(position * dilation, position * dilation + (count - 1) * stride + 1, stride)
        for position, dilation, stride, count in zip(
            tap, window.dilations, window.strides, window.output, strict=True
        )
    )


def _depthwise(x: AnyArray, w: AnyArray, window: Window) -> AnyArray:
    channels, multiplier = x.shape[1], w.shape[0] // x.shape[1]
    shape = (x.shape[0], channels, multiplier, *window.output)
    half = _computes_fp16(x, w)
    result = np.zeros(shape, dtype=np.float32 if half else sum_dtype(x, w))
    taps = w.reshape(channels, multiplier, *w.shape[2:], *(1,) * len(window.output))
    taps = taps if half else taps.astype(result.dtype)
    for tap in product(*(range(size) for size in window.kernel)):
        part = x[at(ALL, ALL, None, *tap_slices(window, tap))]
        result += part * taps[at(ALL, ALL, *tap)]
    return result.reshape(x.shape[0], w.shape[0], *window.output)


def _grouped(x: AnyArray, w: AnyArray, window: Window, group: int) -> AnyArray:
    """Unfold each sample to [group, C/group · kernel, output] and multiply (im2col).

    A few output rows are unfolded at a time, so that they stay small in float64.
    """
    batch, channels = x.shape[:2]
    inner, (height, *rest) = w.shape[1] * prod(window.kernel), window.output
    half = _computes_fp16(x, w)
    dtype, multiply = (x.dtype, fp16_product) if half else (sum_dtype(x, w), np.matmul)
    weights = w.reshape(group, w.shape[0] // group, inner).astype(dtype)
    rows = min(height, max(1, CHUNK // (channels * prod(window.kernel) * prod(rest))))
    taps = [
        (tap, tap_slices(window, tap)) for tap in product(*(range(size) for size in window.kernel))
    ]
    shape = (batch, group, weights.shape[1], height, prod(rest))
    result = np.empty(shape, dtype=np.float32 if half else dtype)
    for sample, first in product(range(batch), range(0, height, rows)):
        count = min(rows, height - first)
        columns = np.empty((channels, *window.kernel, count, *rest), dtype=dtype)
        for tap, (down, *across) in taps:
            columns[at(ALL, *tap)] = x[at(sample, ALL, down, *across)][:, first : first + count]
        part = multiply(weights, columns.reshape(group, inner, count * prod(rest)))
        result[sample, :, :, first : first + count] = part.reshape(*part.shape[:2], count, -1)
    return result.reshape(batch, w.shape[0], *window.output)


def _computes_fp16(x: AnyArray, w: AnyArray) -> bool:
    return x.dtype == w.dtype == np.float16 and computes_fp16()


def _add_bias(result: AnyArray, bias: AnyArray | None) -> AnyArray:
    return result if bias is None else result + widen(bias).reshape(-1, *(1,) * (result.ndim - 2))


def _convolve(attrs: Direct, x: AnyArray, w: AnyArray) -> AnyArray:
    if x.ndim != w.ndim or x.shape[1] != w.shape[1] * attrs.group or w.shape[0] % attrs.group:
        raise ShapeError(f"input {x.shape} does not fit weight {w.shape} with group {attrs.group}")
    window = conv_window(attrs, x.shape[2:], w.shape[2:])
    x = _padded(x, window)
    if 0 in window.output:
        result = np.zeros((x.shape[0], w.shape[0], *window.output), dtype=x.dtype)
    elif attrs.group == x.shape[1] and w.shape[1] == 1:
        result = _depthwise(x, w, window)
    else:
        result = _grouped(x, w, window, attrs.group)
    return result


@cpu_execution("Convolution")
def _convolution(op: Op[ConvolutionAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    result = _convolve(attrs, widen(required(inputs, 0)), widen(required(inputs, 1)))
    result = _add_bias(result, optional(inputs, 2))
    result = finish(result, optional(inputs, 3), attrs.residual, attrs.activation)
    return [result.astype(required(inputs, 0).dtype, copy=False)]


@cpu_execution("QuantizedConvolution")
def _quantized(op: Op[QuantizedConvolutionAttrs], inputs: Inputs) -> list[AnyArray]:
    """Integers up to 2^53 are exact in float64."""
    attrs, dtype = op.attrs, required(inputs, 0).dtype
    x, w = (required(inputs, index).astype(np.float64) for index in range(2))
    sums = _convolve(attrs, x, w).astype(np.float64)
    sums = _add_bias(sums, required(inputs, 2).astype(np.float64))
    each = required(inputs, 4).astype(np.float32).reshape(-1, *(1,) * (sums.ndim - 2))
    codes = requantized(sums, each, optional(inputs, 3), attrs, optional(inputs, 5))
    return [codes.astype(dtype, copy=False)]


@cpu_execution("DynamicQuantizeConvolution")
def _dynamic(op: Op[DynamicQuantizeConvolutionAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs, x, w = op.attrs, required(inputs, 0), required(inputs, 1)
    factor, scale, point = (required(inputs, index).reshape(-1) for index in (4, 5, 6))
    codes = dynamic_codes(x, scale, point).astype(np.float64)
    sums = _convolve(attrs, codes, w.astype(np.float64)).astype(np.float32)
    result = sums * (factor * scale).reshape(-1, *(1,) * (sums.ndim - 2))
    result = _add_bias(result, optional(inputs, 2))
    result = finish(result, optional(inputs, 3), attrs.residual, attrs.activation)
    return [result.astype(np.float32, copy=False)]


def _deconvolve(x: AnyArray, w: AnyArray, window: Window, group: int) -> AnyArray:
    """Spread every input element over its kernel footprint, then crop the pads."""
    batch, channels = x.shape[:2]
    spatial = x.shape[2:]
    outputs = w.shape[1]
    half = _computes_fp16(x, w)
    dtype, multiply = (x.dtype, fp16_product) if half else (sum_dtype(x, w), np.matmul)
    weights = w.reshape(group, channels // group, outputs * prod(window.kernel)).astype(dtype)
    spread = multiply(
        np.swapaxes(weights, 1, 2),
        x.reshape(batch, group, channels // group, prod(spatial)).astype(dtype),
    ).reshape(batch, group * outputs, *window.kernel, *spatial)
    full = [
        max(stride * (size - 1) + (kernel - 1) * dilation + 1, begin + count)
        for stride, size, kernel, dilation, begin, count in zip(
            window.strides,
            spatial,
            window.kernel,
            window.dilations,
            window.begins,
            window.output,
            strict=True,
        )
    ]
    result = np.zeros((batch, group * outputs, *full), dtype=spread.dtype)
    for tap in product(*(range(size) for size in window.kernel)):
        target = tuple(
            slice(position * dilation, position * dilation + (size - 1) * stride + 1, stride)
            for position, dilation, size, stride in zip(
                tap, window.dilations, spatial, window.strides, strict=True
            )
        )
        result[at(ALL, ALL, *target)] += spread[at(ALL, ALL, *tap)]
    kept = (
        slice(begin, begin + count)
        for begin, count in zip(window.begins, window.output, strict=True)
    )
    return np.asarray(result[at(ALL, ALL, *kept)])


@cpu_execution("Deconvolution")
def _deconvolution(op: Op[DeconvolutionAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x, w = widen(required(inputs, 0)), widen(required(inputs, 1))
    if x.ndim != w.ndim or x.shape[1] != w.shape[0] or w.shape[0] % attrs.group:
        raise ShapeError(f"input {x.shape} does not fit weight {w.shape} with group {attrs.group}")
    window = deconv_window(attrs, x.shape[2:], w.shape[2:])
    if 0 in x.shape[2:]:
        shape = (x.shape[0], w.shape[1] * attrs.group, *window.output)
        result = np.zeros(shape, dtype=x.dtype)
    else:
        result = _deconvolve(x, w, window, attrs.group)
    result = activate(_add_bias(result, optional(inputs, 2)), attrs.activation)
    return [result.astype(required(inputs, 0).dtype, copy=False)]
