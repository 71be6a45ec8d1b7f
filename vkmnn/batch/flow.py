"""Items on their way to results: prepared in threads, grouped, run on several devices."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from queue import SimpleQueue
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.base.threads import Workers
from vkmnn.errors import (
    DeviceError,
    InvalidInputError,
    MissingExtraError,
    OutOfDeviceMemoryError,
    OutOfHostMemoryError,
)

_LOG = logging.getLogger(__name__)
FATAL = (DeviceError, MissingExtraError, OutOfHostMemoryError)
"""Errors that are not those of an item: they end a flow."""
_PENDING: Any = object()
Lane = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An item without a result.

    Attributes:
        item: the item as it was given.
        error: why it has none.
    """

    item: Any
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """How items become results.

    Attributes:
        prepare: turns an item into the value that runs; called in threads. None if items are ready.
        alike: the key that values in one run share.
        lanes: one function per device, from values to as many results; called in threads.
        batch: values in one run at most.
        in_flight: concurrent runs per lane.
        threads: threads that prepare.
        is_open: whether the lanes still work; errors after their end are fatal.
    """

    prepare: Callable[[Any], Any] | None
    alike: Callable[[Any], Hashable]
    lanes: Sequence[Lane]
    batch: int
    in_flight: int
    threads: int
    is_open: Callable[[], bool] = lambda: True

    @property
    def most_alive(self) -> int:
        """The number of items that are read and not yet yielded, at most."""
        return (len(self.lanes) * self.in_flight + 2) * self.batch + 2 * self.threads

    def ends_all(self, error: BaseException) -> bool:
        """Tell whether an error is fatal, and not that of an item."""
        return not isinstance(error, Exception) or isinstance(error, FATAL) or not self.is_open()


@dataclass(slots=True, eq=False)
class _Slot:
    """An item on its way; its value is dropped once there is an outcome."""

    item: Any
    value: Any = None
    outcome: Any = _PENDING


@dataclass(slots=True, eq=False)
class _Board:
    """Where the items are; only the thread that reads the results changes it."""

    groups: dict[Hashable, list[_Slot]] = field(default_factory=dict)
    full: deque[list[_Slot]] = field(default_factory=deque)
    order: deque[_Slot] = field(default_factory=deque)
    ready: deque[_Slot] = field(default_factory=deque)
    preparing: int = 0
    alive: int = 0
    exhausted: bool = False


_Events = SimpleQueue[Callable[[], None]]


class _Crew:
    """Threads that take values from a queue, and end once it is empty.

    Starting work in a pool takes as long as reading a small picture; a thread that is at work
    takes the next value at no cost.

    Args:
        workers: the pool.
        count: threads of the crew, at most.
        queue: the values; crews may share it.
        work: what a thread does with a value.
        events: where the end of a thread is reported.
    """

    def __init__(
        self, workers: Workers, count: int, queue: deque[Any], work: Callable[[Any], None],
        events: _Events,
    ) -> None:  # fmt: skip
        self._workers, self._count, self._work, self._events = workers, count, work, events
        self.queue = queue
        self.active = 0

    @property
    def is_free(self) -> bool:
        """Whether another thread could start."""
        return self.active < self._count

    def call(self) -> None:
        """Start a thread; to be repeated as long as values wait and the crew is free."""
        self.active += 1
        self._workers.submit(self._pull)

    def _pull(self) -> None:
        while True:
            try:
                value = self.queue.popleft()
            except IndexError:
                self._events.put(self._ended)
                return
            self._work(value)

    def _ended(self) -> None:
        self.active -= 1


def _start(crews: Sequence[_Crew]) -> None:
    """Start threads for the values that wait, in the crews that have the fewest."""
    while crews[0].queue:
        crew = min(crews, key=lambda one: one.active)
        if not crew.is_free:
            return
        crew.call()


class Flow:
    """One pass over items; at most `work.most_alive` of them exist at a time.

    Args:
        work: how items become results.
        ordered: whether results keep the order of the items.

    Attributes:
        repeated: runs of several items that failed, and were repeated item by item.
    """

    def __init__(self, work: Work, ordered: bool = True) -> None:
        self._work = work
        self._ordered = ordered
        self._events: _Events = SimpleQueue()
        self._board = _Board()
        self._stopped = False
        self.repeated = 0

    def outcomes(self, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each item with its result, or with `Failed`.

        Raises:
            Exception: an error that ends the flow, or one of the iterable itself.
        """
        work, board, source, events = self._work, self._board, iter(items), self._events
        preparers = Workers(work.threads if work.prepare else 0, "vkmnn-prepare")
        runners = Workers(len(work.lanes) * work.in_flight, "vkmnn-batch")
        readers = _Crew(preparers, work.threads or 1, deque(), self._prepare, events)
        lanes = [
            _Crew(runners, work.in_flight, board.full, partial(self._run, lane), events)
            for lane in work.lanes
        ]
        try:
            while True:
                self._take(source, readers)
                _start(lanes)
                before = board.alive
                for slot in self._arrived():
                    yield slot.item, slot.outcome
                if board.exhausted and not board.alive:
                    return
                if board.alive < before:
                    continue  # there is room for more items, which may fill the groups
                self._flush(lanes)
                _start(lanes)
                if board.exhausted or board.alive >= work.most_alive or not events.empty():
                    events.get()()
                while not events.empty():
                    events.get()()
        finally:
            self._stopped = True
            preparers.close(cancel=True)
            runners.close(cancel=True)

    # --- the thread that reads results ----------------------------------------------------------

    def _take(self, source: Iterator[Any], readers: _Crew) -> None:
        """Read items as long as there is room, until something else happens."""
        board, work = self._board, self._work
        while not board.exhausted and board.alive < work.most_alive:
            try:
                slot = _Slot(next(source))
            except StopIteration:
                board.exhausted = True
                break
            board.alive += 1
            board.preparing += 1
            if self._ordered:
                board.order.append(slot)
            readers.queue.append(slot)
            if readers.is_free:
                readers.call()
            if not self._events.empty():
                return
        _start([readers])

    def _arrived(self) -> Iterator[_Slot]:
        board = self._board
        while board.order and board.order[0].outcome is not _PENDING:
            board.alive -= 1
            yield board.order.popleft()
        while board.ready:
            board.alive -= 1
            yield board.ready.popleft()

    def _flush(self, lanes: Sequence[_Crew]) -> None:
        """Close groups that will not become full."""
        board = self._board
        if not board.exhausted and board.alive < self._work.most_alive:
            return
        if board.preparing or board.full:
            return
        if board.exhausted:
            board.full.extend(board.groups.values())
            board.groups.clear()
        elif board.groups and any(lane.is_free for lane in lanes):
            board.full.append(board.groups.pop(next(iter(board.groups))))  # the oldest

    def _prepared(self, slot: _Slot, value: Any, key: Hashable) -> None:
        board = self._board
        board.preparing -= 1
        if isinstance(value, Failed):
            self._settle(slot, value)
            return
        slot.value = value
        group = board.groups.setdefault(key, [])
        group.append(slot)
        if len(group) >= self._work.batch:
            board.full.append(board.groups.pop(key))

    def _finished(self, group: list[_Slot], outcomes: Sequence[Any]) -> None:
        for slot, outcome in zip(group, outcomes, strict=True):
            self._settle(slot, outcome)

    def _repeated(self, count: int, reason: str) -> None:
        """Count a run that failed; the first is logged."""
        if not self.repeated:
            _LOG.warning(
                "a run of %d items failed, and is repeated item by item: %s", count, reason
            )
        self.repeated += 1

    def _settle(self, slot: _Slot, outcome: Any) -> None:
        slot.value, slot.outcome = None, outcome
        if not self._ordered:
            self._board.ready.append(slot)

    # --- other threads --------------------------------------------------------------------------

    def _prepare(self, slot: _Slot) -> None:
        if self._stopped:
            return
        work = self._work
        value: Any = slot.item
        key: Hashable = None
        try:
            if work.prepare is not None:
                value = work.prepare(slot.item)
            key = work.alike(value)
        except BaseException as error:  # noqa: BLE001 - the thread that reads results raises it
            if work.ends_all(error) or not isinstance(error, Exception):
                self._fail(error)
                return
            value = Failed(slot.item, error)
        self._events.put(lambda: self._prepared(slot, value, key))

    def _run(self, lane: Lane, group: list[_Slot]) -> None:
        if self._stopped:
            return
        try:
            outcomes = self._results(lane, group)
        except BaseException as error:  # noqa: BLE001 - the thread that reads results raises it
            self._fail(error)
            return
        self._events.put(lambda: self._finished(group, outcomes))

    def _results(self, lane: Lane, group: list[_Slot]) -> list[Any]:
        """Run a group; if that fails, run each value alone to find those that fail."""
        try:
            made = list(lane([slot.value for slot in group]))
            if len(made) != len(group):
                raise InvalidInputError(
                    f"a run of {len(group)} items returned {len(made)} results",
                    hint="run items alone: batch=1",
                )
            return made
        except Exception as error:
            alone = len(group) == 1
            may_fit = not alone and isinstance(error, OutOfDeviceMemoryError)
            if self._work.ends_all(error) and not may_fit:
                raise
            if alone:
                return [Failed(group[0].item, error)]
            reason = str(error)
        self._events.put(lambda: self._repeated(len(group), reason))
        return [one for slot in group for one in self._results(lane, [slot])]

    def _fail(self, error: BaseException) -> None:
        def fail() -> None:
            raise error

        self._events.put(fail)
