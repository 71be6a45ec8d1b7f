"""Settles choices between kernels by measuring them in the network."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from vkmnn.base.cache_files import locked, read_file, write_file
from vkmnn.base.records import dataclass
from vkmnn.core.backend import Backend, Timing, TunablePlan, TunedChoice, Tuning
from vkmnn.ir import Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.pipeline_cache import device_key
from vkmnn.shaders.library import BUILTIN
from vkmnn.vulkan.choice import Choice, kernel_name

_log = logging.getLogger(__name__)

# Version of the names of choices: a change invalidates older files.
_FORMAT = b"2"
_MAX_BYTES = 16 << 20
_LOCK_WAIT_S = 10.0

# Candidates beyond these are far from the fastest, by the rules.
MAX_CANDIDATES = 8
# Minimum gain over the rules' choice: less is noise.
MIN_GAIN = 0.03
# Clocks rise under load: runs before anything is measured.
WARM_S = 0.2
# Minimum number of times that must be multiples of a tick to accept it.
MIN_TICKS = 8
# Runs of the whole network per table, alternating: the median of a few runs is reliable.
MIN_ROUNDS = 7
# The same after the deadline.
MIN_ROUNDS_LATE = 3


class TuningFile:
    """Measurements of one device, by driver, version of vkmnn and shaders.

    No method raises: a file that cannot be read or written costs time, not results. The reason is
    logged.

    Attributes:
        path: the file.
    """

    def __init__(self, folder: Path, info: DeviceInfo) -> None:
        self._device = device_key(info)
        self.path = folder / "tuning" / f"{self._device.hex()[:32]}.json"

    @cached_property
    def key(self) -> str:
        """Identifies the device, its driver, and the version of vkmnn and its shaders."""
        shaders = BUILTIN.fingerprint.encode()
        return hashlib.sha256(self._device + shaders + _FORMAT).hexdigest()

    def load(self) -> dict[str, str]:
        """Return the preferred candidates by choice; empty when there is no valid file."""
        try:
            data = json.loads(read_file(self.path, _MAX_BYTES).decode("utf-8"))
            if data["key"] != self.key:
                _log.info("tuning %s ignored: measured with other shaders or drivers", self.path)
                return {}
            return {str(key): str(value) for key, value in data["choices"].items()}
        except FileNotFoundError:
            return {}
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError),
            RecursionError,  # of nested JSON
        ) as error:
            _log.warning("tuning %s ignored: %s", self.path, error)
            return {}

    def store(self, choices: Mapping[str, str]) -> None:
        """Add choices to the file without losing those of other processes."""
        try:
            with locked(self.path.with_suffix(".lock"), _LOCK_WAIT_S):
                known = {**self.load(), **choices}
                data = {"key": self.key, "choices": dict(sorted(known.items()))}
                write_file(self.path, json.dumps(data, indent=1).encode())
        except OSError as error:
            _log.warning("tuning results cannot be written to %s: %s", self.path, error)


class TunableBackend(Backend):
    """A backend that can use and time kernels other than those that its rules select."""

    @property
    @abstractmethod
    def preferences(self) -> Mapping[str, str]:
        """The kernels that were measured to be fastest, by choice."""

    @abstractmethod
    def with_preferences(self, table: Mapping[str, str]) -> TunableBackend:
        """Return a backend that prefers these kernels."""

    @abstractmethod
    def choices_of(
        self, make_plan: Callable[[Backend], TunablePlan], table: Mapping[str, str]
    ) -> list[Choice]:
        """Return the choices that a plan faces when these kernels are preferred."""

    @abstractmethod
    def timed_apart(self) -> TunableBackend:
        """Return a backend that records timestamps, and whose dispatches never overlap."""


def tune(
    backend: TunableBackend,
    make_plan: Callable[[Backend], TunablePlan],
    feeds: Mapping[str, Array],
    runs: int,
    progress: Callable[[int, int], object] | None,
    limit_s: float = math.inf,
) -> tuple[dict[str, str], Tuning]:
    """Measure every choice of a plan, one kind after the other, in the whole network.

    A trial runs the network with the candidates of one rank for all choices of a kind, so that as
    many trials as a choice has candidates measure all of them, with realistic caches. A choice may
    open others, as Winograd's products do: these come next. The minimum of many times favours lucky
    candidates, so every change is measured once more against the rules; choices that open where
    the rules win are settled in the same way. Finally, whole runs without
    timestamps decide between the old and the new table.

    After `limit_s` seconds, or once `progress` returns True, no further candidate is tried; the
    measurements up to then are confirmed.

    Returns:
        The preferred candidates by choice, including earlier ones, and the settled choices.
    """
    from statistics import median

    table = dict(backend.preferences)
    settled: dict[str, TunedChoice] = {}
    counter = _Counter(progress, time.monotonic() + limit_s)
    refused = True
    while refused:
        known = set(settled)
        _settle_open(backend, make_plan, feeds, runs, counter, table, settled)
        new = settled.keys() - known
        refused = _confirm_new(backend, make_plan, feeds, runs, counter, table, settled, new)
    choices = tuple(settled.values())
    if all(_in_use(backend, key, choice) == choice.taken for key, choice in settled.items()):
        return table, Tuning(choices)
    counter.total += 2
    rounds = _whole_runs(
        backend, make_plan, feeds, max(runs, MIN_ROUNDS), (backend.preferences, table), counter
    )
    old_us, new_us = (median(times) for times in zip(*rounds, strict=True))
    kept = median(new / old for old, new in rounds) < 1
    return table, Tuning(choices, old_us, new_us, kept)


def _settle_open(
    backend: TunableBackend,
    make_plan: Callable[[Backend], TunablePlan],
    feeds: Mapping[str, Array],
    runs: int,
    counter: _Counter,
    table: dict[str, str],
    settled: dict[str, TunedChoice],
) -> None:
    """Settle the choices that the table leaves open, one kind after the other."""
    while not counter.over:
        todo = _next_kind(backend.choices_of(make_plan, table), settled)
        if not todo:
            break
        ranks = min(max(len(group[0].candidates) for group in todo.values()), MAX_CANDIDATES)
        counter.total += ranks
        trials = [_trial(table, todo, rank) for rank in range(ranks)]
        spent = _measure(backend, make_plan, feeds, runs, trials, counter)
        for key, group in todo.items():
            ops = _ops(group)
            times = [
                sum(of_op.get(op, 0.0) for op in ops) / len(ops)
                for of_op in spent[: len(group[0].candidates)]  # fewer after the deadline
            ]
            settled[key] = _settle(group, times, counter.tick_us)
            table[key] = settled[key].taken


def _confirm_new(
    backend: TunableBackend,
    make_plan: Callable[[Backend], TunablePlan],
    feeds: Mapping[str, Array],
    runs: int,
    counter: _Counter,
    table: dict[str, str],
    settled: dict[str, TunedChoice],
    new: Collection[str],
) -> bool:
    """Measure what changed among new choices against the rules; return whether the rules won any.

    A refused candidate may have hidden choices that the rules' kernel has: these are open then.
    """
    changed = [key for key in new if settled[key].taken != settled[key].rule]
    if not changed:
        return False
    rules = {**table, **{key: settled[key].rule for key in changed}}
    counter.total += 2
    before, after = _measure(backend, make_plan, feeds, runs, [rules, table], counter, 2)
    for key in changed:
        settled[key] = _confirm(settled[key], before, after, counter.tick_us)
        table[key] = settled[key].taken
    return any(settled[key].taken == settled[key].rule for key in changed)


def _in_use(backend: TunableBackend, key: str, choice: TunedChoice) -> str:
    """Return the candidate that the untuned backend uses."""
    return backend.preferences.get(key, choice.rule)


def _whole_runs(
    backend: TunableBackend,
    make_plan: Callable[[Backend], TunablePlan],
    feeds: Mapping[str, Array],
    rounds: int,
    tables: Sequence[Mapping[str, str]],
    counter: _Counter,
) -> list[tuple[float, ...]]:
    """Return the microseconds of whole runs, a row per round: one run with each table."""
    plans: list[TunablePlan] = []
    times: list[tuple[float, ...]] = []
    try:
        for table in tables:
            plans.append(make_plan(backend.with_preferences(table)))
            plans[-1].execute(feeds)
            counter.advance()
        for number in range(rounds):
            if counter.over and number >= MIN_ROUNDS_LATE:
                break
            spent = [0.0] * len(plans)
            # The second run finds other caches: the order changes from round to round.
            for index in range(len(plans))[:: 1 if number % 2 else -1]:
                start = time.perf_counter_ns()
                plans[index].execute(feeds)
                spent[index] = (time.perf_counter_ns() - start) / 1000
            times.append(tuple(spent))
    finally:
        for plan in plans:
            plan.close()
    return times


@dataclass(slots=True)
class _Counter:
    """Counts trials for progress, and knows the deadline.

    `tick_us` is the observed resolution of the device's clock, `warm` whether it has warmed up.
    """

    report: Callable[[int, int], object] | None
    end: float = math.inf
    done: int = 0
    total: int = 0
    tick_us: float = 0.0
    warm: bool = False

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.end

    def advance(self) -> None:
        """Report that one more trial is ready."""
        self.done += 1
        self.tell()

    def tell(self) -> None:
        """Report progress; return True to stop."""
        if self.report and self.report(self.done, self.total) is True:
            self.end = 0.0


def _trial(table: Mapping[str, str], todo: Mapping[str, list[Choice]], rank: int) -> dict[str, str]:
    """Return the table with the candidates of one rank for the choices in question."""
    tried = {
        key: repr(group[0].candidates[rank])
        for key, group in todo.items()
        if rank < len(group[0].candidates)
    }
    return {**table, **tried}


def _next_kind(
    choices: list[Choice], settled: Mapping[str, TunedChoice]
) -> dict[str, list[Choice]]:
    """Return the open choices of the first kind that has any, by key."""
    todo = [c for c in choices if c.key not in settled]
    groups: dict[str, list[Choice]] = defaultdict(list)
    for choice in todo:
        if choice.what == todo[0].what:
            groups[choice.key].append(choice)
    return groups


def _measure(
    backend: TunableBackend,
    make_plan: Callable[[Backend], TunablePlan],
    feeds: Mapping[str, Array],
    runs: int,
    trials: Sequence[Mapping[str, str]],
    counter: _Counter,
    min_plans: int = 1,
) -> list[dict[str, float]]:
    """Return the microseconds of every op in each trial, the least of several runs.

    After the deadline, trials beyond the first `least` are left out. The trials take turns, so that
    other load on the machine affects all of them alike.
    """
    plans: list[TunablePlan] = []
    try:
        for table in trials:
            if len(plans) >= min_plans and counter.over:
                break
            plans.append(make_plan(backend.with_preferences(table).timed_apart()))
            plans[-1].execute(feeds)
            counter.advance()
        if not counter.warm:
            _warm_up(plans[0], feeds, counter)
        rows: list[list[list[Timing]]] = [[] for _ in plans]
        for number in range(runs):
            if number and counter.over:
                break
            for plan, row in zip(plans, rows, strict=True):
                plan.execute(feeds)
                row.append([timing for _, timing in plan.timings()])
            counter.tell()
    finally:
        for plan in plans:
            plan.close()
    counter.tick_us = max(counter.tick_us, tick_of(rows))
    return [_fastest(row) for row in rows]


def _warm_up(plan: TunablePlan, feeds: Mapping[str, Array], counter: _Counter) -> None:
    end = min(time.monotonic() + WARM_S, counter.end)
    while time.monotonic() < end:
        plan.execute(feeds)
    counter.warm = True


def tick_of(rows: Sequence[Sequence[Sequence[Timing]]]) -> float:
    """Return the clock's tick in microseconds, from the times; 0 if none is visible.

    Some devices count in steps of a quarter of a microsecond: a smaller gain is no gain.
    """
    times = sorted({round(t.microseconds, 4) for row in rows for run in row for t in run})
    steps = [after - before for before, after in pairwise(times)]
    if len(times) < MIN_TICKS:
        return 0.0
    tick = min(steps)
    # Times of a fine clock are not all multiples of the smallest step among them.
    return tick if all(abs(t / tick - round(t / tick)) < 0.05 for t in times) else 0.0


def _fastest(rows: list[list[Timing]]) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for samples in zip(*rows, strict=True):
        spent[samples[0].op] += min(timing.microseconds for timing in samples)
    return spent


def _confirm(
    choice: TunedChoice,
    rules: Mapping[str, float],
    tuned: Mapping[str, float],
    tick_us: float,
) -> TunedChoice:
    """Return the choice with the times of its ops in both plans; the rules' unless it won again.

    Choices of the same op stand or fall together: their times are those of the whole op.
    """
    before, after = (
        sum(spent.get(op, 0.0) for op in choice.ops) / len(choice.ops) for spent in (rules, tuned)
    )
    if not _gains(before, after, tick_us):
        return replace(
            choice,
            taken=choice.rule,
            taken_name=choice.rule_name,
            rule_us=before,
            taken_us=before,
        )
    return replace(choice, rule_us=before, taken_us=after)


def _gains(before: float, after: float, tick_us: float) -> bool:
    """Return whether one time is shorter than another by more than noise and one clock tick."""
    return after <= (1 - MIN_GAIN) * before and before - after >= tick_us


def _ops(group: Sequence[Choice]) -> tuple[str, ...]:
    """Return the ops whose times a choice decides."""
    return tuple(op for choice in group for op in (choice.op, choice.beside) if op)


def _settle(group: list[Choice], times: list[float], tick_us: float) -> TunedChoice:
    choice = group[0]
    best = min(range(len(times)), key=lambda rank: times[rank])
    if not _gains(times[0], times[best], tick_us):
        best = 0
    return TunedChoice(
        choice.what,
        repr(choice.problem),
        _ops(group),
        repr(choice.candidates[0]),
        repr(choice.candidates[best]),
        times[0],
        times[best],
        kernel_name(choice.candidates[0]),
        kernel_name(choice.candidates[best]),
    )
