"""Interleaved timing: candidates alternate, so a machine that slows down affects all equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call over the rounds of a benchmark."""

    median: float
    best: float
    worst: float


def interleave(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 15, warm_up: int = 2
) -> dict[str, Timing]:
    """Time each candidate `rounds` times, alternating, after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        for call in candidates.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(median(s), min(s), max(s)) for name, s in seconds.items()}
