"""A Session runs one network on one main backend and keeps a plan per input shape."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from vkmnn.budget import Meter, unlimited
from vkmnn.core.backend import Backend, MemoryUse, Tuning
from vkmnn.core.pipeline import Pipeline
from vkmnn.core.placement import Placement
from vkmnn.core.profile import Profile, measure
from vkmnn.core.resolve import Evaluator, content_inputs, fold_constants
from vkmnn.errors import (
    DeviceLostError,
    InvalidInputError,
    PlacementError,
    VkmnnError,
    unexpected_error,
)
from vkmnn.ir import Array, Graph

_log = logging.getLogger(__name__)

PlanKey = tuple[object, ...]
T = TypeVar("T")

TUNING_RUNS = 5
"""How often a candidate runs when a plan is tuned as `VKMNN_TUNE=on` asks."""


class Session:
    """Plans of one network on one pair of backends; safe to use from several threads.

    Calls exclude each other. `close` waits for the call that another thread is in; what comes
    after it is refused. A session belongs to the process that made it: in a forked child it does
    nothing but refuse.

    Args:
        graph: the optimised network.
        main: the backend asked first for every op; closed with the session.
        backup: takes what `main` rejects.
        evaluate: runs one op on arrays, for constant folding.
        max_plans: how many input shapes are kept planned; the least recently used goes first.
        require_main: refuse plans that put an op on the backup.
        meter: makes a meter of what one load or plan may take; None has no limits.
        rebuild: when the device is lost, open it anew, plan anew and do what was asked once more.
    """

    def __init__(
        self,
        graph: Graph,
        main: Backend,
        backup: Backend,
        evaluate: Evaluator,
        max_plans: int = 8,
        require_main: bool = False,
        meter: Callable[[], Meter] = unlimited,
        rebuild: bool = False,
    ) -> None:
        folding = meter()
        self.graph = fold_constants(graph, evaluate, folding)
        self._meter = folding.renewed
        self._main = main
        self._backup = backup
        self._evaluate = evaluate
        self._max_plans = max_plans
        self._require_main = require_main
        self._rebuild = rebuild
        self._content = content_inputs(graph)
        self._plans: OrderedDict[PlanKey, Pipeline] = OrderedDict()
        self._lock = threading.RLock()
        self._current: Pipeline | None = None
        self._closed = False
        self._process = os.getpid()

    @property
    def content_inputs(self) -> frozenset[str]:
        """Inputs whose content decides a shape: a new content is a new plan."""
        return self._content

    def resize(self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array]) -> Pipeline:
        """Return the plan for these input shapes, making it when there is none.

        Args:
            shapes: the shape of every graph input.
            feeds: at least the inputs that `content_inputs` names.

        Raises:
            ShapeError: the shapes do not fit the network.
            PlacementError: `require_main` is set and the backup would have to run an op.
            InvalidInputError: the session has been closed, or belongs to another process.
        """
        return self._call(lambda: self._resize(shapes, feeds))

    def _call(self, work: Callable[[], T]) -> T:
        """Work alone, while nobody may close the session or its device."""
        if os.getpid() != self._process:  # where nobody would free the lock, had it been taken
            raise InvalidInputError(
                "the session belongs to the parent process",
                hint="open sessions after the fork, or use the start method 'spawn'",
            )
        with self._lock:
            if self._closed:
                raise _closed()
            try:
                return self._work(work)
            except DeviceLostError as error:
                if not self._rebuild:
                    raise
                _log.warning("the session is rebuilt: %s", error.message)
            # Not in the handler: the error keeps what was on the lost device alive.
            self._reopen()
            return self._work(work)

    def _work(self, work: Callable[[], T]) -> T:
        with self._main.use():
            try:
                return work()
            except VkmnnError:
                raise
            except MemoryError as error:
                raise unexpected_error(error, "planning or running the network") from error

    def _reopen(self) -> None:
        """Exchange the lost device for a new one, which has no plans yet."""
        self._drop_plans()
        lost, self._main = self._main, self._main.reopened()
        lost.close()

    def _resize(
        self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array]
    ) -> Pipeline:
        key = self._key(shapes, feeds)
        plan = self._plans.get(key)
        if plan is None:
            if self._main.tunes_new_plans:
                self._tune(shapes, feeds, TUNING_RUNS, None)
            plan = self._plan(shapes, feeds, self._main)
            self._plans[key] = plan
            if len(self._plans) > self._max_plans:
                _, oldest = self._plans.popitem(last=False)
                oldest.close()
        else:
            self._plans.move_to_end(key)
        self._current = plan
        return plan

    def _key(self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array]) -> PlanKey:
        content = tuple(feeds[name].tobytes() for name in sorted(self._content) if name in feeds)
        return (*(shapes[info.name] for info in self.graph.inputs), *content)

    def _plan(
        self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array], main: Backend
    ) -> Pipeline:
        missing = [name for name in sorted(self._content) if name not in feeds]
        if missing:
            raise InvalidInputError(
                f"shapes of this network depend on the content of input(s) {', '.join(missing)}",
                hint="give their arrays before the session is resized",
            )
        infos = {info.name: replace(info, shape=shapes[info.name]) for info in self.graph.inputs}
        known = {name: feeds[name].copy() for name in self._content}
        plan = Pipeline(self.graph, infos, known, main, self._backup, self._evaluate, self._meter())
        if self._require_main and plan.placement().off_device:
            away = plan.placement().off_device
            plan.close()
            listed = "\n".join(f"  {op.type} '{op.name}': {op.reason}" for op in away)
            raise PlacementError(
                f"{len(away)} op(s) would run off the device:\n{listed}",
                hint="create the session without require_device to let them run on the CPU backend",
            )
        return plan

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network; plans first when the shapes are new.

        Args:
            feeds: one C-contiguous array per graph input, of the input's dtype.
        """
        shapes = {name: array.shape for name, array in feeds.items()}
        return self._call(lambda: self._resize(shapes, feeds).execute(feeds))

    def profile(self, feeds: Mapping[str, Array], runs: int) -> Profile:
        """Measure where the time goes, on a second plan that is dropped afterwards.

        Args:
            feeds: as for `run`.
            runs: how many runs to measure.

        Raises:
            InvalidInputError: `runs` is below 1, or the device cannot measure time.
        """
        if runs < 1:
            raise InvalidInputError(f"cannot profile {runs} runs", hint="ask for at least one run")
        shapes = {name: array.shape for name, array in feeds.items()}
        return self._call(lambda: self._profile(shapes, feeds, runs))

    def _profile(
        self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array], runs: int
    ) -> Profile:
        main = self._main.timed()
        plan = self._resize(shapes, feeds)
        timed = self._plan(shapes, feeds, main)
        try:
            return measure(plan, timed, feeds, runs)
        finally:
            timed.close()

    def tune(
        self,
        feeds: Mapping[str, Array],
        runs: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tuning:
        """Measure the kernels that the network could use at these shapes; plans are made anew.

        Args:
            feeds: as for `run`.
            runs: how often each candidate runs.
            progress: called with (done, all) after every trial; `all` may grow.

        Raises:
            InvalidInputError: `runs` is below 1, or the device cannot measure time.
        """
        if runs < 1:
            raise InvalidInputError(f"cannot tune with {runs} runs", hint="ask for at least one")
        shapes = {name: array.shape for name, array in feeds.items()}
        return self._call(lambda: self._tune_anew(shapes, feeds, runs, progress))

    def _tune_anew(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        feeds: Mapping[str, Array],
        runs: int,
        progress: Callable[[int, int], None] | None,
    ) -> Tuning:
        settled = self._tune(shapes, feeds, runs, progress)
        self._drop_plans()
        self._resize(shapes, feeds)
        return settled

    def _drop_plans(self) -> None:
        self._current = None
        while self._plans:
            self._plans.popitem()[1].close()

    def _tune(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        feeds: Mapping[str, Array],
        runs: int,
        progress: Callable[[int, int], None] | None,
    ) -> Tuning:
        # A plan may be made before there is data; the speed of kernels hardly depends on it.
        arrays = {
            info.name: feeds[info.name]
            if info.name in feeds
            else np.zeros(shapes[info.name], info.dtype.numpy)
            for info in self.graph.inputs
        }
        return self._main.tune(
            lambda backend: self._plan(shapes, feeds, backend), arrays, runs, progress
        )

    def memory(self) -> MemoryUse:
        """Return the device memory of the current plan.

        Raises:
            InvalidInputError: there is no plan yet.
        """
        return self._planned().memory()

    @property
    def current(self) -> Pipeline | None:
        """The plan that was used last."""
        return self._current

    def placement(self) -> Placement:
        """Return where each op of the current plan runs.

        Raises:
            InvalidInputError: there is no plan yet.
        """
        return self._planned().placement()

    def _planned(self) -> Pipeline:
        if self._closed:
            raise _closed()
        if self._current is None:
            raise InvalidInputError(
                "the session has no plan yet",
                hint="run it once or call resize with the input shapes",
            )
        return self._current

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    @property
    def plan_count(self) -> int:
        """Number of plans kept."""
        return len(self._plans)

    def close(self) -> None:
        """Release all plans and the backends; the session cannot be used afterwards.

        Waits for the call that another thread is in. Safe to call twice; in a forked child there
        is nothing to release.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            self._closed = True
            self._drop_plans()
            self._main.close()
            self._backup.close()


def _closed() -> InvalidInputError:
    return InvalidInputError("the session has been closed", hint="create a new one")
