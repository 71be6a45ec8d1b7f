"""Activations into the op before them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vkmnn.converter.passes.base import PatternPass, Refusal, merged_source
from vkmnn.converter.passes.clamp import compose_clamps
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    ACTIVATION_KINDS,
    Activation,
    BinaryAttrs,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    GroupNormAttrs,
    MatMulAttrs,
    ScaleAttrs,
    UnaryAttrs,
)

FusedAttrs = (
    ConvolutionAttrs | DeconvolutionAttrs | MatMulAttrs | BinaryAttrs | ScaleAttrs | GroupNormAttrs
)
"""Attributes of the ops that apply an activation before they store their result."""


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    attrs: FusedAttrs


class FuseActivation(PatternPass[_Match]):
    """UnaryOp after an op that can apply an activation itself; a clamp may follow a clamp."""

    name = "fuse_activation"
    roots = frozenset({"UnaryOp"})

    def match(self, op: Op, index: GraphIndex) -> _Match | Refusal:
        unary = op.attrs
        assert isinstance(unary, UnaryAttrs)
        if unary.kind not in ACTIVATION_KINDS:
            return Refusal("not a function that ops apply before they store")
        producer = index.producer(op.inputs[0])
        if producer is None or not isinstance(producer.attrs, FusedAttrs):
            return Refusal("the op before has no activation")
        if not index.read_once(op.inputs[0]):
            return Refusal("the value before the activation is used elsewhere")
        if not (index.is_float(op.outputs[0]) or index.is_float(op.inputs[0])):
            return Refusal("not known to be of a floating-point type")
        activation = Activation(unary.kind, unary.alpha, unary.beta)
        if producer.attrs.activation.kind != "NONE":
            clamp = compose_clamps(producer.attrs.activation, activation)
            if clamp is None:
                return Refusal("the op before has another activation")
            activation = clamp
        return _Match(producer, replace(producer.attrs, activation=activation))

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        index.replace(
            op,
            Op(
                match.producer.type,
                match.producer.name,
                list(match.producer.inputs),
                list(op.outputs),
                match.attrs,
                merged_source((match.producer, op)),
            ),
        )
