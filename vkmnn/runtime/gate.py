"""Lets `close` wait for calls in other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_POLL_S = 0.001


class Gate:
    """Tracks the threads in a call, and admits none once it is shut.

    Args:
        refuse: called for visits while it is shut; raises.
    """

    def __init__(self, refuse: Callable[[], None]) -> None:
        self._refuse = refuse
        self._visits: dict[int, int] = {}  # identity of the visit -> thread
        self._shut = False
        self._parking = False

    def visit(self, *, within: bool = False) -> Visit:
        """Return a context manager that keeps the object open.

        Args:
            within: the thread works for another one, which is inside and waits for it.
        """
        return Visit(self, within)

    def come_late(self, visit: Visit) -> None:
        """Reject a late visit; a thread that is already inside may enter again."""
        others = self._visits.copy()  # at once: threads come and leave meanwhile
        others.pop(id(visit), None)
        if get_ident() in others.values():
            return
        self._visits.pop(id(visit), None)
        if self._parking and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # the interpreter ends, and this daemon thread with it
        self._refuse()

    @property
    def is_shut(self) -> bool:
        """Whether `shut` has been called."""
        return self._shut

    @property
    def empty(self) -> bool:
        """Whether no thread is inside."""
        return not self._visits

    @property
    def is_own(self) -> bool:
        """Whether the calling thread is inside."""
        return get_ident() in self._visits.values()

    def shut(self, wait_s: float, *, park: bool = False) -> bool:
        """Admit no further thread and wait for those inside; return whether all have left.

        Args:
            wait_s: seconds to wait at most.
            park: later daemon threads wait until the interpreter ends.
        """
        self._parking = park
        self._shut = True
        end = time.monotonic() + wait_s
        while self._visits:
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True


class Visit:
    """One call; it ends with the `with` block, or at the latest with its last reference.

    The latter is for interruptions before the block has begun, or at its end.
    """

    __slots__ = ("_gate", "_within")

    def __init__(self, gate: Gate, within: bool = False) -> None:
        self._gate = gate
        self._within = within

    def __enter__(self) -> None:
        """Begin."""
        gate = self._gate
        # Counted first, then asked: `shut` does it the other way round.
        gate._visits[id(self)] = get_ident()
        if gate._shut and not self._within:
            gate.come_late(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._gate._visits.pop(id(self), None)

    def __del__(self) -> None:
        """End the visit if `__exit__` was not reached."""
        self._gate._visits.pop(id(self), None)
