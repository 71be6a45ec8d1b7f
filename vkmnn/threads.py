"""Threads that work is handed to, where there are any."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_UP_S = 0.05


class PatientFuture(Future[T]):
    """A future whose waiters may be interrupted at any point.

    Ctrl-C at the end of `Condition.__enter__` leaves the condition locked, and the
    thread that has the result would wait for it for good. So waiters wait for a plain lock, and
    touch the condition only once the result is there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_settled = False
        self._arrival = threading.Lock()
        self._arrival.acquire()

    def set_result(self, result: T) -> None:
        """Store the result, and wake those that wait for it."""
        super().set_result(result)
        self._settle()

    def set_exception(self, exception: BaseException | None) -> None:
        """Store an error, and wake those that wait."""
        super().set_exception(exception)
        self._settle()

    def cancel(self) -> bool:
        """Take the work back if it has not begun."""
        cancelled = super().cancel()
        if cancelled:
            self._settle()
        return cancelled

    def result(self, timeout: float | None = None) -> T:
        """Wait, and return the result or raise the error.

        Raises:
            TimeoutError: there is none within `timeout` seconds.
        """
        self._await(timeout)
        try:
            return super().result(0)
        finally:
            del self  # else an error, which knows this frame, would know itself

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error, if there is one.

        Raises:
            TimeoutError: there is no result within `timeout` seconds.
        """
        self._await(timeout)
        return super().exception(0)

    def _settle(self) -> None:
        if not self._is_settled:
            self._is_settled = True
            self._arrival.release()

    def _await(self, timeout: float | None) -> None:
        end = math.inf if timeout is None else time.monotonic() + timeout
        # Whoever is interrupted while holding the lock keeps it: the others look up now and then.
        while not self._is_settled and (left := end - time.monotonic()) > 0:
            if self._arrival.acquire(timeout=min(left, _LOOK_UP_S)):
                self._arrival.release()


class Workers:
    """A pool of threads; work that no thread can be had for is done by who submits it.

    That is so once the main thread has ended (a thread that outlives it, an exit handler), and
    where the system has no thread left. The end of a `with` block waits for all work.

    Args:
        count: how many threads there are at most.
        name: how theirs begin.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin to work, and return what will hold the result."""
        future: Future[T] = PatientFuture()
        turns = [future]

        def run() -> None:
            try:
                mine = turns.pop()
            except IndexError:  # the pool kept what it had no thread for, and found one later
                return
            try:
                mine.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - `result` raises it
                mine.set_exception(error)
                del mine  # else the error, which knows this frame, would know itself

        try:
            self._pool.submit(run)
        except RuntimeError:
            run()
        return future

    def close(self, *, cancel: bool = False) -> None:
        """Wait for all work; with `cancel`, leave out what has not begun."""
        self._pool.shutdown(cancel_futures=cancel)

    def __enter__(self) -> Self:
        """Return the pool itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for all work."""
        self.close()
