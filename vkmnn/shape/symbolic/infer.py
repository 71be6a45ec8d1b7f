"""Inference of an op's results by its symbolic rule or its size computer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vkmnn.errors import VkmnnError
from vkmnn.ir.graph import Op
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.probing import probed
from vkmnn.shape.symbolic.rules import SHAPE_RULES, VALUE_RULES
from vkmnn.shape.symbolic.trials import tried_types

log = logging.getLogger(__name__)

R = TypeVar("R")


def infer(op: Op, facts: Facts) -> Sequence[Found]:
    """Return the infos of an op's results for all sizes; their number may differ from the op's.

    An op type without a rule is inferred through its size computer. If neither gives an answer,
    because names must equal the sizes of other axes or ranks are unknown, trials determine the
    element types. Nothing is known about an invalid op: the session's shape computation will report
    the error.
    """
    found = _tried(SHAPE_RULES.get(op.type) or probed, op, facts)
    return found or _tried(tried_types, op, facts) or ()


def infer_values(op: Op, facts: Facts) -> NamedShape | None:
    """Return the elements of output 0 as far as they are known, or None."""
    rule = VALUE_RULES.get(op.type)
    return None if rule is None else _tried(rule, op, facts)


def _tried(rule: Callable[[Op[Any], Facts], R], op: Op, facts: Facts) -> R | None:
    try:
        return rule(op, facts)
    except (VkmnnError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        log.debug("%s '%s': %s", op.type, op.name, error)
        return None
