"""Transposes with a reshape between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import RESHAPES, reshape_target
from vkmnn.converter.passes.transpose import Perm, compose, permutation
from vkmnn.ir.graph import Dim, Op
from vkmnn.ir.ops import ReshapeAttrs, TransposeAttrs

Shape = Sequence[Dim]


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring axes before a reshape that become neighbouring axes after it."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def axis_groups(before: Shape, after: Shape) -> list[Group] | None:
    """Split a reshape into independent ones, in order; None if too few sizes are known.

    An axis of size 1 that only one side has is a separate group.
    """
    groups: list[Group] = []
    i = j = 0
    while i < len(before) or j < len(after):
        one = before[i] if i < len(before) else 1
        other = after[j] if j < len(after) else 1
        if i < len(before) and j < len(after) and one is not None and one == other:
            groups.append(Group((i,), (j,)))
            i, j = i + 1, j + 1
        elif i < len(before) and one == 1:
            groups.append(Group((i,), ()))
            i += 1
        elif j < len(after) and other == 1:
            groups.append(Group((), (j,)))
            j += 1
        else:
            ends = _group_ends(before, after, i, j)
            if ends is None:
                return None
            groups.append(Group(tuple(range(i, ends[0])), tuple(range(j, ends[1]))))
            i, j = ends
    return groups


def _group_ends(before: Shape, after: Shape, i: int, j: int) -> tuple[int, int] | None:
    """Return the ends of the group of axes from i and j: where the products agree."""
    first = second = 1
    while first != second or first == 1:
        grown, axis = (before, i) if first <= second else (after, j)
        dim = grown[axis] if axis < len(grown) else None
        if not isinstance(dim, int) or dim < 1:
            return None
        if grown is before:
            first, i = first * dim, i + 1
        else:
            second, j = second * dim, j + 1
    return i, j


@dataclass(frozen=True, slots=True)
class _Match:
    """A Transpose and a Reshape; `transpose_first` gives the order."""

    value: str
    perm: Perm
    target: tuple[int, ...]
    shape: tuple[Dim, ...]
    transpose_first: bool
    ops: tuple[Op, ...]


class MergeTransposesAroundReshape(PatternPass[_Match]):
    """Transpose, Reshape, Transpose: one Transpose, before or after the Reshape.

    It works if the Reshape splits or merges axes that one of the two keeps together.
    """

    name = "merge_transposes_around_reshape"
    roots = frozenset({"Transpose"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        reshape = index.producer_of_type(op.inputs[0], *RESHAPES)
        first = reshape and index.producer_of_type(reshape.inputs[0], "Transpose")
        if reshape is None or first is None:
            return NoMatch("no reshape between transposes")
        if not index.read_once(op.inputs[0]):
            return NoMatch("the reshaped value is used elsewhere")
        p, q = permutation(first, index), permutation(op, index)
        start, moved = index.shape(first.inputs[0]), index.shape(first.outputs[0])
        between, end = index.shape(op.inputs[0]), index.shape(op.outputs[0])
        if p is None or q is None or not start or not moved or not between or not end:
            return NoMatch("the shapes are not known")
        if len(p) != len(start) or len(q) != len(between):  # shape computation reports the error
            return NoMatch("the ranks differ")
        groups = axis_groups(moved, between)
        if groups is None:
            return NoMatch("the sizes are not known well enough")
        ops = (first, reshape, op)
        raised = _raise(groups, q)
        if raised is not None:
            perm = compose(p, raised)
            shape = tuple(start[axis] for axis in perm)
            target = reshape_target(shape, end)
            if target is not None:
                return _Match(first.inputs[0], perm, target, shape, True, ops)
        lowered = _lower(groups, p)
        if lowered is not None:
            order, perm = lowered
            shape = tuple(between[axis] for axis in order)
            target = reshape_target(start, shape)
            if target is not None:
                return _Match(first.inputs[0], compose(perm, q), target, shape, False, ops)
        return NoMatch("both transposes separate axes that the reshape joins or splits")

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        first, reshape, _ = match.ops
        target = index.add_constant(f"{reshape.name}_shape", np.array(match.target, np.int64))
        value = index.unique_name(op.inputs[0])
        known = index.info(match.value)
        if known is not None:
            index.add_info(value, known.dtype, match.shape)
        attrs, source = TransposeAttrs(match.perm), merged_source((first, op))
        outputs, name = list(op.outputs), index.unique_name(reshape.name)
        if match.transpose_first:
            new = [
                Op("Transpose", op.name, [match.value], [value], attrs, source),
                Op("Reshape", name, [value, target], outputs, ReshapeAttrs(), reshape.source),
            ]
        else:
            new = [
                Op("Reshape", name, [match.value, target], [value], ReshapeAttrs(), reshape.source),
                Op("Transpose", op.name, [value], outputs, attrs, source),
            ]
        index.replace(op, *new)


def _raise(groups: list[Group], perm: Perm) -> Perm | None:
    """Return the permutation before a reshape that is equivalent to `perm` after it."""
    # Removed axes of size 1 are best in front, among the batches.
    moved = [axis for group in groups if not group.after for axis in group.before]
    placed = 0
    while placed < len(perm):
        group = next(group for group in groups if perm[placed] in group.after)
        if perm[placed : placed + len(group.after)] != group.after:
            return None
        moved.extend(group.before)
        placed += len(group.after)
    return tuple(moved)


def _lower(groups: list[Group], perm: Perm) -> tuple[Perm, Perm] | None:
    """Return the movement after a reshape that is equivalent to `perm` before it.

    Returns:
        The axes of the old result in the order in which the new reshape gives them, and the
        permutation that puts them where they were.
    """
    kept = [group for group in groups if group.before]
    for group in kept:
        sources = [perm[axis] for axis in group.before]
        if any(after != before + 1 for before, after in pairwise(sources)):
            return None
    kept.sort(key=lambda group: perm[group.before[0]])
    new = [group for group in groups if not group.before]
    order = tuple(axis for group in (*new, *kept) for axis in group.after)
    return order, tuple(order.index(axis) for axis in range(len(order)))
