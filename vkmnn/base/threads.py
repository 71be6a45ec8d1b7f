"""Threads for submitted work, where the system provides them."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_UP_S = 0.05


class PatientFuture(Future[T]):
    """A future whose waiters and producer may be interrupted at any point.

    Ctrl-C at the end of `Condition.__enter__` leaves the condition locked, and its next user waits
    forever. The outcome is therefore also stored separately, waiters wait for a plain lock, and
    neither they nor `done` touch the condition. The first outcome counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outcome: tuple[T | None, BaseException | None] | None = None
        self._arrival = threading.Lock()
        self._arrival.acquire()

    def set_result(self, result: T) -> None:
        """Store the result and wake the waiters."""
        if self._settle(result, None):
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Store an error and wake the waiters."""
        if self._settle(None, exception):
            super().set_exception(exception)

    def cancel(self) -> bool:
        """Withdraw the work if it has not started."""
        cancelled = super().cancel()
        if cancelled:
            self._settle(None, CancelledError())
        return cancelled

    def done(self) -> bool:
        """Return whether there is an outcome."""
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> T:
        """Wait, and return the result or raise the error.

        Raises:
            TimeoutError: there is none within `timeout` seconds.
        """
        result, error = self._await(timeout)
        if error is None:
            return cast("T", result)
        try:
            raise error
        finally:
            del (
                self,
                error,
            )  # otherwise the error, which refers to this frame, would refer to itself

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error, if there is one.

        Raises:
            TimeoutError: there is no result within `timeout` seconds.
        """
        error = self._await(timeout)[1]
        if isinstance(error, CancelledError):
            raise error
        return error

    def _settle(self, result: T | None, error: BaseException | None) -> bool:
        """Set the outcome and wake waiters; return whether it is the first."""
        if self._outcome is not None:
            return False
        self._outcome = result, error
        self._arrival.release()
        return True

    def _await(self, timeout: float | None) -> tuple[T | None, BaseException | None]:
        end = math.inf if timeout is None else time.monotonic() + timeout
        # A thread that is interrupted while holding the lock keeps it: the others poll.
        while self._outcome is None:
            left = end - time.monotonic()
            if left <= 0:
                raise FutureTimeoutError
            if self._arrival.acquire(timeout=min(left, _LOOK_UP_S)):
                self._arrival.release()
        return self._outcome


class Workers:
    """A thread pool; without threads, work runs in the submitting thread.

    This applies once the main thread has ended (in a thread that outlives it, or an exit handler),
    and if the system cannot start another thread. The end of a `with` block waits for all work.

    Args:
        count: maximum number of threads; with 0, work runs in the submitting thread.
        name: prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name) if count else None

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start the work and return its future."""
        future: Future[T] = PatientFuture()
        turns = [future]

        def run() -> None:
            try:
                mine = turns.pop()
            except IndexError:  # the pool kept work for which it had no thread, and ran it later
                return
            try:
                mine.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - `result` raises it
                mine.set_exception(error)
                del mine  # otherwise the error, which refers to this frame, would refer to itself

        pool = self._pool
        if pool is None:
            run()
            return future
        try:
            _uninterrupted(lambda: pool.submit(run))
        except RuntimeError:
            run()
        return future

    def close(self, *, cancel: bool = False) -> None:
        """Wait for all work; with `cancel`, drop work that has not started."""
        if self._pool is not None:
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


def _uninterrupted(call: Callable[[], object]) -> None:
    """Call a function that must not be interrupted; Ctrl-C takes effect afterwards.

    A pool whose `submit` is interrupted may keep a lock that its threads wait for. Only the main
    thread is interrupted. While its handler is replaced, no signal raises, so the handler is always
    restored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if is_main else None
    if not callable(handler):
        call()
        return
    late: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: late.append((number, frame)))
    try:
        call()
    finally:
        signal.signal(signal.SIGINT, handler)
        if late:
            handler(*late[0])
