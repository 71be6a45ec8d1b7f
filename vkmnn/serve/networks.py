"""A network that a server runs: its sessions, and the requests that wait for them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from vkmnn.base.row_proofs import are_close, other_than
from vkmnn.errors import (
    BudgetError,
    DeviceLimitError,
    DeviceLostError,
    OutOfDeviceMemoryError,
    OutOfHostMemoryError,
    VkmnnError,
)
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array
from vkmnn.serve.joining import (
    Batching,
    joined,
    key_of,
    reason_against,
    rows_of,
    split,
)
from vkmnn.serve.limits import HttpError, as_http

_log = logging.getLogger(__name__)

_TOO_LARGE = (OutOfDeviceMemoryError, OutOfHostMemoryError, DeviceLimitError, BudgetError)
"""Errors of a joined run that fewer rows may avoid."""


class Runner(Protocol):
    """The part of an InferenceSession that a server uses."""

    @property
    def lost(self) -> bool:
        """Whether runs fail because the device is lost."""

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs."""

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""

    def run(self, output_names: list[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """Run the network once."""

    def close(self) -> None:
        """Release memory."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request for a run.

    Attributes:
        feeds: values by input.
        wanted: the names of the outputs of the result.
        future: receives the outputs, in the event loop.
        arrived: when it was queued, as `time.perf_counter`.
        began: when its run began.
        ended: when its run ended.
        together: rows of its run.
    """

    feeds: dict[str, Array]
    wanted: list[str]
    future: asyncio.Future[list[Array]]
    key: Hashable = None
    rows: int = 0
    arrived: float = field(default_factory=time.perf_counter)
    began: float = 0.0
    ended: float = 0.0
    together: int = 0


class Network:
    """Sessions of one network, and a queue of requests that they share.

    Each session has a thread, which takes the next requests once it is free: the session with the
    least work takes more. Requests whose feeds differ only in the number of rows are joined along
    the first axis if the network's shapes allow it. Before the first joined run, a request is run
    both alone and beside another one: if the results differ, the rows are not independent, and
    requests are never joined.

    Args:
        name: the name in requests.
        version: its version.
        sessions: one or more sessions of the network; closed by `close`.
        batching: how requests are joined.
        queue: maximum waiting requests; None for the server's.

    Attributes:
        timeout_s: seconds that a request waits at most, unless it says otherwise; None for any.
        labels: names of the classes, by output.
        ignored: fields of its configuration that have no effect.
        inputs: the network's inputs.
        outputs: the network's outputs.
    """

    def __init__(
        self,
        name: str,
        version: str,
        sessions: Sequence[Runner],
        batching: Batching | None = None,
        queue: int | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.sessions = list(sessions)
        self.batching = batching or Batching()
        self.queue = queue
        self.timeout_s: float | None = None
        self.labels: dict[str, list[str]] = {}
        self.ignored: Sequence[str] = ()
        self.inputs = sessions[0].get_inputs()
        self.outputs = sessions[0].get_outputs()
        self._names = [info.name for info in self.outputs]
        self._against = _reason(self.sessions[0], self.batching)
        self._checked = False
        self._checking = threading.Lock()
        self._waiting: list[Asked] = []
        self._running = 0
        self._closed = False
        self._change = threading.Condition()
        self._threads: list[threading.Thread] = []

    @property
    def lost(self) -> bool:
        """Whether no session can answer because its device is lost."""
        return all(session.lost for session in self.sessions)

    @property
    def why_alone(self) -> str | None:
        """Why requests are not joined; None if they are."""
        return self._against

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests in runs."""
        return self._running

    # --- the event loop's side --------------------------------------------------------------------

    def add(self, feeds: dict[str, Array], wanted: list[str], queue: int) -> Asked:
        """Queue a request; must be called in an event loop.

        Args:
            feeds: values by input.
            wanted: names of outputs.
            queue: maximum waiting requests, unless the network has a limit of its own.

        Raises:
            HttpError: too many wait already, a request has too many rows, an output is unknown, or
                the network is being unloaded.
        """
        for name in wanted:
            if name not in self._names:
                text = f"the network has no output '{name[:100]}'; it has {', '.join(self._names)}"
                raise HttpError(400, "invalid_output", text)
        rows, limit = rows_of(feeds), self.batching.limit
        if limit is not None and rows > limit:
            text = f"a request for '{self.name}' has {limit} rows at most, not {rows}"
            raise HttpError(400, "too_many_rows", text)
        asked = Asked(feeds, wanted, asyncio.get_running_loop().create_future(), rows=rows)
        most = queue if self.queue is None else self.queue
        with self._change:
            if self._closed:
                raise HttpError(503, "stopping", f"'{self.name}' is being unloaded")
            if len(self._waiting) >= most:
                raise HttpError(503, "queue_full", f"{most} requests are waiting already")
            if self._against is None and rows > 0:
                asked.key = key_of(feeds)
            self._waiting.append(asked)
            self._start()
            self._change.notify()
        return asked

    def cancel(self, asked: Asked) -> bool:
        """Drop a request that waits; return False if it does not wait any more."""
        with self._change:
            if asked in self._waiting:
                self._waiting.remove(asked)
                return True
        return False

    def close(self) -> None:
        """Finish all requests, then end the threads and close the sessions."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        for session in self.sessions:
            session.close()

    def _start(self) -> None:
        """Start the threads with the first request."""
        if self._threads:
            return
        for number, session in enumerate(self.sessions):
            name = f"vkmnn-serve-run-{number}"
            thread = threading.Thread(target=self._work, args=(session,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    # --- the threads of the sessions --------------------------------------------------------------

    def _work(self, session: Runner) -> None:
        while group := self._taken(session):
            outcomes = self._outcomes(session, group)
            ended = time.perf_counter()
            for asked in group:
                asked.ended = ended
                asked.feeds = {}
            with self._change:
                self._running -= len(group)
            loop = group[0].future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, group, outcomes)

    def _taken(self, session: Runner) -> list[Asked]:
        """Wait for requests and return those of the next run; none at the end."""
        with self._change:
            while True:
                if not self._waiting:
                    if self._closed:
                        return []
                    self._change.wait()
                    continue
                if session.lost and not self.lost:  # another one can answer
                    self._change.notify()
                    self._change.wait(0.5)
                    continue
                group, rows = self._group()
                patience = group[0].arrived + self.batching.delay_s - time.perf_counter()
                full = rows >= self.batching.enough or group[0].key is None or self._closed
                if full or patience <= 0:
                    for asked in group:
                        self._waiting.remove(asked)
                    self._running += len(group)
                    return group
                self._change.wait(patience)

    def _group(self) -> tuple[list[Asked], int]:
        """Return the oldest request and those that may join it, and the sum of their rows."""
        first = self._waiting[0]
        group, rows = [first], first.rows
        if first.key is None or self._against is not None:
            return group, rows
        for asked in self._waiting[1:]:
            if rows >= self.batching.most:
                break
            if asked.key == first.key and rows + asked.rows <= self.batching.most:
                group.append(asked)
                rows += asked.rows
        return group, rows

    def _outcomes(self, session: Runner, group: list[Asked]) -> list[list[Array] | BaseException]:
        """Return the outputs of each request, or its error: one fails, and the others do not."""
        began = time.perf_counter()
        for asked in group:
            asked.began, asked.together = began, asked.rows
        if len(group) > 1 and self._may_join(session, group[0]):
            try:
                return list(self._joint(session, group))
            except DeviceLostError as error:
                return [error] * len(group)
            except _TOO_LARGE as error:
                self._join_fewer(sum(asked.rows for asked in group), error)
            except BaseException:  # noqa: BLE001 - the single runs tell whose error it is
                _log.debug("a joined run failed", exc_info=True)
        outcomes: list[list[Array] | BaseException] = []
        for asked in group:
            try:
                outcomes.append(session.run(asked.wanted, asked.feeds))
            except BaseException as error:  # noqa: BLE001 - others must go on
                outcomes.append(error)
        return outcomes

    def _joint(self, session: Runner, group: list[Asked]) -> list[list[Array]]:
        rows = sum(asked.rows for asked in group)
        size = self.batching.size_of(rows)
        outputs = session.run(self._names, joined([asked.feeds for asked in group], size))
        counts = [asked.rows for asked in group]
        parts = split(counts, outputs, size)
        for asked in group:
            asked.together = rows
        places = {name: place for place, name in enumerate(self._names)}
        return [
            [made[places[name]] for name in asked.wanted]
            for asked, made in zip(group, parts, strict=True)
        ]

    def _join_fewer(self, rows: int, error: VkmnnError) -> None:
        """Halve the rows of joined runs: those of the last one were too many for the memory."""
        most = min(rows, self.batching.most) // 2
        _log.warning("'%s': %d rows are too many for a run: %s", self.name, rows, error)
        if most <= 1:
            self._against = "runs of several requests take too much memory"
            return
        preferred = tuple(one for one in self.batching.preferred if one <= most)
        self.batching = replace(self.batching, most=most, preferred=preferred)

    def _may_join(self, session: Runner, asked: Asked) -> bool:
        """Return whether rows are independent: a request alone and beside another one agree."""
        with self._checking:
            if self._against is not None or self._checked:
                return self._against is None
            other = other_than(asked.feeds)
            if other is None:  # tells nothing: another request will
                return False
            try:
                alone = session.run(self._names, asked.feeds)
                size = 2 * asked.rows
                beside = session.run(self._names, joined([asked.feeds, other], size))
                ours = split([asked.rows, asked.rows], beside, size)[0]
                if not are_close(ours, alone):
                    self._against = "the results of a row depend on the other rows of its run"
            except VkmnnError as error:
                if isinstance(error, DeviceLostError):
                    return False
                if isinstance(error, _TOO_LARGE):
                    self._join_fewer(2 * asked.rows, error)
                    return False
                # The request itself may be wrong: then it fails alone too, and decides nothing.
                if _runs(session, self._names, asked.feeds):
                    self._against = f"a joined run failed: {error.message}"[:300]
                return False
            self._checked = True
            if self._against:
                _log.info("requests for '%s' are not joined: %s", self.name, self._against)
            return self._against is None


def _reason(session: Runner, batching: Batching) -> str | None:
    if batching.most == 1:
        return "it is turned off"
    if getattr(session, "keeps_states", False):
        return "the network keeps states between runs"
    return reason_against(session.get_inputs(), session.get_outputs())


def _runs(session: Runner, names: list[str], feeds: Mapping[str, Array]) -> bool:
    try:
        session.run(names, feeds)
    except VkmnnError:
        return False
    return True


def _deliver(group: Sequence[Asked], outcomes: Sequence[list[Array] | BaseException]) -> None:
    for asked, outcome in zip(group, outcomes, strict=True):
        if asked.future.done():  # its client has disconnected
            continue
        if isinstance(outcome, VkmnnError):
            asked.future.set_exception(outcome)
        elif isinstance(outcome, BaseException):
            _log.error("a run failed", exc_info=outcome)
            asked.future.set_exception(as_http(outcome))
        else:
            asked.future.set_result(outcome)
