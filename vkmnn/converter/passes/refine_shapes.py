"""Shapes that follow from the ops, and shape arithmetic that gives the same for all inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from vkmnn.converter.passes.base import IndexedPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.symbolic import MAX_ELEMENTS, SHAPE_RULES, VALUE_RULES, Facts, Shape
from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Dim, Op

log = logging.getLogger(__name__)


class RefineShapes(IndexedPass):
    """Completes `graph.infos`, and makes shape vectors that never change constants.

    Dimensions that are not known as ints get names, the same name for the same value
    ("2*batch"), so that other passes can prove shapes equal. An unnamed dimension of a graph input
    is named after the input.
    """

    name = "refine_shapes"

    def apply(self, index: GraphIndex) -> int:
        """Refine; return how many infos and ops changed."""
        graph = index.graph
        facts = Facts(graph.constants)
        changes = 0
        for info in graph.inputs:
            shape = _named(info.name, info.shape)
            facts.dtypes[info.name], facts.shapes[info.name] = info.dtype, shape
            if index.shape(info.name) != shape:
                index.add_info(info.name, info.dtype, shape)
                changes += 1
        for name, array in graph.constants.items():
            facts.dtypes[name] = DType.from_numpy(array.dtype)
            facts.shapes[name] = array.shape
            if array.dtype.kind in "iub" and array.ndim <= 1 and array.size <= MAX_ELEMENTS:
                facts.values[name] = tuple(int(value) for value in array.flat)
        for op in index.ops():
            changes += _learn(op, facts, index)
            if _make_constant(op, facts, index):
                changes += 1
        return changes


def _named(name: str, shape: Shape | None) -> Shape | None:
    """Give the unknown dimensions of a tensor names of their own."""
    if shape is None:
        return None
    return tuple(f"{name}[{axis}]" if dim is None else dim for axis, dim in enumerate(shape))


def _learn(op: Op, facts: Facts, index: GraphIndex) -> int:
    """Work out the shapes and values of an op's results; return how many infos got better."""
    rule, value_rule = SHAPE_RULES.get(op.type), VALUE_RULES.get(op.type)
    found = _found(rule, op, facts) if rule is not None else ()
    better = 0
    for place, name in enumerate(op.outputs):
        if not name:
            continue
        dtype, shape = found[place] if found and place < len(found) else (None, None)
        known = index.info(name)
        if known is not None:
            dtype, shape = known.dtype, _merged(shape, known.shape)
        shape = _named(name, shape)
        facts.dtypes[name], facts.shapes[name] = dtype, shape
        if dtype is not None and (known is None or known.shape != shape):
            index.add_info(name, dtype, shape)
            better += 1
    (name, *_) = op.outputs
    value = _found(value_rule, op, facts) if value_rule is not None else None
    dtype = facts.dtypes.get(name)
    if (
        value is not None
        and len(value) <= MAX_ELEMENTS
        and dtype is not None
        and not dtype.is_float
    ):
        facts.values[name] = value
    return better


R = TypeVar("R")


def _found(rule: Callable[[Op, Facts], R], op: Op, facts: Facts) -> R | None:
    """Return what a rule says; nothing for an op that is wrong."""
    try:
        return rule(op, facts)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Shape computation will say what is wrong; here it is only that nothing is known.
        log.debug("%s '%s': %s", op.type, op.name, error)
        return None


def _merged(found: Shape | None, known: Shape | None) -> Shape | None:
    """Join two descriptions of one shape: ints first, then names that were worked out."""
    if found is None or known is None or len(found) != len(known):
        return known if found is None else found if known is None else known
    return tuple(map(_merged_dim, found, known))


def _merged_dim(found: Dim, known: Dim) -> Dim:
    if isinstance(known, int):
        return known
    return known if found is None else found


def _make_constant(op: Op, facts: Facts, index: GraphIndex) -> bool:
    """Replace an op by the value of its result, if that is known."""
    (name, *_) = op.outputs
    value, shape, info = facts.values.get(name), facts.shapes.get(name), index.info(name)
    if value is None or shape is None or info is None or name in index.constants:
        return False
    if not all(isinstance(dim, int) for dim in value) or len(shape) > 1 or len(op.outputs) != 1:
        return False
    array = np.array(value, info.dtype.numpy)
    index.make_constant(op, [array if shape else array.reshape(())])
    return True
