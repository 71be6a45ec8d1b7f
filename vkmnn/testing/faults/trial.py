"""One trial: a session's whole life while one call fails, and what must hold afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from vkmnn.errors import DeviceLostError, VkmnnError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.runtime import DeviceInfo
from vkmnn.runtime.device import _close_all, open_device, retire_unwanted
from vkmnn.testing.faults.library import Fault, Library
from vkmnn.testing.faults.memory import Allocations

Feeds = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial.

    `call` is what was hit, "" where the life ended before; `error` is what was raised, "" where
    the failure was made good; `violations` is what must not be.
    """

    call: str
    error: str
    violations: tuple[str, ...]


class Trials:
    """Runs trials of one model, and knows what it computes.

    Args:
        library: what fails.
        model: a file; symbolic dimensions are 1, then 2.
        tune: let `tune` be part of the life.
        fresh: make a new VkInstance for every trial.
        life: "bound" runs on tensors that stay on the device, too; "rebuild" asks for a new device
            where one is lost.
    """

    def __init__(
        self, library: Library, model: Path, *, tune: bool, fresh: bool, life: str = "plain"
    ) -> None:
        self._library = library
        self._memory = Allocations()
        self._model = model.read_bytes()
        self._tune = tune
        self._fresh = fresh
        self._bound = life == "bound"
        self._rebuild = life == "rebuild"
        with InferenceSession(self._model) as session:
            self._feeds = [_feeds(session, dim) for dim in (1, 2)]
            self._expected = [session.run(None, feeds) for feeds in self._feeds]
        self._end()
        # What is there now stays: the collections after every trial need not look at it.
        gc.collect()
        gc.freeze()

    def run(self, fault: Fault | None, at: int) -> Verdict:
        """Run one trial, whose call (or allocation) number `at` fails."""
        self._library.orphans.clear()
        before = self._library.counts()
        found: list[str] = []
        sessions: list[InferenceSession] = []
        self._library.arm(fault, at)
        with self._memory.failing(at if fault is Fault.NUMPY else 0):
            error = self._attempt(sessions, found, fault)
        call = self._library.fired or self._memory.fired or ""
        self._library.arm(None)
        self._check_usable(sessions, found)
        for session in sessions:
            self._must(session.close, "close", found)
        sessions.clear()
        self._must(self._new_session, "a new session", found)
        gc.collect()
        self._end()
        left = self._library.counts() - before
        if left:
            found.append("left: " + ", ".join(f"{n} {kind}" for kind, n in sorted(left.items())))
        found += sorted(set(self._library.orphans))
        return Verdict(call, error, tuple(found))

    def count(self, fault: Fault) -> int:
        """Return how many calls (or allocations) a life has that this fault may hit."""
        self._library.arm(fault, 0)
        with self._memory.failing(-1 if fault is Fault.NUMPY else 0):
            self._life([], [], None)
        made = self._memory.count if fault is Fault.NUMPY else self._library.calls
        self._library.arm(None)
        self._end()
        return made

    def _attempt(
        self, sessions: list[InferenceSession], found: list[str], fault: Fault | None
    ) -> str:
        """Live, and return the class of the error that ended it."""
        try:
            self._life(sessions, found, fault)
        except (VkmnnError, MemoryError, KeyboardInterrupt) as error:
            return type(error).__name__
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            found.append(f"untyped {type(error).__name__}: {error}")
            return type(error).__name__
        return ""

    def _life(
        self, sessions: list[InferenceSession], found: list[str], fault: Fault | None
    ) -> None:
        session = self._open()
        sessions.append(session)
        if not isinstance(session.device, DeviceInfo) and fault is not Fault.INITIALIZATION:
            found.append("computed on the processor")
        for number in (0, 1, 0):
            self._compare(session, number, found)
        if self._bound:
            self._on_device(session, found)
        session.profile(self._feeds[0], runs=1)
        if self._tune:
            session.tune(self._feeds[0], runs=1)
            self._compare(session, 0, found)
        session.close()
        sessions.clear()
        self._end()

    def _open(self) -> InferenceSession:
        lost: Literal["raise", "rebuild"] = "rebuild" if self._rebuild else "raise"
        return InferenceSession(self._model, on_device_lost=lost)

    def _on_device(self, session: InferenceSession, found: list[str]) -> None:
        """Run on tensors at fixed places, on what a run left on the device, and without waiting."""
        with session.bind(self._feeds[0]) as bound:
            for _ in range(2):
                made = [bound()[value.name].numpy() for value in session.get_outputs()]
                self._check(made, 0, found)
        kept = session.run_on_device(None, self._feeds[1])
        self._check([tensor.numpy() for tensor in kept], 1, found)
        for future in [session.submit(self._feeds[number]) for number in (0, 1, 0)]:
            future.result()

    def _compare(self, session: InferenceSession, number: int, found: list[str]) -> None:
        self._check(session.run(None, self._feeds[number]), number, found)

    def _check(self, got: Sequence[Array], number: int, found: list[str]) -> None:
        for have, want in zip(got, self._expected[number], strict=True):
            if not np.allclose(have, want, rtol=1e-4, atol=1e-5, equal_nan=True):
                found.append("wrong data")

    def _check_usable(self, sessions: list[InferenceSession], found: list[str]) -> None:
        """Run the session again, which must be right, unless its device is lost or closed."""
        for session in sessions:
            backend = session._session.core._main
            device = getattr(backend, "device", None)
            closed = session._session.core.closed
            gone = (
                closed
                if self._rebuild
                else device is not None and (device.lost or device.closed or closed)
            )
            try:
                self._compare(session, 1, found)
                self._compare(session, 0, found)
                if gone:
                    found.append("a lost device computes")
            except (DeviceLostError, VkmnnError) as error:
                if not gone:
                    found.append(f"the session is unusable: {type(error).__name__}: {error}")

    def _new_session(self) -> None:
        found: list[str] = []
        with InferenceSession(self._model) as session:
            self._compare(session, 1, found)
        if found:
            raise AssertionError("wrong data")

    def _must(self, work: Callable[[], object], what: str, found: list[str]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is not to be
            found.append(f"{what} fails: {type(error).__name__}: {error}")

    def _end(self) -> None:
        """Close the device, with the instance where every trial has its own."""
        if self._fresh:
            _close_all()
        else:
            open_device().close()
            retire_unwanted()


def _feeds(session: InferenceSession, dim: int) -> Feeds:
    numbers = np.random.default_rng(0)
    feeds: Feeds = {}
    for item in session.get_inputs():
        shape = tuple(size if isinstance(size, int) else dim for size in item.shape or ())
        dtype = session._inputs[item.name].dtype.numpy
        if dtype.kind == "f":
            feeds[item.name] = numbers.standard_normal(shape).astype(dtype)
        else:
            feeds[item.name] = np.zeros(shape, dtype)
    return feeds
