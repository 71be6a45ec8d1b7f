"""Asynchronous runs: requested now, carried out later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from vkmnn.base.threads import PatientFuture, Workers
from vkmnn.errors import InvalidInputError

T = TypeVar("T")

IN_FLIGHT = 2
"""Runs in flight: while the device computes one, the host uploads the next."""


class RunFuture(PatientFuture[T], Generic[T]):
    """The result of a future run: a `concurrent.futures.Future` that can also be awaited.

    `result` and `exception` wait, `done` polls, callbacks of `add_done_callback` are called in the
    thread of the run. `cancel` withdraws a run that has not started; a run in progress
    finishes normally.
    """

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in an event loop; cancelling the task cancels a run that has not started."""
        import asyncio  # not needed without an event loop, and 20 ms to import

        return asyncio.wrap_future(self).__await__()


class Submitter:
    """Executes runs in the order they were requested, two at a time."""

    def __init__(self) -> None:
        self._workers = Workers(IN_FLIGHT, "vkmnn-run")
        self._turn = threading.Lock()
        self._here = threading.local()
        self._waiting: list[tuple[RunFuture[Any], Callable[[], Callable[[], Any]]]] = []
        self._closed = False

    def submit(self, begin: Callable[[], Callable[[], T]]) -> RunFuture[T]:
        """Request a run.

        Args:
            begin: starts the run and returns a function that waits for its result. Both may raise.
        """
        future: RunFuture[T] = RunFuture()
        self._waiting.append((future, begin))
        self._workers.submit(self._next)
        return future

    def _next(self) -> None:
        """Execute the oldest queued run; only starting it is exclusive."""
        self._here.inside = True
        try:
            with self._turn:
                future, begin = self._waiting.pop(0)
                if not future.set_running_or_notify_cancel():
                    return
                finish = self._begun(future, begin)
                del begin
            if finish is not None:
                _settle(future, finish)
        finally:
            self._here.inside = False

    def _begun(
        self, future: RunFuture[Any], begin: Callable[[], Callable[[], Any]]
    ) -> Callable[[], Any] | None:
        try:
            if self._closed:
                raise InvalidInputError(
                    "the session was closed before the run began", hint="create a new one"
                )
            return begin()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            future.set_exception(error)
            return None

    def close(self) -> None:
        """Refuse the runs that have not started, and wait for those that have."""
        self._closed = True
        if not getattr(
            self._here, "inside", False
        ):  # otherwise a callback is closing it, and cannot wait
            self._workers.close()


def _settle(future: RunFuture[T], finish: Callable[[], T]) -> None:
    try:
        result = finish()
    except BaseException as error:  # noqa: BLE001 - `result` raises it
        future.set_exception(error)
    else:
        future.set_result(result)
