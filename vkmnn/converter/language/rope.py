"""Rotary embeddings: the frequencies of each form, and tables of cosines and sines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.ir import Array

FORMS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of queries and keys.

    Attributes:
        width: elements of a head that are rotated, in halves.
        base: base of the frequencies.
        form: one of `FORMS`.
        factor: the factor by which the context is stretched.
        original: the context before that; 0 if unknown.
        low, high: llama3: factors of frequencies between which it changes.
        fast, slow: yarn: turns within the original context between which it changes.
        whole: yarn: whether the limits are rounded to whole frequencies.
        attention: factor of cosines and sines; None for the form's own.
        short, long: divisors of the frequencies, up to the original context, and beyond it.
    """

    width: int
    base: float
    form: str = "default"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True
    attention: float | None = None
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether texts beyond the original context use other frequencies."""
        return self.form == "dynamic" or (self.form == "longrope" and self.long != self.short)

    def tables(self, positions: int, long: bool = False) -> tuple[Array, Array]:
        """Return cosines and sines, float32 [positions, width / 2].

        Args:
            positions: how many.
            long: for texts longer than the original context. Where the form asks for the length
                of a text, it is `positions`.
        """
        frequencies = self.frequencies(positions if long else 0)
        angles = np.outer(np.arange(positions, dtype=np.float64), frequencies)
        scale = self.scale()
        cos, sin = (np.asarray(part(angles) * scale, np.float32) for part in (np.cos, np.sin))
        return cos, sin

    def frequencies(self, length: int = 0) -> npt.NDArray[np.float64]:
        """Return the angles of position 1, [width / 2].

        Args:
            length: length of the sequence, if it is longer than the original context; else 0.
        """
        places = np.arange(0, self.width, 2, dtype=np.float64) / self.width
        base = self.base
        if self.form == "dynamic" and length:
            stretched = self.factor * length / self.original - (self.factor - 1)
            base *= stretched ** (self.width / max(self.width - 2, 1))
        plain: npt.NDArray[np.float64] = base**-places
        if self.form == "linear":
            return plain / self.factor
        if self.form == "llama3":
            plain = self._by_wavelength(plain)
        if self.form == "yarn":
            plain = self._by_ramp(plain)
        if self.form == "longrope":
            return plain / np.array(self.long if length else self.short, np.float64)
        return plain

    def scale(self) -> float:
        """Return the factor of cosines and sines."""
        if self.attention is not None:
            return self.attention
        if self.form == "yarn" and self.factor > 1:
            return 0.1 * math.log(self.factor) + 1
        if self.form == "longrope" and self.factor > 1:
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original))
        return 1.0

    def _by_wavelength(self, plain: Any) -> Any:
        """Divide low frequencies, leave high ones, and mix in between (Llama 3.1)."""
        turns = self.original * plain / (2 * math.pi)  # within the original context
        share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return (1 - share) * plain / self.factor + share * plain

    def _by_ramp(self, plain: Any) -> Any:
        """Divide frequencies by the number of turns within the original context (YaRN)."""

        def place(turns: float) -> float:
            ratio = self.original / (turns * 2 * math.pi)
            return self.width * math.log(ratio) / (2 * math.log(self.base))

        low, high = place(self.fast), place(self.slow)
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.width - 1)
        high = high + 0.001 if low == high else high
        kept = 1 - np.clip((np.arange(plain.size) - low) / (high - low), 0, 1)
        return plain / self.factor * (1 - kept) + plain * kept
