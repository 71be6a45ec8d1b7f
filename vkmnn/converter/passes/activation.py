"""Activations into the op before them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.clamp import compose_clamps
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import RESHAPES
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    ACTIVATION_KINDS,
    Activation,
    BinaryAttrs,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    DynamicQuantizeConvolutionAttrs,
    DynamicQuantizeMatMulAttrs,
    GroupNormAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
    ScaleAttrs,
    UnaryAttrs,
)

FusedAttrs = (
    ConvolutionAttrs
    | DeconvolutionAttrs
    | DynamicQuantizeConvolutionAttrs
    | DynamicQuantizeMatMulAttrs
    | MatMulAttrs
    | MatMulNBitsAttrs
    | BinaryAttrs
    | ScaleAttrs
    | GroupNormAttrs
)
"""Attributes of the ops that apply an activation before they store their result."""


_WITH_RESIDUAL = (
    ConvolutionAttrs
    | DynamicQuantizeConvolutionAttrs
    | DynamicQuantizeMatMulAttrs
    | MatMulAttrs
    | MatMulNBitsAttrs
)
_MOVEMENT = (*RESHAPES, "Transpose", "DepthToSpace", "SpaceToDepth")
"""Ops that give every element of their input exactly once: functions of elements pass them."""


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    attrs: FusedAttrs
    movement: tuple[Op, ...]


class FuseActivation(PatternPass[_Match]):
    """A UnaryOp after an op that can apply it itself; a clamp may follow a clamp.

    Ops that only move elements may be in between.
    """

    name = "fuse_activation"
    roots = frozenset({"UnaryOp"})

    def match(self, op: Op[UnaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        activation = _as_activation(op.attrs)
        if activation is None:
            return NoMatch("not a function that ops apply before they store")
        value, movement = op.inputs[0], []
        producer = index.producer(value)
        while producer is not None and producer.type in _MOVEMENT and index.read_once(value):
            movement.append(producer)
            value = producer.inputs[0]
            producer = index.producer(value)
        if producer is None or not isinstance(producer.attrs, FusedAttrs):
            return NoMatch("the preceding op has no activation")
        if not index.read_once(value):
            return NoMatch("the value before the activation is used elsewhere")
        if not (index.is_float(op.outputs[0]) or index.is_float(op.inputs[0])):
            return NoMatch("not known to be of a floating-point type")
        if any(producer.inputs[3:4]) and _residual_comes_last(producer.attrs):
            return NoMatch("there is a residual in between")
        if producer.attrs.activation.kind != "NONE":
            clamp = compose_clamps(producer.attrs.activation, activation)
            if clamp is None:
                return NoMatch("the preceding op has another activation")
            activation = clamp
        attrs = replace(producer.attrs, activation=activation)
        return _Match(producer, attrs, tuple(reversed(movement)))

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer = match.producer
        # Tensors in between hold other values now, so they get new names.
        moved = [*match.movement, op]
        value = index.unique_name(producer.outputs[0]) if match.movement else op.outputs[0]
        inputs, source = list(producer.inputs), merged_source((producer, op))
        new: list[Op] = [Op(producer.type, producer.name, inputs, [value], match.attrs, source)]
        _copy_info(producer.outputs[0], value, index)
        for step, following in pairwise(moved):
            result = op.outputs[0] if following is op else index.unique_name(step.outputs[0])
            _copy_info(step.outputs[0], result, index)
            inputs = [value, *step.inputs[1:]]
            new.append(Op(step.type, step.name, inputs, [result], step.attrs, step.source))
            value = result
        index.replace(op, *new)


def _as_activation(attrs: UnaryAttrs) -> Activation | None:
    """Return the activation that is equivalent to an op with these attributes."""
    known = attrs.kind in ACTIVATION_KINDS
    return Activation(attrs.kind, attrs.alpha, attrs.beta) if known else None


def _residual_comes_last(attrs: FusedAttrs) -> bool:
    return isinstance(attrs, _WITH_RESIDUAL) and attrs.residual != "ADD_BEFORE"


def _copy_info(source: str, dest: str, index: GraphIndex) -> None:
    """Copy the shape and dtype of another tensor to a new one."""
    known = index.info(source)
    if known is not None and index.info(dest) is None:
        index.add_info(dest, known.dtype, known.shape)
