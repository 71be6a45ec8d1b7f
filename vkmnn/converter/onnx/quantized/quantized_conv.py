"""Quantised convolutions: exact sums, multiplied once and rounded."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.coded import Coded, Unit, carried_in, fixed, scale_of
from vkmnn.converter.quantization import QuantizedConstant
from vkmnn.ir import Array, Op
from vkmnn.ir.codes import in_parts
from vkmnn.ir.ops import ConvolutionAttrs, QuantizedConvolutionAttrs

EXACT = 1 << 24
"""Sums of whole numbers up to this size are exact in float32, in any order."""

WIDE = (1 << 28) - 1
"""Sums up to this size are exact in kernels of whole numbers."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Weights minus their zero points, [O, C / group, ...], their scales, the bias in steps."""

    values: Array
    scale: Array
    bias: Array

    def largest_sum(self, x: Coded) -> int:
        """Return a bound of all partial sums."""
        each = x.reach(self.values.reshape(len(self.values), -1), 1)
        sums = each.astype(np.float64) + np.ceil(np.abs(self.bias.astype(np.float64)))
        return int(sums.max(initial=0))


def filters_of(w: QuantizedConstant, bias: Array | None) -> Filters | None:
    """Return constants as filters; None where they are not of single bytes with ordinary scales."""
    outputs = w.values.shape[0] if w.values.ndim >= 3 else 0
    if w.values.dtype not in (np.int8, np.uint8) or 0 in w.values.shape:
        return None
    by_channel = w.by.scale.size == outputs and w.by.scale.ndim == 1 and w.by.axis == 0
    if not (w.by.scale.size == 1 or by_channel):
        return None
    zero = w.by.zero
    if zero.size not in (1, outputs) or not are_ordinary(w.by.scale):
        return None
    column = zero.reshape(-1, *(1,) * (w.values.ndim - 1)).astype(np.int16)
    values = w.values.astype(np.int16) - column
    if values.min() >= -128 and values.max() <= 127:
        values = values.astype(np.int8)
    added = np.zeros(outputs, np.int32) if bias is None else bias.reshape(-1)
    if added.dtype not in (np.int32, np.float32) or added.size != outputs:
        return None
    return Filters(values, w.by.scale.reshape(-1), added)


def are_ordinary(scale: Array) -> bool:
    """True when all scales are finite and positive."""
    wide = scale.reshape(-1).astype(np.float64)
    return bool((np.isfinite(wide) & (wide > 0)).all())


def bias_codes(node: NodeContext, name: str, unit: Array) -> Array | None:
    """Return a bias in units of `unit`, the scales of the sums; None if it is unknown.

    Integers, unless the model has it as floats.
    """
    added = fixed(node, name)
    if added is None:
        return _float_bias(node, name, unit)
    if added.by.zero.any():
        return None
    if added.values.dtype != np.int32 or added.values.ndim > 1:
        return None
    same = added.by.scale.size in (1, unit.size) or unit.size == 1
    if not same or not np.allclose(added.by.scale, unit, rtol=1e-6, atol=0):
        return None
    return added.values


def _float_bias(node: NodeContext, name: str, unit: Array) -> Array | None:
    values = node.known_value(name)
    if values is None or values.dtype != np.float32 or values.ndim != 1:
        return None
    with np.errstate(over="ignore"):
        steps = (values.astype(np.float64) / unit.astype(np.float64)).astype(np.float32)
    return steps if bool(np.isfinite(steps).all()) else None


def convolve_codes(
    node: NodeContext,
    x: Coded,
    in_scale: np.float32,
    filters: Filters,
    window: ConvolutionAttrs,
    unit: Unit,
    bounds: tuple[int, int],
) -> str | None:
    """Add a quantised convolution and return its result; None if sums may be inexact.

    Sums that may exceed float32's exact range must stay within 28 bits, and each of two parts of
    the weights must have exact sums. Their sum is rounded once, as a 32-bit integer is when it
    becomes a float.
    """
    wide = filters.largest_sum(x) > EXACT
    if wide:
        high, low = (replace(filters, values=half) for half in in_parts(filters.values))
        high = replace(high, bias=np.zeros_like(high.bias))
        if max(part.largest_sum(x) for part in (high, low)) > EXACT:
            return None
        if filters.largest_sum(x) > WIDE:
            return None
    factor = np.asarray(in_scale * filters.scale / unit.scale, np.float32)
    weights = node.constant(filters.values)
    attrs = quantized_window(window, bounds)
    attrs = replace(attrs, taken=(float(x.low), float(x.high)), wide=wide)
    return sum_windows(node, x.tensor, weights, filters.bias, attrs, factor)


def quantized_window(
    window: ConvolutionAttrs, bounds: tuple[float, float] = (-inf, inf)
) -> QuantizedConvolutionAttrs:
    """Return the attributes of a quantised convolution whose results are clamped."""
    return QuantizedConvolutionAttrs(
        window.kernel,
        window.strides,
        window.dilations,
        window.pads,
        window.group,
        window.auto_pad,
        float(bounds[0]),
        float(bounds[1]),
    )


def sum_windows(
    node: NodeContext,
    x: str,
    weights: str,
    bias: Array,
    attrs: QuantizedConvolutionAttrs,
    factor: Array | float = 1.0,
    *,
    first: str = "",
) -> str:
    """Add a quantised convolution.

    Args:
        node: the node that it is a part of.
        x: whole numbers in float32.
        weights: whole numbers [O, C / group, ...], bytes where they are constant.
        bias: [O], in units of the sums.
        attrs: its attributes.
        factor: factor of the sums, before they are rounded and clamped: one, or [O].
        first: a part of the sums; may be absent.
    """
    factors = np.array(np.broadcast_to(factor, bias.shape), np.float32)
    offset = node.constant(bias.astype(np.float32))
    inputs = [x, weights, offset, first, node.constant(factors)]
    return node.emit("QuantizedConvolution", inputs, attrs)


def requantized_conv(node: NodeContext, op: Op, unit: Unit, bounds: tuple[int, int]) -> str | None:
    """Return the requantised result of a convolution of dequantised tensors; None if impossible."""
    w, attrs = fixed(node, op.inputs[1]), op.attrs
    in_scale = scale_of(node, op.inputs[0])
    if w is None or in_scale is None or not isinstance(attrs, ConvolutionAttrs):
        return None
    bias = None
    if len(op.inputs) > 2:
        bias = bias_codes(node, op.inputs[2], in_scale * w.by.scale)
        if bias is None:
            return None
    filters = filters_of(w, bias)
    x = carried_in(node, op.inputs[0], in_scale) if filters else None
    if filters is None or x is None:
        return None
    return convolve_codes(node, x, in_scale, filters, attrs, unit, bounds)
