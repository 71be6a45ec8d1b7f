"""Multiplications and additions by per-channel constants, into the convolution after them."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.affine import (
    Channels,
    Vector,
    affine_operand,
    channel_vector,
    read_affine,
)
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.ops import ConvolutionAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    value: str
    weights: Array
    bias: Array | None


class FoldAffineInput(PatternPass[_Match]):
    """Scale, or ADD, SUB, MUL, DIV by a per-channel constant, before a Convolution.

    conv(s·x + t, w) + b = conv(x, w·s) + (b + Σ w·t). A shift can be absorbed only without padding:
    the zeros of the padding are not shifted.
    """

    name = "fold_affine_input"
    roots = frozenset({"Convolution"})

    def match(self, op: Op[ConvolutionAttrs], index: GraphIndex) -> _Match | NoMatch:
        attrs = op.attrs
        producer = index.producer_of_type(op.inputs[0], "Scale", "BinaryOp")
        if producer is None:
            return NoMatch("no preceding scaling")
        value = affine_operand(producer, index)
        if isinstance(value, NoMatch):
            return value
        if not index.read_once(op.inputs[0]):
            return NoMatch("the scaled value is used elsewhere")
        weights, rank = index.constant(op.inputs[1]), 2 + len(attrs.kernel)
        if weights is None:
            return NoMatch("the weights are not constant")
        if index.rank(value) != rank:
            return NoMatch("the constant may raise the rank")
        channels = Channels(1 - rank, weights.shape[1] * attrs.group, rank)
        if (index.shape(value) or ())[1] != channels.size:
            return NoMatch("the constant may broadcast the channels")
        affine = read_affine(
            producer, index, lambda array: channel_vector(array, channels), channels.rank
        )
        if isinstance(affine, NoMatch):
            return affine
        if affine.activation.kind != "NONE":
            return NoMatch("there is an activation in between")
        if affine.shift is not None and affine.shift.any() and not _is_unpadded(attrs):
            return NoMatch("the convolution pads the shifted tensor")
        bias = index.constant(op.inputs[2]) if any(op.inputs[2:3]) else None
        if bias is None and any(op.inputs[2:3]):
            return NoMatch("the bias is not constant")
        return _fold(producer, value, weights, bias, affine.scale, affine.shift, attrs.group)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        inputs = [*op.inputs, ""][: max(3, len(op.inputs))]
        inputs[0] = match.value
        inputs[1] = index.add_constant(f"{op.name}_weight", match.weights)
        if match.bias is not None:
            inputs[2] = index.add_constant(f"{op.name}_bias", match.bias)
        while not inputs[-1]:
            inputs.pop()
        source = merged_source((match.producer, op))
        index.replace(op, Op(op.type, op.name, inputs, list(op.outputs), op.attrs, source))


def _is_unpadded(attrs: ConvolutionAttrs) -> bool:
    return attrs.auto_pad == "VALID" or (attrs.auto_pad == "NOTSET" and not any(attrs.pads))


def _fold(
    producer: Op,
    value: str,
    weights: Array,
    bias: Array | None,
    scale: Vector | None,
    shift: Vector | None,
    group: int,
) -> _Match:
    """Return the weights and bias that scale and shift the input channels themselves."""
    grouped = weights.reshape(group, -1, *weights.shape[1:]).astype(np.float64)
    per_input = (group, 1, -1, *[1] * (weights.ndim - 2))
    if shift is not None:
        added = (grouped * shift.reshape(per_input)).reshape(len(weights), -1).sum(axis=1)
        bias = np.asarray(added if bias is None else bias + added, weights.dtype)
    if scale is not None:
        grouped = grouped * scale.reshape(per_input)
    return _Match(producer, value, grouped.reshape(weights.shape).astype(weights.dtype), bias)
