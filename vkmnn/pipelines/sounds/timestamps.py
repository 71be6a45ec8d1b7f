"""Whisper's tokens of time: which may follow, and the pieces of text between them.

Source: Whisper (Radford et al., 2022), sections 2.3 and 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array

STEP = 0.02
"""Seconds from one token of time to the next."""
Piece = tuple[float, float, list[int]]
"""Start and end in seconds, and tokens."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The rules of a model's tokens of time.

    Attributes:
        plain: the token that stands for "without times"; those of times follow it.
        ends: the token that ends a text.
        never: tokens that a text never has.
        not_first: tokens that it does not begin with.
        latest_first: how many steps after the beginning the first time may be; 0 for any.
    """

    plain: int
    ends: int
    never: frozenset[int] = frozenset()
    not_first: frozenset[int] = frozenset()
    latest_first: int = 0

    @property
    def first(self) -> int:
        """The token of the time 0."""
        return self.plain + 1

    def guide(self, logits: Array, there: Sequence[int]) -> Array:
        """Return logits without the tokens that may not follow.

        Args:
            logits: float32 [vocabulary].
            there: the tokens so far.
        """
        first, size = self.first, len(logits)
        banned = np.zeros(size, bool)
        banned[[one for one in (*self.never, self.plain) if one < size]] = True
        times = [one for one in there if one >= first]
        if not there:
            banned[[one for one in self.not_first if one < size]] = True
            banned[:first] = True  # a text begins with a time
            if self.latest_first:
                banned[first + self.latest_first + 1 :] = True
        elif there[-1] >= first:
            if len(there) < 2 or there[-2] >= first:
                banned[first:] = True  # a pair, or the beginning: text follows
            else:
                banned[: self.ends] = True  # a piece has ended: a time, or the end
        if times:
            closes = there[-1] >= first and len(there) > 1 and there[-2] < first
            banned[first : times[-1] + (0 if closes else 1)] = True
        allowed = without(logits, banned)
        before, after = allowed[:first], allowed[first:]
        if np.isfinite(after).any() and np.isfinite(before).any():
            top = after.max()
            if top + np.log(np.exp(after - top).sum()) > before.max():
                allowed[:first] = -np.inf
        return allowed


def without(logits: Array, banned: Any) -> Array:
    """Return logits without some tokens."""
    made: Array = logits.copy()
    made[banned] = -np.inf
    return made


def pieces_of(
    tokens: Sequence[int], first: int, seconds: float
) -> tuple[list[Piece], float | None]:
    """Return the pieces of text between tokens of time.

    Args:
        tokens: those of a text.
        first: the token of the time 0.
        seconds: the duration of the sound, where a piece has no end.

    Returns:
        The pieces; and the time up to which the sound is written down, None for all of it. Pieces
        that begin there are unfinished: their ends lie beyond the sound.
    """
    pieces: list[Piece] = []
    start, inner = 0.0, list[int]()
    for token in tokens:
        if token < first:
            inner.append(token)
            continue
        time = min((token - first) * STEP, seconds)
        if inner:
            pieces.append((start, max(start, time), inner))
            inner = []
        start = time
    if inner:  # its end lies beyond
        pieces.append((start, seconds, inner))
        return pieces, start if len(pieces) > 1 and start > 0 else None
    closed = len(tokens) > 1 and tokens[-1] >= first and tokens[-2] >= first
    return pieces, start if closed and start > 0 else None
