"""MNN.numpy.random."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.types import dtype
from vkmnn.mnn.expr.values import axes_of, cast
from vkmnn.mnn.expr.var import Var

_numbers = np.random.default_rng()


def random(shape: Any) -> Var:
    """Return numbers from 0 to 1."""
    return Var(_numbers.random(axes_of(shape), np.float32))


def rand(*args: Any) -> Var:
    """Return numbers from 0 to 1, in a shape of several numbers."""
    return random(args[0] if len(args) == 1 and not isinstance(args[0], int) else list(args))


randn = rand  # MNN's are evenly distributed, too


def randint(low: Any, high: Any = None, size: Any = None, dtype: Any = dtype.int) -> Var:
    """Return integers from `low` up to `high`, which is excluded; below `low` if it is alone."""
    if not isinstance(low, int | np.integer) or not isinstance(high, int | np.integer | None):
        raise ArgumentError("randint takes two integers as limits")
    first, last = (0, low) if high is None else (low, high)
    if last <= first:
        raise ArgumentError(f"there are no integers from {first} up to {last}")
    sizes = [1] if size is None else axes_of(size)
    return cast(Var(_numbers.integers(first, last, sizes, np.int32)), dtype)
