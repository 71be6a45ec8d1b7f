"""Evidence that the rows of a batch do not depend on each other: other rows, and comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_RELATIVE, _ABSOLUTE = 2e-2, 1e-5
"""Rows computed together may differ by rounding, in float16 too; rows that mix differ by more."""


def other_than(feeds: Mapping[str, Array]) -> dict[str, Any] | None:
    """Return feeds with other values that the network accepts as well.

    These are the same values in another order, and smaller if they are floats: 1 for all zeros.
    None if they are equal to the given ones: all integers or texts of every input are the same.
    """
    made: dict[str, Any] = {}
    for name, array in feeds.items():
        turned = array.reshape(-1)[::-1].reshape(array.shape)
        if array.dtype.kind == "f":
            turned = turned * array.dtype.type(0.5) if array.any() else np.ones_like(array)
        made[name] = np.logical_not(array) if array.dtype.kind == "b" else turned
    same = all(np.array_equal(made[name], array) for name, array in feeds.items())
    return None if same else made


def are_close(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    """Return whether two lists of outputs agree but for rounding."""
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.kind not in "fc":
            if not np.array_equal(one, other):
                return False
        else:
            finite = np.abs(other[np.isfinite(other)])
            scale = float(finite.max(initial=0))
            most = _ABSOLUTE + 1e-2 * scale
            if not np.allclose(one, other, rtol=_RELATIVE, atol=most, equal_nan=True):
                return False
    return True
