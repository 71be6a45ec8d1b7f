"""Automatic batch size: a trial on one item, within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.base.row_proofs import are_close, other_than
from vkmnn.errors import (
    BudgetError,
    DeviceError,
    DeviceLimitError,
    OutOfDeviceMemoryError,
    OutOfHostMemoryError,
    VkmnnError,
)
from vkmnn.ir import Array

T = TypeVar("T")
Feeds = Mapping[str, Array]

MOST = 32
"""Maximum number of items in a run; more would gain little."""
_TURNS = 16
"""Maximum number of items that a thread takes at a time if they do not share runs."""
_BYTES = 16 << 20
"""Maximum bytes of the items, or inputs, of a run; activations take many times as much."""
_SECONDS = 0.25
"""Maximum seconds of a run: the overhead of longer ones does not matter."""
_RUNS = 8
"""Minimum number of runs of a job, since each number of rows needs a plan."""
_LOOKS = 16
"""Maximum number of items to try until one can be read and used for the trial."""
_TOO_LARGE = (OutOfDeviceMemoryError, OutOfHostMemoryError, DeviceLimitError, BudgetError)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """How one item runs by itself.

    Attributes:
        feeds: the feeds of an item, with the first axis, and the bytes that it takes until it
            runs; None if it cannot be joined. Raises VkmnnError for items that fail.
        run: returns the outputs for feeds; None if items never share a run of the network, and a
            thread only takes several at a time.
        step: the number of items is a multiple of it.
    """

    feeds: Callable[[Any], tuple[Feeds, int] | None]
    run: Callable[[Feeds], Sequence[Array]] | None
    step: int = 1


def sized(trial: Trial, items: Iterable[T], count: int) -> tuple[int, str, Iterator[T]]:
    """Return how many items are taken at a time, why no more share a run, and all items.

    The reason is "" for short jobs, and for items that do not share runs.

    An item runs alone and among others. If its outputs differ by more than rounding, the network
    relates the rows of a run to each other, and every item has to run alone.

    Args:
        trial: how one item runs.
        items: the items; the first of them are read.
        count: their number.

    Raises:
        DeviceError: the device is lost.
    """
    source, looked = iter(items), list[T]()
    size, reason = 1, "no item shows whether items may share runs"
    most = min(MOST, count // _RUNS)
    if most < 2:
        return trial.step, "", source
    for item in source:
        looked.append(item)
        feeds, held = _feeds(trial, item) or ({}, 0)
        if feeds and trial.run is None:
            size, reason = _in_turn(min(most, _TURNS), held, trial.step), ""
            break
        other = other_than(feeds) if feeds else None
        if other is not None and trial.run is not None:
            size, reason = _tried(trial.run, feeds, other, most, held)
            break
        if len(looked) == _LOOKS:
            break
    return size, reason, chain(looked, source)


def _in_turn(most: int, held: int, step: int) -> int:
    fit = min(most, _BYTES // max(held, 1))
    return max(fit // step, 1) * step


def _feeds(trial: Trial, item: object) -> tuple[Feeds, int] | None:
    try:
        return trial.feeds(item)
    except DeviceError:
        raise
    except VkmnnError:
        return None  # the job reports it


def _tried(
    run: Callable[[Feeds], Sequence[Array]], feeds: Feeds, other: Feeds, most: int, held: int
) -> tuple[int, str]:
    """Return the number of items that share a run, and why no more do."""
    try:
        run(feeds)  # plans
        begun = time.monotonic()
        alone = run(feeds)
        seconds = time.monotonic() - begun
    except VkmnnError as error:
        if isinstance(error, DeviceError):
            raise
        return 1, f"the first one fails: {error.message}"
    held = max(held, sum(array.nbytes for array in feeds.values()))
    bounds = {
        most: "more would gain little" if most == MOST else "there are few",
        int(_BYTES // max(held, 1)): "they are large",
        int(_SECONDS // max(seconds, 1e-6)): "each takes long",
    }
    size = 1 << (max(min(bounds), 1).bit_length() - 1)
    reason = bounds[min(bounds)]
    while size > 1:
        try:
            return (size, reason) if _agree(run, feeds, other, size, alone) else (1, _MIXED)
        except _TOO_LARGE:
            size, reason = size // 2, "more take too much memory"
        except VkmnnError as error:
            if isinstance(error, DeviceError):
                raise
            return 1, f"a run of {size} failed: {error.message}"
    return size, reason


_MIXED = "the results of an item depend on the others of its run"


def _agree(
    run: Callable[[Feeds], Sequence[Array]], feeds: Feeds, other: Feeds, size: int,
    alone: Sequence[Array],
) -> bool:  # fmt: skip
    """Tell whether the outputs of an item are the same among others."""
    beside = run(
        {name: np.concatenate([feeds[name], *[other[name]] * (size - 1)]) for name in feeds}
    )
    rows = next(iter(feeds.values())).shape[0]
    for one, single in zip(beside, alone, strict=True):
        if not single.ndim or single.shape[0] != rows or one.shape[:1] != (rows * size,):
            return False
    return are_close([one[:rows] for one in beside], list(alone))
