"""Normalisations: LayerNorm, GroupNorm, LRN."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.cpu_fallback.reduction import Axes, total
from vkmnn.cpu_fallback.registry import (
    AnyArray,
    Inputs,
    cpu_execution,
    optional,
    required,
    widen,
)
from vkmnn.cpu_fallback.requantize import decoded, mean_of_codes
from vkmnn.cpu_fallback.unary import activate
from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import GroupNormAttrs, LayerNormAttrs, LRNAttrs
from vkmnn.shape.common import normalize_axis


def _normalise(
    x: AnyArray, axes: Axes, epsilon: float, *, rms: bool
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return the normalised tensor, the mean that was subtracted, and 1 / standard deviation.

    The moments are computed in float64: their errors would show in every element.
    """
    count = np.float64(prod(x.shape[axis] for axis in axes))
    mean = np.zeros_like(total(x, axes)) if rms else total(x, axes) / count
    centred = x - mean
    variance = total(np.square(centred), axes) / count
    inverse = 1.0 / np.sqrt(variance + epsilon)
    return centred * inverse, mean, inverse


@cpu_execution("LayerNorm")
def _layer_norm(op: Op[LayerNormAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = decoded(required(inputs, 0), attrs.of_input)
    axes = tuple(range(normalize_axis(attrs.axis, x.ndim), x.ndim))
    result, mean, inverse = _normalise(widen(x), axes, attrs.epsilon, rms=attrs.rms)
    scale, bias = optional(inputs, 1), optional(inputs, 2)
    if scale is not None:
        result = result * widen(scale)
    if bias is not None:
        result = result + widen(bias)
    result = result.astype(x.dtype)
    if attrs.ending:
        result = mean_of_codes(result, attrs.ending)
    return [result, mean.astype(np.float32), inverse.astype(np.float32)]


@cpu_execution("GroupNorm")
def _group_norm(op: Op[GroupNormAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = required(inputs, 0)
    batch, channels = x.shape[:2]
    groups = attrs.groups or max(channels, 1)
    if channels % groups:
        raise ShapeError(f"{channels} channels do not divide into {groups} groups")
    grouped = widen(x).reshape(batch, groups, channels // groups, *x.shape[2:])
    axes = tuple(range(2, grouped.ndim))
    result = _normalise(grouped, axes, attrs.epsilon, rms=False)[0].reshape(x.shape)
    channel = (-1,) + (1,) * (x.ndim - 2)
    scale, bias = optional(inputs, 1), optional(inputs, 2)
    if scale is not None:
        result = result * widen(scale).reshape(channel)
    if bias is not None:
        result = result + widen(bias).reshape(channel)
    return [activate(result, attrs.activation).astype(x.dtype)]


@cpu_execution("LRN")
def _lrn(op: Op[LRNAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = required(inputs, 0)
    wide = widen(x)
    # Beyond the channels there is nothing to add, however long the window is.
    before, after = (min(half, x.shape[1]) for half in ((attrs.size - 1) // 2, attrs.size // 2))
    widths = [(0, 0)] * x.ndim
    widths[1] = (before, after)
    squares = np.pad(np.square(wide), widths)
    summed = np.zeros_like(wide)
    for first in range(before + after + 1):
        summed = summed + squares[:, first : first + x.shape[1]]
    result = wide / (attrs.bias + attrs.alpha / attrs.size * summed) ** attrs.beta
    return [result.astype(x.dtype)]
