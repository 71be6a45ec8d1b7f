"""Selection of the next token, on the device or on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vkmnn.base.records import dataclass
from vkmnn.ir import Array

CANDIDATES = (64, 1024)
"""Number of likely tokens that are sorted, unless all are."""


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """Sampling on the device.

    Attributes:
        uniforms: random numbers from 0 to 1, one for every step, by the number of rows before it.
        inverse_temperature: factor of the logits.
        top_k: number of likeliest tokens to sample from; 0 for all.
        top_p: sample only from the likeliest tokens whose probabilities add up to this;
            infinite for all.
    """

    uniforms: Array
    inverse_temperature: float
    top_k: int
    top_p: float

    def candidates(self, vocabulary: int) -> int:
        """Return how many tokens are sorted: one of few numbers, so that there are few plans."""
        fits = (size for size in CANDIDATES if 0 < self.top_k <= size < vocabulary)
        return next(fits, vocabulary)


HostSampler: TypeAlias = Callable[[Array, int], int]
"""Chooses the token after this many others from logits; asked again, it chooses the same."""

StepSampler: TypeAlias = "DeviceSampling | HostSampler | None"
"""Selection of tokens on the host; None is greedy. A sequence keeps the same object."""
