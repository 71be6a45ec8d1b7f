"""Texts that are generated at the same time: a token of each in turn."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vkmnn.errors import VkmnnError
from vkmnn.llm import Generated
from vkmnn.llm.language_model import SEQUENCES
from vkmnn.serve.limits import HttpError

Steps = Callable[[], Iterator[tuple[Generated, str]]]
Event = tuple[str, Generated | None] | VkmnnError | None
"""A piece of text with the result so far; an error; or None, the end."""


@dataclass(slots=True, eq=False)
class Job:
    """A text that is asked for; `events` gets what becomes of it."""

    start: Steps
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    steps: Iterator[tuple[Generated, str]] | None = None

    def tell(self, event: Event) -> None:
        """Hand an event to the loop's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class Turns:
    """A thread that takes a step of every text in turn, of `SEQUENCES` at most; others wait.

    Args:
        waiting: how many may wait.
    """

    def __init__(self, waiting: int) -> None:
        self._most = waiting
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="vkmnn-serve", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """How many texts are being generated."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """How many texts wait for their turn."""
        return len(self._waiting)

    def add(self, start: Steps) -> Job:
        """Return the job for a text; has to be called in an event loop.

        Raises:
            HttpError: too many wait already, or the server is stopping.
        """
        job = Job(start, asyncio.get_running_loop())
        with self._change:
            if self._closed:
                raise HttpError(503, "stopping", "the server is stopping")
            if len(self._waiting) >= self._most:
                raise HttpError(503, "queue_full", f"{self._most} requests wait already")
            self._waiting.append(job)
            self._change.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Drop a text that nobody waits for any more."""
        with self._change:
            job.cancelled = True
            if job in self._waiting:  # its place is another's at once
                self._waiting.remove(job)
            self._change.notify()

    def close(self) -> None:
        """Finish what has been started, then stop."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _work(self) -> None:
        while self._admit():
            for job in list(self._active):
                if not self._step(job):
                    with self._change:
                        self._active.remove(job)

    def _admit(self) -> bool:
        """Wait until there is work, take on what there is room for; False at the end."""
        with self._change:
            while not self._active and not self._waiting:
                if self._closed:
                    return False
                self._change.wait()
            while self._waiting and len(self._active) < SEQUENCES:
                self._active.append(self._waiting.popleft())
        return True

    def _step(self, job: Job) -> bool:
        """Take a step of a text; False once there are no more."""
        try:
            if job.cancelled:
                _close(job.steps)
                return False
            job.steps = job.steps or job.start()
            result, piece = next(job.steps)
        except StopIteration:
            job.tell(None)
            return False
        except VkmnnError as error:
            job.tell(error)
            return False
        except Exception as error:  # noqa: BLE001 - other texts must go on
            job.tell(HttpError(500, "internal", f"{type(error).__name__}: {error}"))
            return False
        job.tell((piece, result))
        return True


def _close(steps: Any) -> None:
    """Give the caches of a text back."""
    if steps is not None:
        steps.close()
