"""One trial: a whole life during which one call fails, and the checks afterwards."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkmnn.errors import VkmnnError
from vkmnn.runtime.device import _close_all, open_device, retire_unwanted
from vkmnn_suite.faults.library import Fault, Library
from vkmnn_suite.faults.memory import Allocations


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a trial.

    `call` is the call that failed, "" if the life ended before; `error` is the raised error, "" if
    vkmnn recovered; `violations` are the broken invariants.
    """

    call: str
    error: str
    violations: tuple[str, ...]


class Trials(ABC):
    """Runs trials of one model whose results are known.

    Args:
        library: the library whose calls fail.
        model: a file or folder.
        tune: also call `tune` in the life.
        fresh: create a new VkInstance for every trial.
    """

    def __init__(self, library: Library, model: Path, *, tune: bool, fresh: bool) -> None:
        self._library = library
        self._memory = Allocations()
        self._model = model
        self._tune = tune
        self._fresh = fresh
        self._prepare()
        self._end()
        # The objects of now stay: the collections after every trial need not visit them.
        gc.collect()
        gc.freeze()

    @abstractmethod
    def _prepare(self) -> None:
        """Compute the correct results."""

    @abstractmethod
    def _life(self, opened: list[Any], found: list[str], fault: Fault | None) -> None:
        """Open, run and close; put sessions that stay open in `opened`, violations in `found`."""

    @abstractmethod
    def _check_usable(self, opened: Any, found: list[str]) -> None:
        """Check that a session left open by a failure works, or reports that its device is lost."""

    @abstractmethod
    def _check_anew(self, found: list[str]) -> None:
        """Open another one, which must be right."""

    def run(self, fault: Fault | None, at: int) -> Verdict:
        """Run one trial, whose call (or allocation) number `at` fails."""
        self._library.orphans.clear()
        before = self._library.counts()
        found: list[str] = []
        opened: list[Any] = []
        self._library.arm(fault, at)
        with self._memory.failing(at if fault is Fault.NUMPY else 0):
            error = self._attempt(opened, found, fault)
        call = self._library.fired or self._memory.fired or ""
        self._library.arm(None)
        for one in opened:
            self._check_usable(one, found)
            self._must(one.close, "close", found)
        opened.clear()
        self._must(lambda: self._check_anew(found), "another one", found)
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

    def _attempt(self, opened: list[Any], found: list[str], fault: Fault | None) -> str:
        """Live, and return the class of the error that ended it."""
        try:
            self._life(opened, found, fault)
        except (VkmnnError, MemoryError, KeyboardInterrupt) as error:
            return type(error).__name__
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            found.append(f"untyped {type(error).__name__}: {error}")
            return type(error).__name__
        return ""

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
