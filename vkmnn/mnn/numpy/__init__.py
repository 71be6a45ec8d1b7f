"""MNN.numpy: numpy's functions on Vars, with MNN's types and results.

Without an axis, reductions return numbers. Integers have 32 bits, floats are float32, comparisons
return integers. Functions that MNN only names are numpy's own.
"""

from __future__ import annotations

from math import inf, pi
from typing import Any, NoReturn

from vkmnn.mnn.expr.types import dtype
from vkmnn.mnn.guarded import all_guarded
from vkmnn.mnn.numpy import by_numpy, creation, linalg, maths, random, shaping
from vkmnn.mnn.numpy.methods import attach
from vkmnn.mnn.refused import refuse

uint8, int32, int64 = dtype.uint8, dtype.int, dtype.int64
float32, float64 = dtype.float, dtype.double
newaxis = None

FUNCTIONS: dict[str, Any] = all_guarded(
    "numpy",
    {**by_numpy.FUNCTIONS, **creation.FUNCTIONS, **maths.FUNCTIONS, **shaping.FUNCTIONS},
)
"""MNN.numpy's functions by name."""

globals().update(FUNCTIONS)

__all__ = [
    "float32",
    "float64",
    "inf",
    "int32",
    "int64",
    "linalg",
    "newaxis",
    "pi",
    "random",
    "uint8",
]
__all__ += [*FUNCTIONS]

attach()


def fill(self: Any, fill_value: Any) -> None:
    """Set all elements of a Var to one value."""
    self.fill(fill_value)


def __getattr__(name: str) -> NoReturn:
    """Raise for a missing name, with the reason."""
    refuse("numpy", name)
