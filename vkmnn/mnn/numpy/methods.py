"""Operators and methods of Vars, attached to the class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.elementwise import FUNCTIONS as ELEMENTWISE
from vkmnn.mnn.expr.values import cast
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.guarded import guarded
from vkmnn.mnn.numpy import by_numpy, creation, maths, shaping

_OPERATORS = {
    "__add__": "add",
    "__floordiv__": "floordiv",
    "__mod__": "mod",
    "__mul__": "multiply",
    "__pow__": "pow",
    "__sub__": "subtract",
    "__truediv__": "divide",
}
_COMPARISONS = {
    "__eq__": "equal",
    "__ge__": "greater_equal",
    "__gt__": "greater",
    "__le__": "less_equal",
    "__lt__": "less",
    "__ne__": "not_equal",
}


def _operator(name: str, reverse: bool = False) -> Callable[[Any, Any], Any]:
    function = ELEMENTWISE[name]

    def call(self: Any, other: Any) -> Any:
        try:
            return function(other, self) if reverse else function(self, other)
        except ArgumentError:
            if not _is_value(other):
                return NotImplemented
            raise

    return call


def _is_value(other: Any) -> bool:
    return isinstance(other, Var | int | float | list | tuple) or hasattr(other, "__array__")


def _fill(self: Var, fill_value: Any) -> None:
    """Set all elements to one value."""
    self.replace(creation.full_like(self, fill_value))


_METHODS: dict[str, Any] = {
    **{
        name: maths.FUNCTIONS[name]
        for name in (
            *("all", "any", "argmax", "argmin", "argsort", "clip", "dot", "max", "mean", "min"),
            *("prod", "ptp", "round", "sort", "std", "sum", "var"),
        )
    },
    **{
        name: shaping.FUNCTIONS[name]
        for name in (
            *("nonzero", "ravel", "repeat", "reshape", "squeeze", "swapaxes", "transpose"),
        )
    },
    "argpartition": by_numpy.FUNCTIONS["argpartition"],
    "astype": cast,
    "copy": creation.copy,
    "fill": _fill,
    "flatten": shaping.ravel,
    "item": shaping.item,
    "searchsorted": by_numpy.FUNCTIONS["searchsorted"],
}


def attach() -> None:
    """Give Vars their operators and methods."""
    for special, name in {**_OPERATORS, **_COMPARISONS}.items():
        setattr(Var, special, _operator(name))
    for special, name in _OPERATORS.items():
        setattr(Var, special.replace("__", "__r", 1), _operator(name, True))
    for name in ("abs", "negative"):
        setattr(Var, {"abs": "__abs__", "negative": "__neg__"}[name], ELEMENTWISE[name])
    for name, method in _METHODS.items():
        setattr(Var, name, guarded(f"expr.Var.{name}", method))
    setattr(Var, "__hash__", object.__hash__)  # noqa: B010 - comparing defines it away
