"""Jobs that take turns, one step each: tokens, pieces of text, vectors."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
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
_SETTLE_S = 0.02
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """A sequence of steps; `events` receives the result of each, then an error or None.

    `left` is the work before the first result that is worth waiting for: tokens of a prompt.
    """

    start: Steps
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    left: int = 0
    cancelled: bool = False
    steps: Iterator[Any] | None = None

    def tell(self, event: Event) -> None:
        """Hand an event to the loop's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


_SHARE = 0.25
"""Seconds that jobs with preparing work may take for each second of steps of the others."""

_LIGHT = 128
"""Preparing work, in tokens, that is done at once: it takes hardly longer than a few steps."""

_HEAVY = 2
"""Jobs with more of it that take turns at a time, so that they do not take all places."""

_OLDEST = 4
"""Every so many preparing steps, the oldest job has its turn, so that none waits for ever."""


class Turns:
    """A thread that runs jobs, one step of each in turn.

    Jobs with much preparing work, such as long prompts, have a share of the time while others go
    on: those with the least work left first, so that no short prompt waits for a long one.

    Args:
        waiting: the most jobs that wait.
        active: maximum number of jobs that take turns, or what returns it for now.
        name: the thread's name.
        left: returns the preparing work that is left after an event.
        clock: the seconds now.
    """

    def __init__(
        self,
        waiting: int,
        active: int | Callable[[], int],
        name: str,
        left: Callable[[Event], int] = lambda event: 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most = waiting
        self._left = left
        self._clock = clock
        self._credit = 0.0  # seconds that preparing jobs may take now
        self._prepared = 0
        self._max_active = active if callable(active) else lambda: active
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

    def add(self, start: Steps, events: asyncio.Queue[Event] | None = None, left: int = 0) -> Job:
        """Queue a job; must be called in an event loop.

        Args:
            start: begins its steps.
            events: receives its events; None for a new queue.
            left: its preparing work.

        Raises:
            HttpError: too many wait already, or the server is stopping.
        """
        job = Job(start, asyncio.get_running_loop(), events or asyncio.Queue(), left)
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

    async def settled(self) -> None:
        """Wait until the jobs that have been cancelled so far do nothing more."""
        with self._change:
            going = [job for job in self._active if job.cancelled]
        while any(job in self._active for job in going):
            await asyncio.sleep(_SETTLE_S)

    async def done(self, request: Request, job: Job) -> Any:
        """Return the result of the last step of a job; drop the job if the client disconnects.

        Raises:
            VkmnnError: a step raised it.
            HttpError: the client has disconnected.
        """
        made = None
        async for event in self.each(request, [job], job.events):
            made = event
        return made

    async def each(
        self, request: Request | None, jobs: Sequence[Job], events: asyncio.Queue[Event]
    ) -> AsyncGenerator[Event, None]:
        """Yield the results of jobs with one queue.

        Args:
            request: the jobs are dropped if its client disconnects; None if the caller notices.
            jobs: the jobs, which end with the iteration.
            events: their queue.

        Raises:
            VkmnnError: a step raised it.
            HttpError: the client has disconnected.
        """
        loop, going = asyncio.get_running_loop(), len(jobs)
        looked = loop.time()
        try:
            while going:
                with suppress(asyncio.TimeoutError, TimeoutError):
                    wait = events.get()
                    event = await (wait if request is None else asyncio.wait_for(wait, _POLL_S))
                    if isinstance(event, VkmnnError):
                        raise event
                    if event is None:
                        going -= 1
                    else:
                        yield event
                if request is not None and loop.time() - looked >= _POLL_S:  # however fast
                    looked = loop.time()
                    if await request.is_disconnected():
                        raise HttpError(499, "client_gone", "the client has disconnected")
        finally:
            for job in jobs:
                self.cancel(job)

    def close(self) -> None:
        """Finish all jobs, then end the thread."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _work(self) -> None:
        while self._admit():
            start = self._clock()
            preparing = [one for one in self._active if one.left > _LIGHT and not one.cancelled]
            others = [job for job in self._active if job not in preparing]
            for job in others:
                self._turn(job)
            spent = self._clock() - start
            self._credit = min(self._credit + _SHARE * spent, 0.0) if others else 0.0
            if preparing and self._credit >= 0.0:
                self._prepared += 1
                oldest = self._prepared % _OLDEST == 0
                job = preparing[0] if oldest else min(preparing, key=lambda one: one.left)
                start = self._clock()
                self._turn(job)
                self._credit -= self._clock() - start

    def _turn(self, job: Job) -> None:
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
            while len(self._active) < self._max_active():
                heavy = sum(one.left > _LIGHT for one in self._active)
                fits = (one for one in self._waiting if one.left <= _LIGHT or heavy < _HEAVY)
                job = next(fits, None)
                if job is None:
                    break
                self._waiting.remove(job)
                self._active.append(job)
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
        job.left = self._left(event)
        job.tell(event)
        return True
