"""Time of a network, op by op."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.base.elements import FLOATS
from vkmnn.base.records import dataclass
from vkmnn.base.whole_files import replacing
from vkmnn.core.backend import MemoryUse
from vkmnn.core.timeline import CALLS, PYTHON, Span, timeline, trace_events
from vkmnn.errors import plural
from vkmnn.ir import Array, HostGraphAttrs

if TYPE_CHECKING:
    from vkmnn.core.backend import Timing
    from vkmnn.core.execution import Command
    from vkmnn.core.host_part import HostPart
    from vkmnn.core.plan import Plan
    from vkmnn.core.tensor import Tensor

_COPY = "Copy"


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A step of the plan: a dispatch on a device, a copy to host memory, or a numpy execution.

    `name` is the op's, `source` its node in the model, `microseconds` the median, `choice` says who
    chose the kernel: "rule" or "tuned"; "" without a choice. `flops` and `nbytes` are of the whole
    op, which may take several steps: its floating-point operations, and the bytes that it reads and
    writes, each tensor once. `overflowed`: a value that fits float32 became infinite in float16;
    see `on_overflow`.
    """

    name: str
    type: str
    source: str
    backend: str
    kernel: str
    microseconds: float
    choice: str = ""
    flops: int = 0
    nbytes: int = 0
    overflowed: bool = False


@dataclass(frozen=True, slots=True)
class OpTime:
    """All steps of one op; `kernel` is the longest step's; for the rest see `ProfileEntry`."""

    name: str
    type: str
    kernel: str
    steps: int
    microseconds: float
    flops: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of one plan in microseconds, medians over `runs` runs; `str()` gives a table.

    Attributes:
        entries: every step in running order. On a device, the time of a step runs from the end of
            the one before to its own end, so it includes the wait at a barrier between them; a
            software device stops at every timestamp, so that short steps look longer.
        main: the type of the backend that was offered ops first.
        runs: how many runs were measured.
        gpu_us: all steps on the device together; 0 when the numpy backend runs everything.
        wall_us: one whole run without timestamps, from arrays to arrays.
        python_us: the part of `wall_us` that is neither submit and wait nor a numpy execution.
        timeline: the timeline of one run with timestamps, the one of median length.
        memory: the device memory of the plan.
    """

    entries: tuple[ProfileEntry, ...]
    main: str
    runs: int
    gpu_us: float
    wall_us: float
    python_us: float
    timeline: tuple[Span, ...] = ()
    memory: MemoryUse = field(default_factory=MemoryUse)

    def __iter__(self) -> Iterator[ProfileEntry]:
        """Iterate over the steps in running order."""
        return iter(self.entries)

    @property
    def total_us(self) -> float:
        """All steps together, on all backends."""
        return sum(entry.microseconds for entry in self.entries)

    def ops(self) -> list[OpTime]:
        """Return the ops in running order, each with all its steps."""
        groups: dict[str, list[ProfileEntry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.name, []).append(entry)
        result = []
        for name, steps in groups.items():
            longest = max(steps, key=lambda step: step.microseconds)
            spent = sum(step.microseconds for step in steps)
            work = longest.flops, longest.nbytes
            result.append(OpTime(name, longest.type, longest.kernel, len(steps), spent, *work))
        return result

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

    @property
    def away_us(self) -> float:
        """All steps that do not run on the main backend, copies excluded."""
        away = (one for one in self.entries if one.backend != self.main and one.type != _COPY)
        return sum(one.microseconds for one in away)

    @property
    def crossings_us(self) -> float:
        """What the host spends on copies between backends, in the run of the timeline."""
        copies = sum(one.microseconds for one in self.entries if one.type == _COPY)
        return copies + self.host().get("hand over", 0.0)

    def host(self) -> dict[str, float]:
        """Return the microseconds that the host spent in the run of the timeline, by activity.

        "write inputs", "submit", "wait", "hand over" between segments, "read outputs". While the
        host waits, the device works; the rest is the host's own time.
        """
        spent: dict[str, float] = {}
        for span in self.timeline:
            if span.track in (PYTHON, CALLS):
                spent[span.name] = spent.get(span.name, 0.0) + span.microseconds
        return spent

    def __str__(self) -> str:
        """Return a summary and a table of all steps, slowest first."""
        total = self.total_us or 1.0
        width = max((len(entry.type) for entry in self.entries), default=0)
        rows = (
            f"  {100 * entry.microseconds / total:5.1f} %  {entry.microseconds:10.1f} µs  "
            f"{entry.backend:<7} {entry.type:<{width}}  {entry.name}  [{entry.kernel}]"
            f"{'  overflows in float16' if entry.overflowed else ''}"
            for entry in sorted(self.entries, key=lambda entry: -entry.microseconds)
        )
        return "\n".join([self._summary(), *rows])

    def _summary(self) -> str:
        return (
            f"{plural(len(self.entries), 'step')}, median of {plural(self.runs, 'run')}: GPU "
            f"{self.gpu_us:.0f} µs, wall {self.wall_us:.0f} µs, Python {self.python_us:.0f} µs"
        )

    def __repr__(self) -> str:
        """Return the summary; `str()` lists the steps."""
        return f"<vkmnn.Profile: {self._summary()}>"

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as a trace for https://ui.perfetto.dev or chrome://tracing (JSON).

        One track for Python, one for its calls into the device, one for the steps of each backend.
        """
        details = [asdict(entry) for entry in self.entries]
        events = trace_events(self.timeline, details, self.main)
        trace = {"traceEvents": events, "displayTimeUnit": "ms"}
        with replacing(Path(path)) as file:
            file.write(json.dumps(trace).encode())


def measure(plan: Plan, timed: Plan, feeds: Mapping[str, Array], runs: int) -> Profile:
    """Profile a plan.

    Args:
        plan: the plan in normal use, on which whole runs are timed.
        timed: the same plan with backends that time their steps.
        feeds: one array per graph input.
        runs: number of runs to measure, after one warm-up run.
    """
    from statistics import median

    walls, overheads = [], []
    plan.execute(feeds)
    for _ in range(runs):
        start = time.perf_counter_ns() / 1000
        plan.execute(feeds)
        wall = time.perf_counter_ns() / 1000 - start
        walls.append(wall)
        overheads.append(wall - sum(segment.busy_us for segment in plan.segments))
    rows: list[list[tuple[str, Timing]]] = []
    lines: list[tuple[float, tuple[Span, ...]]] = []
    timed.execute(feeds)
    for _ in range(runs):
        start = time.perf_counter_ns() / 1000
        timed.execute(feeds)
        end = time.perf_counter_ns() / 1000
        rows.append(timed.timings())
        lines.append((end - start, timeline(timed.owned_segments, start, end)))
    commands = {command.op.name: command for command in timed.commands}
    overflowed = {name for segment in timed.segments for name in segment.overflowed()}
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
                flops=command.flops if command else 0,
                nbytes=_nbytes(command) if command else 0,
                overflowed=step.op in overflowed,
            )
        )
    return Profile(
        tuple(entries),
        timed.main,
        runs,
        median(_device_us(row, timed.backup) for row in rows),
        median(walls),
        median(overheads),
        sorted(lines, key=lambda line: line[0])[len(lines) // 2][1],
        timed.memory(),
    )


def measure_host(part: HostPart, values: Mapping[str, object], runs: int, main: str) -> Profile:
    """Profile a host step.

    Args:
        part: the step.
        values: its inputs.
        runs: number of runs to measure.
        main: the type of the backend that was asked first.
    """
    from statistics import median

    spent = []
    for _ in range(runs):
        part(values)
        spent.append(part.busy_us)
    took = median(spent)
    first, engine = part.ops[0], part.engine
    kinds = dict.fromkeys(op.attrs.kind for op in part.ops if isinstance(op.attrs, HostGraphAttrs))
    entry = ProfileEntry(first.name, "+".join(kinds), first.source, engine, engine, took)
    span = Span(engine, first.name, 0.0, took, 0)
    return Profile((entry,), main, runs, 0.0, took, 0.0, (span,))


def joined(profiles: Sequence[Profile], main: str, runs: int) -> Profile:
    """Return one profile for any number of steps that run in sequence."""
    if len(profiles) == 1:
        return profiles[0]
    entries: list[ProfileEntry] = []
    spans: list[Span] = []
    wall = 0.0
    for profile in profiles:
        for span in profile.timeline:
            step = None if span.step is None else span.step + len(entries)
            spans.append(replace(span, start_us=span.start_us + wall, step=step))
        entries += profile.entries
        wall += profile.wall_us
    uses = [profile.memory for profile in profiles]
    memory = MemoryUse(
        sum(use.activations for use in uses),
        sum(use.lower_bound for use in uses),
        sum(use.constants for use in uses),
        sum(use.io for use in uses),
    )
    return Profile(
        tuple(entries),
        main,
        runs,
        sum(profile.gpu_us for profile in profiles),
        wall,
        sum(profile.python_us for profile in profiles),
        tuple(spans),
        memory,
    )


def _nbytes(command: Command) -> int:
    """Return the bytes that an op reads and writes; a pure copy reads no more than it writes."""
    read = [_size(tensor) for tensor in dict.fromkeys(command.inputs) if tensor is not None]
    written = sum(map(_size, command.outputs))
    return written + (sum(read) if command.flops else min(sum(read), written))


def _size(tensor: Tensor) -> int:
    each = tensor.dtype.numpy.itemsize
    if tensor.codes is not None:
        each = 1
    elif tensor.element != "f32":
        each = FLOATS[tensor.element].bytes
    return prod(tensor.shape) * each


def _device_us(row: Sequence[tuple[str, Timing]], backup: str) -> float:
    return sum(timing.microseconds for backend, timing in row if backend != backup)
