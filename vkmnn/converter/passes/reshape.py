"""Reshapes of reshapes, and reshapes whose target only looks dynamic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Dim, Op
from vkmnn.ir.ops import ReshapeAttrs

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Types of the ops that change the shape only."""


def reshape_target(
    before: Sequence[Dim] | None, after: Sequence[Dim] | None
) -> tuple[int, ...] | None:
    """Return a constant target that reshapes `before` to `after`, None if there is none.

    Dimensions at the same axis in both are kept (0); one more may be known only by name and is
    deduced (-1).
    """
    if before is None or after is None or 0 in after:
        return None
    target = []
    for axis, dim in enumerate(after):
        kept = dim is not None and axis < len(before) and before[axis] == dim
        target.append(0 if kept else dim if isinstance(dim, int) else -1)
    return tuple(target) if target.count(-1) <= 1 else None


class SimplifyReshapes(PatternPass["tuple[int, ...]"]):
    """Makes computed reshape targets constant, if the known shapes allow it."""

    name = "simplify_reshapes"
    roots = frozenset({"Reshape"})

    def match(self, op: Op, index: GraphIndex) -> tuple[int, ...] | NoMatch:
        if index.constant(op.inputs[1]) is not None:
            return NoMatch("the target is constant")
        target = reshape_target(index.shape(op.inputs[0]), index.shape(op.outputs[0]))
        return NoMatch("more than one dimension is unknown") if target is None else target

    def rewrite(self, op: Op, match: tuple[int, ...], index: GraphIndex) -> None:
        shape = index.add_constant(f"{op.name}_shape", np.array(match, np.int64))
        inputs, outputs = [op.inputs[0], shape], list(op.outputs)
        index.replace(op, Op("Reshape", op.name, inputs, outputs, ReshapeAttrs(), op.source))


class MergeReshapes(PatternPass["tuple[Op, tuple[int, ...]]"]):
    """Reshape, Flatten, Squeeze or Unsqueeze after another of them: one Reshape."""

    name = "merge_reshapes"
    roots = frozenset(RESHAPES)

    def match(self, op: Op, index: GraphIndex) -> tuple[Op, tuple[int, ...]] | NoMatch:
        producer = index.producer_of_type(op.inputs[0], *RESHAPES)
        if producer is None:
            return NoMatch("no preceding reshape")
        target = reshape_target(index.shape(producer.inputs[0]), index.shape(op.outputs[0]))
        if target is None:
            return NoMatch("the shapes are not known well enough")
        return producer, target

    def rewrite(self, op: Op, match: tuple[Op, tuple[int, ...]], index: GraphIndex) -> None:
        producer, target = match
        shape = index.add_constant(f"{op.name}_shape", np.array(target, np.int64))
        inputs, source = [producer.inputs[0], shape], merged_source((producer, op))
        index.replace(op, Op("Reshape", op.name, inputs, list(op.outputs), ReshapeAttrs(), source))
