"""Parts of Vars: `x[key]` and `x[key] = value`."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.cells import Cell


def cells_of(key: Any) -> list[Cell]:
    """Return the cells of the Vars in a key."""
    parts = key if isinstance(key, tuple) else (key,)
    return [part._cell for part in parts if hasattr(part, "_cell")]


def take(array: Array, key: Any, arrays: tuple[Array, ...]) -> Array:
    """Return a part of an array; `arrays` stand for the Vars in the key."""
    return np.asarray(array[_numpy_key(array, key, arrays)])


def put(array: Array, key: Any, arrays: tuple[Array, ...], value: Array) -> Array:
    """Return a copy of an array in which a part has another value.

    Raises:
        ArgumentError: the array holds integers, the value fractions.
    """
    if array.dtype.kind in "iu" and value.dtype.kind == "f" and (value != np.trunc(value)).any():
        raise ArgumentError(
            f"a Var of {array.dtype} does not accept fractions",
            hint="convert it first, with x.astype(expr.float)",
        )
    made: Array = array.copy()
    made[_numpy_key(array, key, arrays)] = value.astype(array.dtype)
    return made


def _numpy_key(array: Array, key: Any, arrays: tuple[Array, ...]) -> Any:
    remaining = iter(arrays)
    if isinstance(key, tuple):
        return tuple(_plain(next(remaining) if hasattr(part, "_cell") else part) for part in key)
    part = _plain(next(remaining) if hasattr(key, "_cell") else key)
    if isinstance(part, np.ndarray) and part.ndim and _is_mask(part, array.shape):
        return part.astype(bool)
    return part


def _plain(part: Any) -> Any:
    if isinstance(part, list):
        return np.asarray(part) if part else np.zeros(0, np.int32)
    if isinstance(part, np.ndarray) and part.dtype.kind == "f":
        raise ArgumentError(f"an index is an integer, got {part.dtype}")
    return part


def _is_mask(part: Array, shape: tuple[int, ...]) -> bool:
    """Tell whether an array of integers is a comparison's result, as MNN tells it."""
    return (
        part.dtype != np.bool_ and part.shape == shape and bool(((part == 0) | (part == 1)).all())
    )
