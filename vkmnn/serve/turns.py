"""Jobs that take turns, one step each: tokens, pieces of text, vectors."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from vkmnn.errors import VkmnnError
from vkmnn.serve.limits import HttpError, as_http

Steps = Callable[[], Iterator[Any]]
Event = Any
"""The result of a step; a VkmnnError; or None, the end."""

_POLL_S = 0.25
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """A sequence of steps; `events` receives the result of each, then an error or None."""

    start: Steps
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    steps: Iterator[Any] | None = None

    def tell(self, event: Event) -> None:
        """Hand an event to the loop's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class Turns:
    """A thread that runs jobs, one step of each in turn.

    Args:
        waiting: the most jobs that wait.
        active: maximum number of jobs that take turns.
        name: the thread's name.
    """

    def __init__(self, waiting: int, active: int, name: str) -> None:
        self._most = waiting
        self._max_active = active
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Number of jobs that take turns."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Number of jobs that wait."""
        return len(self._waiting)

    def add(self, start: Steps) -> Job:
        """Queue a job; must be called in an event loop.

        Raises:
            HttpError: too many wait already, or the server is stopping.
        """
        job = Job(start, asyncio.get_running_loop())
        with self._change:
            if self._closed:
                raise HttpError(503, "stopping", "the server is stopping")
            if len(self._waiting) >= self._most:
                raise HttpError(503, "queue_full", f"{self._most} requests are waiting already")
            self._waiting.append(job)
            self._change.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Drop a job whose results are no longer needed."""
        with self._change:
            job.cancelled = True
            if job in self._waiting:  # frees its place at once
                self._waiting.remove(job)
            self._change.notify()

    async def done(self, request: Request, job: Job) -> Any:
        """Return the result of the last step of a job; drop the job if the client disconnects.

        Raises:
            VkmnnError: a step raised it.
            HttpError: the client has disconnected.
        """
        made, loop = None, asyncio.get_running_loop()
        looked = loop.time()
        try:
            while True:
                with suppress(asyncio.TimeoutError, TimeoutError):
                    event = await asyncio.wait_for(job.events.get(), _POLL_S)
                    if isinstance(event, VkmnnError):
                        raise event
                    if event is None:
                        return made
                    made = event
                if loop.time() - looked >= _POLL_S:  # however fast the steps are
                    looked = loop.time()
                    if await request.is_disconnected():
                        raise HttpError(499, "client_gone", "the client has disconnected")
        finally:
            self.cancel(job)

    def close(self) -> None:
        """Finish all jobs, then end the thread."""
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
        """Wait for jobs and admit as many as may run in turns; return False at the end."""
        with self._change:
            while not self._active and not self._waiting:
                if self._closed:
                    return False
                self._change.wait()
            while self._waiting and len(self._active) < self._max_active:
                self._active.append(self._waiting.popleft())
        return True

    def _step(self, job: Job) -> bool:
        """Run a step of a job; return False after its last."""
        try:
            if job.cancelled:
                if isinstance(job.steps, Generator):
                    job.steps.close()  # releases the caches of a text
                return False
            job.steps = job.steps or job.start()
            event = next(job.steps)
        except StopIteration:
            job.tell(None)
            return False
        except VkmnnError as error:
            job.tell(error)
            return False
        except BaseException as error:  # noqa: BLE001 - other jobs must go on
            _log.exception("a request failed")
            job.tell(as_http(error))
            return False
        job.tell(event)
        return True
