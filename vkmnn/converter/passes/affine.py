"""Multiplications and additions by per-channel constants, into the op before them.

This covers BatchNorm after a convolution, Scale after Scale, a bias exported as a separate Add, and
the scaling of a convolution's or matrix product's result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.ops import (
    Activation,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    DynamicQuantizeConvolutionAttrs,
    DynamicQuantizeMatMulAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
    ScaleAttrs,
)

Vector = npt.NDArray[np.float64]
Fit = Callable[[Array], "Vector | None"]


_FARTHEST = 1024.0


@dataclass(frozen=True, slots=True)
class Channels:
    """The channel axis of a tensor, counted from the end, its size, and the tensor's rank.

    rank is None when unknown; then the axis is the last one.
    """

    axis: int
    size: int
    rank: int | None


@dataclass(frozen=True, slots=True)
class Affine:
    """value · scale + shift, then an activation; None stands for 1 and 0."""

    value: str
    scale: Vector | None
    shift: Vector | None
    activation: Activation


def channel_vector(array: Array, channels: Channels) -> Vector | None:
    """Return a constant as one value per channel, None if it has another form or broadcasts."""
    if array.dtype.kind != "f" or array.ndim > (1 if channels.rank is None else channels.rank):
        return None
    if array.size == 1:
        return np.full(channels.size, array.reshape(-1)[0], np.float64)
    if array.ndim < -channels.axis or array.size != channels.size:
        return None
    if array.shape[channels.axis] != channels.size:
        return None
    return array.reshape(-1).astype(np.float64)


def is_moderate(scale: Vector) -> bool:
    """Return whether storing a value before or after a scaling gives equal results.

    The step of 16-bit quantised values is a factor that decides on it: float16 cannot represent the
    values.
    """
    largest = float(np.abs(scale).max(initial=0.0))
    return largest == 0 or 1 / _FARTHEST <= largest <= _FARTHEST


def affine_operand(op: Op[Any], index: GraphIndex) -> str | NoMatch:
    """Return which input of a Scale or a BinaryOp with a constant is the variable one."""
    if op.type == "Scale":
        if index.constant(op.inputs[1]) is None or index.constant(op.inputs[2]) is None:
            return NoMatch("scale and bias are not constant")
        return op.inputs[0]
    if op.attrs.kind not in ("ADD", "SUB", "MUL", "DIV"):
        return NoMatch("not +, -, * or /")
    known = [index.constant(name) is not None for name in op.inputs]
    if known.count(True) != 1:
        return NoMatch("not one constant operand")
    if op.attrs.kind == "DIV" and known[0]:
        return NoMatch("the constant is the dividend")
    return op.inputs[known.index(False)]


def read_affine(op: Op[Any], index: GraphIndex, fit: Fit, rank: int | None) -> Affine | NoMatch:
    """Return the affine function of a Scale or BinaryOp.

    Args:
        op: the operator.
        index: the graph.
        fit: converts a constant with which the operand is combined to the required form, or returns
            None.
        rank: the operand's rank, None when unknown.
    """
    value = affine_operand(op, index)
    if isinstance(value, NoMatch):
        return value
    if isinstance(op.attrs, ScaleAttrs):
        if rank is None or rank < 2:
            return NoMatch("the rank is not known")
        scale, shift = (
            fit(index.constants[name].reshape(-1, *[1] * (rank - 2))) for name in op.inputs[1:]
        )
        if scale is None or shift is None:
            return NoMatch("scale and bias do not fit the channels")
        return Affine(value, scale, shift, op.attrs.activation)
    place = 1 - op.inputs.index(value)
    vector = fit(index.constants[op.inputs[place]])
    if vector is None:
        return NoMatch("the constant is not one value per channel")
    kind, activation = op.attrs.kind, op.attrs.activation
    if kind in ("MUL", "DIV") and not is_moderate(vector):
        return NoMatch("the factor is too far from 1 to rescale stored values")
    if kind == "MUL":
        return Affine(value, vector, None, activation)
    if kind == "DIV":
        if not vector.all():
            return NoMatch("it divides by zero")
        return Affine(value, 1.0 / vector, None, activation)
    if kind == "ADD":
        return Affine(value, None, vector, activation)
    if place == 1:
        return Affine(value, None, -vector, activation)
    return Affine(value, np.full_like(vector, -1.0), vector, activation)


# --- ops that absorb it ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
    """How an op absorbs an affine function of its result's channels.

    channels: the channel axis of its result, None when unknown.
    scale_weights: its weights with every output channel scaled; None when they are not constant.
    """

    channels: Callable[[Op[Any], GraphIndex], Channels | None]
    scale_weights: Callable[[Op[Any], GraphIndex, Vector], Array | None]


def _conv_channels(
    op: Op[ConvolutionAttrs] | Op[DeconvolutionAttrs] | Op[DynamicQuantizeConvolutionAttrs],
    index: GraphIndex,
) -> Channels | None:
    attrs, shape = op.attrs, index.static_shape(op.inputs[1])
    if shape is None:
        return None
    spatial = len(attrs.kernel)
    turned = isinstance(attrs, DeconvolutionAttrs)
    size = shape[1] * attrs.group if turned else shape[0]
    return Channels(-1 - spatial, size, 2 + spatial)


def _scale_conv(op: Op, index: GraphIndex, scale: Vector) -> Array | None:
    weights = index.constant(op.inputs[1])
    if weights is None:
        return None
    factors = scale.astype(weights.dtype)
    return np.multiply(weights, factors.reshape(-1, *[1] * (weights.ndim - 1)))


def _scale_deconv(op: Op[DeconvolutionAttrs], index: GraphIndex, scale: Vector) -> Array | None:
    weights = index.constant(op.inputs[1])
    if weights is None:
        return None
    group = op.attrs.group
    grouped = weights.reshape(group, -1, *weights.shape[1:])
    factors = scale.astype(weights.dtype).reshape(group, 1, -1, *[1] * (weights.ndim - 2))
    return np.multiply(grouped, factors).reshape(weights.shape)


def _matmul_channels(
    op: Op[MatMulAttrs] | Op[DynamicQuantizeMatMulAttrs], index: GraphIndex
) -> Channels | None:
    rank, right = index.rank(op.outputs[0]), index.shape(op.inputs[1])
    if rank == 0 or right is None or len(right) < 2:
        return None
    size = right[-2 if op.attrs.transpose_b else -1]
    return Channels(-1, size, rank) if isinstance(size, int) else None


def _scale_matmul(op: Op[MatMulAttrs], index: GraphIndex, scale: Vector) -> Array | None:
    right = index.constant(op.inputs[1])
    if right is None or right.ndim != 2:
        return None
    factors = scale.astype(right.dtype)
    return np.multiply(right, factors[:, None] if op.attrs.transpose_b else factors)


def _codes_channels(op: Op[MatMulNBitsAttrs], index: GraphIndex) -> Channels | None:
    return Channels(-1, op.attrs.columns, index.rank(op.outputs[0]))


def _scale_codes(op: Op, index: GraphIndex, scale: Vector) -> Array | None:
    return None  # a factor stays a separate op


def _scale_channels(op: Op, index: GraphIndex) -> Channels | None:
    rank, shape = index.rank(op.outputs[0]), index.static_shape(op.inputs[1])
    if rank is None or rank < 2 or shape is None or len(shape) != 1:
        return None
    return Channels(1 - rank, shape[0], rank)


def _scale_scale(op: Op, index: GraphIndex, scale: Vector) -> Array | None:
    factors = index.constant(op.inputs[1])
    return None if factors is None else np.multiply(factors, scale.astype(factors.dtype))


_TARGETS: dict[str, _Target] = {
    "Convolution": _Target(_conv_channels, _scale_conv),
    "Deconvolution": _Target(_conv_channels, _scale_deconv),
    "DynamicQuantizeConvolution": _Target(_conv_channels, _scale_codes),
    "DynamicQuantizeMatMul": _Target(_matmul_channels, _scale_codes),
    "MatMul": _Target(_matmul_channels, _scale_matmul),
    "MatMulNBits": _Target(_codes_channels, _scale_codes),
    "Scale": _Target(_scale_channels, _scale_scale),
}

_Attrs = (
    ConvolutionAttrs
    | DeconvolutionAttrs
    | DynamicQuantizeConvolutionAttrs
    | DynamicQuantizeMatMulAttrs
    | MatMulAttrs
    | MatMulNBitsAttrs
    | ScaleAttrs
)


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    weights: Array | None
    bias: Array | None
    attrs: _Attrs


class FoldAffine(PatternPass[_Match]):
    """Scale, or ADD, SUB, MUL, DIV by a per-channel constant, after an op with weights and a bias.

    y = act(s·(conv(x, w) + b) + t) becomes act(conv(x, s·w) + (s·b + t)). A factor that is the same
    for all channels of a matrix product becomes its alpha elsewhere, see `matmul_scale`.
    """

    name = "fold_affine"
    roots = frozenset({"BinaryOp", "Scale"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        value = affine_operand(op, index)
        if isinstance(value, NoMatch):
            return value
        producer = index.producer_of_type(value, *_TARGETS)
        if producer is None:
            return NoMatch("no preceding op with weights")
        if not index.read_once(value):
            return NoMatch("the preceding value is used elsewhere")
        attrs = producer.attrs
        if attrs.activation.kind != "NONE":
            return NoMatch("there is an activation in between")
        channels = _TARGETS[producer.type].channels(producer, index)
        if channels is None:
            return NoMatch("the number of channels is not known")
        affine = read_affine(
            op, index, lambda array: channel_vector(array, channels), channels.rank
        )
        if isinstance(affine, NoMatch):
            return affine
        return self._fold(producer, attrs, channels, affine, index)

    def _fold(
        self, producer: Op, attrs: _Attrs, channels: Channels, affine: Affine, index: GraphIndex
    ) -> _Match | NoMatch:
        scale, shift = affine.scale, affine.shift
        attrs = replace(attrs, activation=affine.activation)
        bias = index.constant(producer.inputs[2]) if len(producer.inputs) > 2 else None
        if bias is None and any(producer.inputs[2:3]):
            return NoMatch("the bias is not constant")
        if bias is not None and bias.shape != (channels.size,):
            return NoMatch("the bias is not one value per channel")
        weights: Array | None = None
        if scale is not None:
            if any(producer.inputs[3:4]):
                return NoMatch("a residual is added before the scaling")
            weights = _TARGETS[producer.type].scale_weights(producer, index, scale)
            if weights is None:
                return NoMatch("the weights are not constant")
        total: Vector | None = None if bias is None else bias.astype(np.float64)
        if total is not None and scale is not None:
            total = total * scale
        if shift is not None:
            total = shift if total is None else total + shift
        return _Match(producer, weights, total, attrs)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer = match.producer
        inputs = [*producer.inputs, "", ""][: max(3, len(producer.inputs))]
        if match.weights is not None:
            inputs[1] = index.add_constant(f"{producer.name}_weight", match.weights)
        if match.bias is not None:
            bias = match.bias.astype(_dtype(producer, op, index))
            inputs[2] = index.add_constant(f"{producer.name}_bias", bias)
        while not inputs[-1]:
            inputs.pop()
        source = merged_source((producer, op))
        outputs = list(op.outputs)
        index.replace(op, Op(producer.type, producer.name, inputs, outputs, match.attrs, source))


def _dtype(producer: Op, op: Op, index: GraphIndex) -> np.dtype[np.generic]:
    """The type of the constants that the ops work with; ONNX has one type for all of them."""
    return next(
        array.dtype
        for name in (*op.inputs, *producer.inputs[1:])
        if (array := index.constant(name)) is not None
    )
