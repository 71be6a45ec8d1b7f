"""Geometry of the report's charts, in pixels; the template draws them as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vkmnn.testing.results import Entry

_EDGES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
_NAMES = ("exact", "≤ 0.1 %", "≤ 1 %", "≤ 3 %", "≤ 10 %", "≤ 30 %", "≤ 100 %")
_BAR_WIDTH, _BAR_GAP, _BARS_HEIGHT = 38, 6, 96
_SIDE, _MARGIN = 190, 8
_BAND_WIDTH, _BAND_REACH = 72, 2.0  # a ratio of 2 is at the edge


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram: the number of cases, and its label."""

    x: float
    y: float
    width: float
    height: float
    count: int
    name: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A variant's time: the baseline's on the x axis, the measured one on the y axis."""

    x: float
    y: float
    verdict: str
    text: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """Times against the baseline on logarithmic axes of `side` pixels."""

    side: float
    dots: list[Dot]
    ticks: list[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Band:
    """A ratio and its noise band on a logarithmic axis; 1 is in the middle of `width`."""

    width: float
    x: float
    low: float
    high: float


def histogram(entries: Sequence[Entry]) -> list[Bar]:
    """Count the cases by their error relative to the tolerance."""
    counts = [0] * len(_NAMES)
    for entry in entries:
        for case in entry.cases:
            error = float(case["error"])
            place = next((i for i, edge in enumerate(_EDGES) if error <= edge), len(_EDGES) - 1)
            counts[0 if error == 0 else place + 1] += 1
    tallest = max(counts) or 1
    bars = []
    for i, (count, name) in enumerate(zip(counts, _NAMES, strict=True)):
        height = max(2.0, _BARS_HEIGHT * count / tallest) if count else 0.0
        x = i * (_BAR_WIDTH + _BAR_GAP)
        bars.append(Bar(x, _BARS_HEIGHT - height, _BAR_WIDTH, round(height, 1), count, name))
    return bars


def scatter(entries: Sequence[Entry]) -> Scatter | None:
    """Place the times that have a baseline; None if there are none."""
    pairs = [
        (entry, entry.time.median_us, entry.time.median_us / entry.against.ratio)
        for entry in entries
        if entry.time and entry.against and entry.against.verdict != "new"
    ]
    positive = [max(value, 1e-3) for _, now, before in pairs for value in (now, before)]
    if not positive:
        return None
    low, high = math.log10(min(positive)) - 0.1, math.log10(max(positive)) + 0.1

    def place(value: float) -> float:
        part = (math.log10(max(value, 1e-3)) - low) / (high - low)
        return round(_MARGIN + part * (_SIDE - 2 * _MARGIN), 1)

    dots = [
        Dot(
            place(before),
            _SIDE - place(now),
            entry.against.verdict if entry.against else "",
            f"{entry.variant}: {time_text(now)}, baseline {time_text(before)}",
        )
        for entry, now, before in pairs
    ]
    steps = [10.0**power * digit for power in range(-3, 8) for digit in (1, 2, 5)]
    ticks = [step for step in steps if low <= math.log10(step) <= high]
    if len(ticks) > 4:
        ticks = [step for step in ticks if f"{step:e}"[0] == "1"] or ticks[::2]
    return Scatter(_SIDE, dots, [(place(step), time_text(step)) for step in ticks])


def band(entry: Entry) -> Band | None:
    """Place a variant's ratio and its noise band; None without a baseline."""
    if entry.against is None or entry.against.verdict == "new":
        return None

    def place(ratio: float) -> float:
        part = math.log(min(max(ratio, 1 / _BAND_REACH), _BAND_REACH)) / math.log(_BAND_REACH)
        return round(_BAND_WIDTH / 2 * (1 + 0.94 * part), 1)

    against = entry.against
    return Band(_BAND_WIDTH, place(against.ratio), place(against.low), place(against.high))


def time_text(microseconds: float) -> str:
    """Write a time with at most three digits."""
    for limit, factor, unit in ((1e3, 1.0, "µs"), (1e6, 1e-3, "ms"), (math.inf, 1e-6, "s")):
        if microseconds < limit:
            return f"{microseconds * factor:.3g} {unit}"
    return f"{microseconds} µs"
