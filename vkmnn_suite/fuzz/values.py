"""Random values: the ranges that operators need, and arrays drawn from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkmnn.ir import Array

_SPECIAL_RATE = 0.03
"""Fraction of the tensors that contain values such as NaN and infinity, if allowed."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The values that a tensor may have.

    Attributes:
        low, high: both may occur.
        distinct: all values differ, as needed for sorting without ties.
        special: NaN, infinities and extremes may occur.
        gap: no value is nearer to zero than this.
        reach: limit of the computed values that fit, beyond low and high.
    """

    low: float = -4.0
    high: float = 4.0
    distinct: bool = False
    special: bool = True
    gap: float = 0.0
    reach: float = 0.0

    def fits(self, array: Array) -> bool:
        """True when an array could have been drawn."""
        if array.dtype == np.bool_:
            return not self.distinct
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        if finite.size != wide.size and not self.special:
            return False
        low, high = min(self.low, -self.reach), max(self.high, self.reach)
        if finite.size and (finite.min() < low or finite.max() > high):
            return False
        if self.gap and finite.size and np.abs(finite).min() < self.gap:
            return False
        return not self.distinct or np.unique(wide).size == wide.size


ANY = Spread(reach=1e4)
FINITE = Spread(special=False, reach=1e3)
UNIT = Spread(-1.0, 1.0, special=False)
POSITIVE = Spread(0.1, 4.0, special=False)
NONZERO = Spread(-4.0, 4.0, special=False, gap=0.25)
DISTINCT = Spread(-8.0, 8.0, distinct=True, special=False, reach=1e3)


def draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], spread: Spread) -> Array:
    """Draw an array."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.asarray(rng.random(shape) < rng.choice([0.1, 0.5, 0.9]))
    if kind.kind in "iu":
        return _integers(rng, kind, shape, spread)
    return _floats(rng, kind, shape, spread)


def _integers(
    rng: np.random.Generator, kind: np.dtype[Any], shape: tuple[int, ...], spread: Spread
) -> Array:
    low = max(int(np.ceil(spread.low)), int(np.iinfo(kind).min))
    high = max(low, min(int(np.floor(spread.high)), int(np.iinfo(kind).max)))
    size = int(np.prod(shape))
    if spread.distinct:
        first = max(int(np.iinfo(kind).min), -(size // 2))
        values = first + rng.permutation(size)
        return np.asarray(values).reshape(shape).astype(kind)
    values = rng.integers(low, high, shape, endpoint=True)
    if spread.gap:
        values = np.where(values == 0, max(1, low), values)
    return np.asarray(values).astype(kind)


def _floats(
    rng: np.random.Generator, kind: np.dtype[Any], shape: tuple[int, ...], spread: Spread
) -> Array:
    low, high = spread.low, spread.high
    if spread.distinct:
        size = int(np.prod(shape))
        steps = (rng.permutation(size) + 0.5) / max(size, 1)
        return np.asarray(low + (high - low) * steps).reshape(shape).astype(kind)
    style = rng.random()
    values = np.asarray(rng.uniform(low, high, shape))
    if style < 0.3:  # ties, whole numbers and halves
        values = np.clip(np.round(values * 2) / 2, low, high)
    elif style < 0.5:
        middle, width = (low + high) / 2, (high - low) / 2
        values = np.asarray(np.clip(middle + width / 3 * rng.standard_normal(shape), low, high))
    elif style < 0.6 and low <= 0 <= high:
        values = np.where(rng.random(shape) < 0.5, 0.0, values)
        values = np.where(rng.random(shape) < 0.2, -0.0, values)
    if spread.gap:
        values = np.where(np.abs(values) < spread.gap, max(spread.gap, low), values)
    array = np.asarray(values).astype(kind)
    if spread.special and rng.random() < _SPECIAL_RATE:
        largest = float(np.finfo(kind).max) if kind == np.float16 else 1e30
        extremes = np.array([np.nan, np.inf, -np.inf, largest, -largest, 0.0, -0.0]).astype(kind)
        some = rng.choice(extremes, shape)
        array = np.where(rng.random(shape) < 0.2, some, array)
    return np.asarray(array)
