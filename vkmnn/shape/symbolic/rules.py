"""The registries of symbolic rules, and their helpers.

A rule describes an op's results for all sizes. It is next to the op's size computer, and must agree
with it wherever both answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

from vkmnn.base.registry import Registry
from vkmnn.ir.graph import Dim, Op
from vkmnn.shape.common import Infos, Values
from vkmnn.shape.registry import COMPUTERS, SizeComputer
from vkmnn.shape.symbolic.facts import Concrete, Facts, Found, NamedShape

ShapeRule = Callable[[Op[Any], Facts], Sequence[Found]]
"""Returns the infos of an op's results from those of its inputs."""

ValueRule = Callable[[Op[Any], Facts], "NamedShape | None"]
"""Returns the known elements of an op's result."""

SHAPE_RULES: Registry[str, ShapeRule] = Registry("shape rule of")
VALUE_RULES: Registry[str, ValueRule] = Registry("value rule of")


def shape_rule(*op_types: str, exact: bool = False) -> Callable[[ShapeRule], ShapeRule]:
    """Register a function as the symbolic rule of these op types.

    Args:
        op_types: the op types.
        exact: the rule also serves as their size computer: given concrete sizes it determines
            everything, and raises ShapeError for those that it refuses.

    The function gets the op and the facts, and returns (element type, shape) of the outputs. A
    dimension is an int, a name, or None if unknown: then the result's dimension gets a new name,
    like sizes that are known only at run time. An op without a rule needs none: its size computer
    is used, with probes for the named sizes.

    Raises:
        PluginError: one of them has a rule already, or, with `exact`, a size computer.
    """

    def add(rule: ShapeRule) -> ShapeRule:
        if exact:
            COMPUTERS.register(*op_types)(_computer(rule))
        return SHAPE_RULES.register(*op_types)(rule)

    return add


def _computer(rule: ShapeRule) -> SizeComputer:
    @wraps(rule)
    def compute(op: Op[Any], inputs: Infos, values: Values) -> Sequence[Found]:
        return rule(op, Concrete(inputs, values))

    return cast("SizeComputer", compute)  # for concrete sizes everything is known


def value_rule(*op_types: str) -> Callable[[ValueRule], ValueRule]:
    """Register a rule for small integer vectors, from which shapes are computed.

    The function gets the op and the facts, and returns the elements of output 0, or None.

    Raises:
        PluginError: one of them has a rule already.
    """
    return VALUE_RULES.register(*op_types)


def is_absent(op: Op, place: int) -> bool:
    """True if an op has no such input."""
    return place >= len(op.inputs) or not op.inputs[place]


def broadcast(facts: Facts, *shapes: NamedShape | None) -> NamedShape | None:
    """Return the broadcast of shapes, with None for unknown dimensions."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(map(len, known), default=0)
    result: NamedShape = (1,) * rank
    for shape in known:
        padded = (1,) * (rank - len(shape)) + shape
        result = tuple(map(facts.algebra.broadcast, result, padded))
    return result


def with_dim(shape: NamedShape, axis: int, dim: Dim) -> NamedShape:
    """Return the shape with another size on one axis."""
    changed = list(shape)
    changed[axis] = dim
    return tuple(changed)


def like_first(op: Op, facts: Facts) -> list[Found]:
    """Return the rule of ops whose one result has the shape and type of input 0."""
    return [(facts.dtype(op), facts.shape(op))]


def same_values(op: Op, facts: Facts) -> NamedShape | None:
    """Return the rule of ops that keep the elements unchanged."""
    return facts.values(op, 0)
