"""Threads that work is handed to, where there are any."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")


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
        future: Future[T] = Future()
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
