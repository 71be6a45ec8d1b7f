"""Clamps after clamps."""

from __future__ import annotations

import math

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import Activation, UnaryAttrs


def _bounds(activation: Activation) -> tuple[float, float] | None:
    if activation.kind == "RELU":
        return 0.0, math.inf
    if activation.kind == "CLIP" and activation.alpha <= activation.beta:
        return activation.alpha, activation.beta
    return None


def compose_clamps(first: Activation, second: Activation) -> Activation | None:
    """Return the clamp equivalent to `first` followed by `second`, None for other ops.

    A clamp is monotone, so clamping to [a, b] and then by `second` is clamping to
    [second(a), second(b)].
    """
    inner, outer = _bounds(first), _bounds(second)
    if inner is None or outer is None:
        return None
    low, high = (min(max(bound, outer[0]), outer[1]) for bound in inner)
    return Activation("RELU") if (low, high) == (0.0, math.inf) else Activation("CLIP", low, high)


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    attrs: UnaryAttrs


class MergeClamps(PatternPass[_Match]):
    """RELU and CLIP after RELU or CLIP: one clamp."""

    name = "merge_clamps"
    roots = frozenset({"UnaryOp"})

    def match(self, op: Op[UnaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        producer = index.producer_of_type(op.inputs[0], "UnaryOp")
        if producer is None:
            return NoMatch("no preceding UnaryOp")
        first, second = producer.attrs, op.attrs
        merged = compose_clamps(
            Activation(first.kind, first.alpha, first.beta),
            Activation(second.kind, second.alpha, second.beta),
        )
        if merged is None:
            return NoMatch("not two clamps")
        if not index.read_once(op.inputs[0]):
            return NoMatch("the value between the clamps is used elsewhere")
        return _Match(producer, UnaryAttrs(merged.kind, merged.alpha, merged.beta))

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        source = merged_source((match.producer, op))
        index.replace(
            op,
            Op(
                "UnaryOp",
                op.name,
                [match.producer.inputs[0]],
                list(op.outputs),
                match.attrs,
                source,
            ),
        )
