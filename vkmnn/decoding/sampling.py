"""Selection of the next token, on the device or on the host."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeAlias

from vkmnn.base.records import dataclass
from vkmnn.ir import Array


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """Sampling on the device.

    Attributes:
        uniforms: random numbers from 0 to 1, one for every step, by the number of rows before it.
        inverse_temperature: factor of the logits.
        top_k: number of likeliest tokens to sample from; 0 for all.
        top_p: sample only from the likeliest tokens whose probabilities add up to this;
            infinite for all.
        min_p: sample only from tokens at least this many times as probable as the likeliest.
    """

    uniforms: Array
    inverse_temperature: float
    top_k: int
    top_p: float
    min_p: float

    @property
    def settings(self) -> tuple[float, float, float, float]:
        """The numbers that the op SampleToken reads."""
        return self.inverse_temperature, self.top_k or inf, self.top_p, self.min_p


LIKELIEST = 1.0, 1.0, inf, 0.0
"""The same for sequences that take the likeliest token."""

HostSampler: TypeAlias = Callable[[Array, int], int]
"""Chooses the token after this many others from logits; asked again, it chooses the same."""

StepSampler: TypeAlias = "DeviceSampling | HostSampler | None"
"""Selection of tokens on the host; None is greedy. A sequence keeps the same object."""
