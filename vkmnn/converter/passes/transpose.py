"""Transposes of transposes."""

from __future__ import annotations

from typing import Any

from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import TransposeAttrs

Perm = tuple[int, ...]


def permutation(op: Op[Any], index: GraphIndex) -> Perm | None:
    """Return the permutation of a Transpose, None when it reverses an unknown number of axes."""
    perm: Perm = op.attrs.perm
    if perm:
        return perm
    rank = index.rank(op.inputs[0])
    return None if rank is None else tuple(reversed(range(rank)))


def compose(first: Perm, second: Perm) -> Perm:
    """Return the permutation that does `first`, then `second`."""
    return tuple(first[axis] for axis in second)


class MergeTransposes(PatternPass["tuple[Op, Perm]"]):
    """Transpose after Transpose: one, or none if the second undoes the first."""

    name = "merge_transposes"
    roots = frozenset({"Transpose"})

    def match(self, op: Op, index: GraphIndex) -> tuple[Op, Perm] | NoMatch:
        producer = index.producer_of_type(op.inputs[0], "Transpose")
        if producer is None:
            return NoMatch("no preceding Transpose")
        first, second = permutation(producer, index), permutation(op, index)
        if first is None or second is None:
            return NoMatch("the rank is not known")
        if len(first) != len(second):  # shape computation reports the error
            return NoMatch("the ranks differ")
        return producer, compose(first, second)

    def rewrite(self, op: Op, match: tuple[Op, Perm], index: GraphIndex) -> None:
        producer, perm = match
        value = producer.inputs[0]
        if perm == tuple(range(len(perm))) and index.can_forward(op, value):
            index.forward(op, value)
            return
        attrs, source = TransposeAttrs(perm), merged_source((producer, op))
        index.replace(op, Op("Transpose", op.name, [value], list(op.outputs), attrs, source))
