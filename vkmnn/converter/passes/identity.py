"""Removal of ops that return their input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkmnn.converter.passes.base import NoMatch, PatternPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Array, Dim, Op
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    BlockAttrs,
    CastAttrs,
    ReshapeAttrs,
    SplitAttrs,
    TransposeAttrs,
)

_TO_THE_END = 2**31 - 1
"""Slice ends from here on mean "to the end": exporters write the largest int32 or int64."""

Rule = Callable[[Op[Any], GraphIndex], "str | NoMatch"]

NEUTRAL_ELEMENTS: dict[str, tuple[float | bool, bool]] = {
    "ADD": (0.0, True),
    "SUB": (0.0, False),
    "MUL": (1.0, True),
    "DIV": (1.0, False),
    "POW": (1.0, False),
    "AND": (True, True),
    "OR": (False, True),
}
"""Neutral element, and whether it may also be the left operand."""


def _identity(op: Op, index: GraphIndex) -> str | NoMatch:
    return op.inputs[0]


def _same_shape(op: Op, index: GraphIndex) -> str | NoMatch:
    if index.same_shape(op.inputs[0], op.outputs[0]):
        return op.inputs[0]
    return NoMatch("the shape changes, or is not known well enough")


def _reshape(op: Op[ReshapeAttrs], index: GraphIndex) -> str | NoMatch:
    target, shape = index.ints(op.inputs[1]), index.shape(op.inputs[0])
    if target is not None and shape is not None and len(target) == len(shape):
        kept = [
            (size == 0 and not op.attrs.allowzero) or size == dim
            for size, dim in zip(target, shape, strict=True)
        ]
        # One -1 may stand for the remaining axis.
        if all(kept) or (kept.count(False) == 1 and target[kept.index(False)] == -1):
            return op.inputs[0]
    return _same_shape(op, index)


def _flatten(op: Op[AxisAttrs], index: GraphIndex) -> str | NoMatch:
    if index.rank(op.inputs[0]) == 2 and op.attrs.axis in (1, -1):
        return op.inputs[0]
    return NoMatch("the shape changes, or is not known well enough")


def _transpose(op: Op[TransposeAttrs], index: GraphIndex) -> str | NoMatch:
    perm = op.attrs.perm
    if perm and perm == tuple(range(len(perm))):
        return op.inputs[0]
    if not perm and (index.rank(op.inputs[0]) or 9) <= 1:
        return op.inputs[0]
    return NoMatch("axes move")


def _cast(op: Op[CastAttrs], index: GraphIndex) -> str | NoMatch:
    if index.dtype(op.inputs[0]) is op.attrs.to:
        return op.inputs[0]
    return NoMatch("the dtype changes, or is not known")


def _single(op: Op[AxisAttrs | SplitAttrs], index: GraphIndex) -> str | NoMatch:
    if len(op.inputs if op.type == "Concat" else op.outputs) != 1:
        return NoMatch("more than one part")
    shape, axis = index.shape(op.inputs[0]), op.attrs.axis
    if shape is not None and not -len(shape) <= axis < len(shape):
        return NoMatch("there is no such axis")
    if any(op.inputs[1:]) and (not shape or index.ints(op.inputs[1]) != (shape[axis],)):
        return NoMatch("its part may be another one")
    return op.inputs[0]


def _slice(op: Op, index: GraphIndex) -> str | NoMatch:
    starts, ends = index.ints(op.inputs[1]), index.ints(op.inputs[2])
    optional = [index.ints(name) if name else () for name in op.inputs[3:]]
    if starts is None or ends is None or None in optional:
        return NoMatch("its bounds are not constant")
    axes, steps = ([*optional, (), ()])[:2]
    if set(starts) != {0} or (steps and set(steps) != {1}):
        return NoMatch("it leaves elements out")
    shape = index.shape(op.inputs[0])
    named = axes or range(len(starts))
    if len(named) != len(ends) or (shape and not all(-len(shape) <= a < len(shape) for a in named)):
        return NoMatch("its axes do not fit")
    for axis, end in zip(named, ends, strict=True):
        dim = shape[axis] if shape else None
        if end < _TO_THE_END and not (isinstance(dim, int) and end >= dim):
            return NoMatch("it leaves elements out, or the dimension is not known")
    return op.inputs[0]


def _expand(op: Op, index: GraphIndex) -> str | NoMatch:
    target, shape = index.ints(op.inputs[1]), index.shape(op.inputs[0])
    if target is not None and shape is not None and len(target) <= len(shape):
        kept = shape[len(shape) - len(target) :]
        if all(size in (1, dim) for size, dim in zip(target, kept, strict=True)):
            return op.inputs[0]
    return _same_shape(op, index)


def _all_equal(position: int, value: int) -> Rule:
    def rule(op: Op, index: GraphIndex) -> str | NoMatch:
        sizes = index.ints(op.inputs[position])
        if sizes is not None and all(size == value for size in sizes):
            return op.inputs[0]
        return NoMatch("it adds or leaves out elements, or its sizes are not constant")

    return rule


def _block(op: Op[BlockAttrs], index: GraphIndex) -> str | NoMatch:
    return op.inputs[0] if op.attrs.block_size == 1 else NoMatch("blocks are larger than 1")


def _binary(op: Op[BinaryAttrs], index: GraphIndex) -> str | NoMatch:
    attrs = op.attrs
    if attrs.kind not in NEUTRAL_ELEMENTS or attrs.activation.kind != "NONE":
        return NoMatch("no neutral element, or an activation")
    neutral, commutes = NEUTRAL_ELEMENTS[attrs.kind]
    for value, other in (op.inputs, op.inputs[::-1]) if commutes else (op.inputs,):
        constant = index.constant(other)
        if constant is None or not _is_uniform(constant, neutral):
            continue
        if keeps_shape(constant.shape, index.shape(value)):
            return value
        return NoMatch("the constant broadcasts, or the shape is not known well enough")
    return NoMatch("no neutral element")


def _is_uniform(array: Array, value: float | bool) -> bool:
    # The first element decides nearly always, and spares a pass over large weights.
    return bool(array.size and array.flat[0] == value and np.all(array == value))


def keeps_shape(constant: Sequence[int], shape: Sequence[Dim] | None) -> bool:
    """True when broadcasting a tensor of this shape with the constant provably gives this shape."""
    if not constant:
        return True
    if shape is None or len(constant) > len(shape):
        return False
    kept = shape[len(shape) - len(constant) :]
    return all(size in (1, dim) for size, dim in zip(constant, kept, strict=True))


RULES: dict[str, Rule] = {
    "Identity": _identity,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Cast": _cast,
    "Concat": _single,
    "Split": _single,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _all_equal(1, 1),
    "Pad": _all_equal(1, 0),
    "DepthToSpace": _block,
    "SpaceToDepth": _block,
    "BinaryOp": _binary,
}
"""Rules by type that return the input an op is equal to, if any."""


class RemoveNoOps(PatternPass[str]):
    """Removes ops that provably return one of their inputs.

    One whose result is a graph output stays when its input is a graph input, a constant or another
    output: the output's name has to exist.
    """

    name = "remove_no_ops"
    roots = frozenset(RULES)

    def match(self, op: Op, index: GraphIndex) -> str | NoMatch:
        value = RULES[op.type](op, index)
        if isinstance(value, str) and not index.can_forward(op, value):
            return NoMatch("it gives a graph output its name")
        return value

    def rewrite(self, op: Op, match: str, index: GraphIndex) -> None:
        index.forward(op, match)
