"""A session that measures once which engine runs its network fastest, and then uses it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.bound import Begun
from vkmnn.core.host_part import Value
from vkmnn.core.placement import Placement
from vkmnn.core.profile import Profile
from vkmnn.core.session import Session
from vkmnn.core.shared_sizes import shapes_of
from vkmnn.errors import VkmnnError

_log = logging.getLogger(__name__)

MIN_RUNS, MAX_RUNS, ENOUGH_S = 3, 20, 0.05
"""Number of runs after the first one, within a time limit."""

MAX_FLOPS = 2e9
"""Networks with more operations run only on the device."""

MAX_CHOICES = 256
"""Remembered shapes of inputs; others are looked up in the file of measurements."""


class Results(Protocol):
    """Storage of measurements between processes."""

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return a stored measurement."""

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store a measurement."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Another way to run the network.

    Attributes:
        open: returns a session of it.
        most: maximum operations of a network for which it is tried.
    """

    open: Callable[[], Session]
    most: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine for inputs of some shapes.

    Attributes:
        name: the fastest.
        ms: milliseconds of each measured engine.
        left: why the others were not measured.
    """

    name: str
    ms: Mapping[str, float]
    left: Mapping[str, str]

    def without(self, name: str, other: str, why: str) -> Choice:
        """Return another choice after one has failed."""
        ms = {one: took for one, took in self.ms.items() if one != name}
        return Choice(other, ms, {**self.left, name: why})

    def __str__(self) -> str:
        """Return the line shown in placements."""
        others = [f"{name} {ms:.3g} ms" for name, ms in self.ms.items() if name != self.name]
        others += [f"{name}: {why}" for name, why in self.left.items()]
        first = f"fastest: {self.name} {self.ms[self.name]:.3g} ms"
        return f"{first} ({'; '.join(others)})" if others else first


class FastestSession(Session):
    """Runs arrays on the fastest engine for their shapes; device tensors stay on the device.

    Args:
        arguments: those of `Session`.
        candidates: other ways to run the network, by name.
        results: keeps measurements.
        key: identifies the network, the device and everything else that matters.
        tolerance: allowed difference of results, as a fraction of their range.
        options: those of `Session`.
    """

    def __init__(
        self,
        *arguments: Any,
        candidates: Mapping[str, Candidate],
        results: Results,
        key: str,
        tolerance: float,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._candidates = candidates
        self._results = results
        self._key = key
        self._tolerance = tolerance
        self._opened: dict[str, Session] = {}
        self._choices: dict[str, Choice] = {}
        self._last: Choice | None = None

    @property
    def _own(self) -> str:
        return self._main.type

    def _run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        key = self._key_of(feeds)
        if key is None:
            return super()._run(feeds)
        choice = self._known(key)
        if choice is None:
            choice, results = self._measured(feeds)
            self._results.put(key, {"name": choice.name, "ms": choice.ms, "left": choice.left})
            _log.info("%s", choice)
            self._keep(key, choice)
            return results
        self._keep(key, choice)
        if choice.name == self._own:
            return super()._run(feeds)
        try:
            return self._session(choice.name).run(feeds)
        except VkmnnError as error:
            results = super()._run(feeds)  # raises if the inputs are at fault
            self._keep(key, choice.without(choice.name, self._own, error.message))
            _log.warning("%s failed, the device runs the network: %s", choice.name, error.message)
            return results

    def _keep(self, key: str, choice: Choice) -> None:
        self._choices.pop(key, None)
        self._choices[key] = self._last = choice
        if len(self._choices) > MAX_CHOICES:
            self._choices.pop(next(iter(self._choices)), None)

    def _begin(self, feeds: Mapping[str, Value]) -> Begun | None:
        """Begin asynchronously; only runs on the device can overlap."""
        key = self._key_of(feeds)
        choice = self._choices.get(key) if key is not None else None
        if key is not None and (choice is None or choice.name != self._own):
            return None
        return super()._begin(feeds)

    def _key_of(self, feeds: Mapping[str, Value]) -> str | None:
        """Return a key for the shapes of arrays; None for other values."""
        if not all(isinstance(one, np.ndarray | np.generic) for one in feeds.values()):
            return None
        shapes = sorted((name, shape) for name, shape in shapes_of(feeds).items())
        return hashlib.sha256(repr((self._key, shapes)).encode()).hexdigest()

    def _known(self, key: str) -> Choice | None:
        """Return the choice of this session or another; None to measure."""
        choice = self._choices.get(key) or self._remembered(key)
        return choice if choice is not None and choice.name in self._names else None

    @property
    def _names(self) -> set[str]:
        return {self._own, *self._candidates, *self._opened}

    def _remembered(self, key: str) -> Choice | None:
        kept = self._results.get(key) or {}
        name, ms, left = kept.get("name"), kept.get("ms"), kept.get("left")
        if name not in self._names or not isinstance(ms, dict) or not isinstance(left, dict):
            return None
        if not {name, self._own} <= ms.keys():
            return None
        if not all(isinstance(one, int | float) for one in ms.values()):
            return None
        return Choice(name, ms, {str(one): str(why) for one, why in left.items()})

    # --- measuring -------------------------------------------------------------------------------

    def _measured(self, feeds: Mapping[str, Value]) -> tuple[Choice, dict[str, Value]]:
        """Measure everything on these inputs; return the choice, and the device's results."""
        run = super()._run
        results = run(feeds)
        ms = {self._own: _time(lambda: run(feeds))}
        left: dict[str, str] = {}
        work = self.flops()
        for name, candidate in self._candidates.items():
            if work > candidate.most:
                left[name] = "not tried, as the network is large"
                continue
            try:
                session = self._session(name)
                made = session.run(feeds)
                if not self._agree_on(results, made):
                    left[name] = "its results differ"
                else:
                    ms[name] = _time(lambda one=session: one.run(feeds))  # type: ignore[misc]
            except VkmnnError as error:
                left[name] = error.message
        best = min(ms, key=lambda name: ms[name])
        for name in [name for name in self._opened if name != best]:
            self._opened.pop(name).close()
        return Choice(best, ms, left), results

    def _agree_on(self, results: Mapping[str, Value], others: Mapping[str, Value]) -> bool:
        return all(_alike(one, others.get(name), self._tolerance) for name, one in results.items())

    def _session(self, name: str) -> Session:
        if name not in self._opened:
            self._opened[name] = self._candidates[name].open()
        return self._opened[name]

    # --- reports ---------------------------------------------------------------------------------

    def placement(self) -> Placement:
        """Return where each op of the latest run ran, and the times of all other engines."""
        choice = self._last
        if choice is None or choice.name == self._own:
            return replace(super().placement(), note="" if choice is None else str(choice))
        placed = self._session(choice.name).placement()
        ops = tuple(replace(op, reason=op.reason or str(choice)) for op in placed.ops)
        return replace(placed, ops=ops, note=str(choice))

    def profile(self, feeds: Mapping[str, Value], runs: int) -> Profile:
        """Profile the engine for inputs of these shapes."""
        key = self._key_of(feeds)
        choice = None if key is None else self._known(key)
        if choice is None or choice.name == self._own:
            return super().profile(feeds, runs)
        return self._session(choice.name).profile(feeds, runs)

    def forget_model(self) -> None:
        """Free the model; afterwards only open sessions can run."""
        with self._lock:
            self._candidates = {}
            for one in self._opened.values():
                one.forget_model()
        super().forget_model()

    def close(self) -> None:
        """Close all sessions."""
        with self._lock:
            for one in self._opened.values():
                one.close()
            self._opened.clear()
        super().close()


def _time(run: Callable[[], object]) -> float:
    """Return the minimum milliseconds of a run."""
    best, total, count = float("inf"), 0.0, 0
    while count < MIN_RUNS or (total < ENOUGH_S and count < MAX_RUNS):
        start = time.perf_counter()
        run()
        taken = time.perf_counter() - start
        best, total, count = min(best, taken), total + taken, count + 1
    return best * 1e3


def _alike(one: Value, other: Value, tolerance: float) -> bool:
    """Return whether two results are equal except for rounding."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    wide, wider = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(wide)
    largest = float(np.abs(wide[finite]).max(initial=0.0))
    return bool(np.allclose(wider, wide, rtol=0, atol=tolerance * largest, equal_nan=True))
