"""Where the time of a network goes, op by op."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from vkmnn.ir import Array

if TYPE_CHECKING:
    from vkmnn.core.backend import Timing
    from vkmnn.core.pipeline import Pipeline

_COPY = "Copy"


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """One step of the plan: a dispatch on a device, a copy to host memory, or a numpy execution.

    `name` is the op's, `source` the model's node that it came from, `microseconds` the median,
    `choice` tells who chose the kernel: "rule" or "tuned"; "" where there was no choice.
    """

    name: str
    type: str
    source: str
    backend: str
    kernel: str
    microseconds: float
    choice: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of one plan in microseconds, medians over `runs` runs; `str()` gives a table.

    Attributes:
        entries: every step in running order. On a device, the time of a step runs from the end of
            the one before to its own end, so it includes the wait at a barrier between them; a
            software device stops at every timestamp, so that short steps look longer.
        main: the type of the backend that was asked first.
        runs: how many runs were measured.
        gpu_us: all steps on the device together; 0 when the numpy backend runs everything.
        wall_us: one whole run without timestamps, from arrays to arrays.
        python_us: the part of `wall_us` that is neither submit and wait nor a numpy execution.
    """

    entries: tuple[ProfileEntry, ...]
    main: str
    runs: int
    gpu_us: float
    wall_us: float
    python_us: float

    def __iter__(self) -> Iterator[ProfileEntry]:
        """Iterate over the steps in running order."""
        return iter(self.entries)

    @property
    def total_us(self) -> float:
        """All steps together, on all backends."""
        return sum(entry.microseconds for entry in self.entries)

    def totals(self, key: str) -> list[tuple[str, int, float]]:
        """Return (value, number of steps, microseconds) by a field of the entries, slowest first.

        Args:
            key: "name", "type", "source", "backend" or "kernel".
        """
        sums: dict[str, tuple[int, float]] = {}
        for entry in self.entries:
            value: str = getattr(entry, key)
            count, spent = sums.get(value, (0, 0.0))
            sums[value] = (count + 1, spent + entry.microseconds)
        rows = [(value, count, spent) for value, (count, spent) in sums.items()]
        return sorted(rows, key=lambda row: -row[2])

    def __str__(self) -> str:
        """Return a summary and a table of all steps, slowest first."""
        summary = (
            f"{len(self.entries)} steps, median of {self.runs} runs: GPU {self.gpu_us:.0f} µs, "
            f"wall {self.wall_us:.0f} µs, Python {self.python_us:.0f} µs"
        )
        total = self.total_us or 1.0
        width = max((len(entry.type) for entry in self.entries), default=0)
        rows = (
            f"  {100 * entry.microseconds / total:5.1f} %  {entry.microseconds:10.1f} µs  "
            f"{entry.backend:<7} {entry.type:<{width}}  {entry.name}  [{entry.kernel}]"
            for entry in sorted(self.entries, key=lambda entry: -entry.microseconds)
        )
        return "\n".join([summary, *rows])

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the steps, laid end to end, as a trace for chrome://tracing or Perfetto (JSON).

        Source: "Trace Event Format", complete ("X") and metadata ("M") events.
        """
        threads = {backend: number for number, (backend, _, _) in enumerate(self.totals("backend"))}
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": backend}}
            for backend, number in threads.items()
        ]
        now = 0.0
        for entry in self.entries:
            events.append(
                {
                    "name": entry.name,
                    "cat": entry.type,
                    "ph": "X",
                    "ts": now,
                    "dur": entry.microseconds,
                    "pid": 0,
                    "tid": threads[entry.backend],
                    "args": {"kernel": entry.kernel, "type": entry.type, "source": entry.source},
                }
            )
            now += entry.microseconds
        trace = {"traceEvents": events, "displayTimeUnit": "ms"}
        Path(path).write_text(json.dumps(trace), encoding="utf-8")


def measure(plan: Pipeline, timed: Pipeline, feeds: Mapping[str, Array], runs: int) -> Profile:
    """Profile a plan.

    Args:
        plan: the plan as it runs always; whole runs are timed on it.
        timed: the same plan with backends that time their steps.
        feeds: one array per graph input.
        runs: how many runs to measure, after one that is not.
    """
    walls, overheads = [], []
    plan.execute(feeds)
    for _ in range(runs):
        start = time.perf_counter_ns()
        plan.execute(feeds)
        wall = (time.perf_counter_ns() - start) / 1000
        walls.append(wall)
        overheads.append(wall - sum(segment.busy_us for segment in plan.segments))
    rows: list[list[tuple[str, Timing]]] = []
    timed.execute(feeds)
    for _ in range(runs):
        timed.execute(feeds)
        rows.append(timed.timings())
    commands = {command.op.name: command for command in timed.commands}
    entries = []
    for samples in zip(*rows, strict=True):
        backend, step = samples[0]
        command = commands.get(step.op)
        entries.append(
            ProfileEntry(
                name=step.op or "copy to host",
                type=command.op.type if command else _COPY,
                source=command.op.source if command else "",
                backend=backend,
                kernel=step.kernel,
                microseconds=median(timing.microseconds for _, timing in samples),
                choice=step.choice,
            )
        )
    return Profile(
        tuple(entries),
        timed.main,
        runs,
        median(_device_us(row, timed.backup) for row in rows),
        median(walls),
        median(overheads),
    )


def _device_us(row: Sequence[tuple[str, Timing]], backup: str) -> float:
    return sum(timing.microseconds for backend, timing in row if backend != backup)
