"""Shapes and contents that every kernel must cope with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from vkmnn.cpu_fallback.registry import AnyArray

SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (1,),
    (0,),
    (7,),
    (3, 0, 5),
    (2, 3, 5, 7),
    (4, 8),
    (1, 64),
    (11, 13, 17),
    (3, 1021),
)
"""0-d, one element, empty, odd, prime, whole groups of four, and more than a workgroup."""


def f32(values: npt.ArrayLike) -> AnyArray:
    """Return nested lists of numbers as float32."""
    return np.array(values, np.float32)


def i32(values: npt.ArrayLike) -> AnyArray:
    """Return nested lists of numbers as int32."""
    return np.array(values, np.int32)


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> AnyArray:
    """Return normally distributed float32 numbers."""
    rng = np.random.default_rng([seed, *shape])
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def integers(*shape: int, seed: int = 0, low: int = -9, high: int = 9) -> AnyArray:
    """Return int32 numbers from `low` to `high`, both included."""
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(low, high, shape, endpoint=True, dtype=np.int32)


def whole(*shape: int, seed: int = 0, low: int = -4, high: int = 4) -> AnyArray:
    """Return small whole numbers as float32: their sums and products are exact in any order."""
    return integers(*shape, seed=seed, low=low, high=high).astype(np.float32)


def arrays(dtype: str, *, seed: int = 0) -> Iterator[AnyArray]:
    """Yield an array of every shape in `SHAPES`; `dtype` is a kernel's, "f32" or "i32"."""
    for shape in SHAPES:
        yield floats(*shape, seed=seed) if dtype == "f32" else integers(*shape, seed=seed)
