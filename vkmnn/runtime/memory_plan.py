"""Planners that let short-lived ranges share bytes, or whole buffers.

The cost grows a little faster than the number of ranges: the search for the best plan is limited to
`WORK` comparisons of neighbours; plans that are too crowded for it are placed in the order of time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError

MAX_ATTEMPTS = 8

WORK = 2_000_000
"""Limit of all attempts together, in comparisons with placed ranges: about two seconds."""

LOOKS_PER_RANGE = 8
"""Fixed cost of placing a range, in comparisons."""

MAX_BUFFERS_TRIED = 100
"""Number of buffers that a range may try, smallest first."""


@dataclass(slots=True)  # not frozen, which takes twice as long: plans make hundreds
class Lifetime:
    """A range of `nbytes` bytes that must keep its content from step `first` to `last`, inclusive.

    Its offset will be a multiple of `alignment`.
    """

    first: int
    last: int
    nbytes: int
    alignment: int = 256

    def __post_init__(self) -> None:
        if self.last < self.first or self.nbytes < 0 or self.alignment < 1:
            raise InvalidInputError(f"not a lifetime: {self}")


def plan_offsets(lifetimes: Sequence[Lifetime], eager: bool = False) -> tuple[list[int], int, int]:
    """Place ranges so that those alive at the same step do not overlap.

    Args:
        lifetimes: the ranges.
        eager: place them in the order of time only, in one pass.

    Returns:
        The offset of every lifetime, the bytes needed in all, and a lower bound of any plan: the
        most bytes that are alive at one step.

    They are placed by size, each into the smallest gap that fits: first those that live when the
    most bytes are alive, the largest first (after "greedy by breadth" and "greedy by size":
    Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020). The ranges
    that ended on top begin the next attempt. An order that needed several attempts and wasted
    nothing is tried first by the next plan of the same lifetimes. If all of that wastes memory, or
    is too much work, they are placed in the order of time, as an allocator would; this comes last
    because it reuses memory that was just read, which makes dispatches wait for each other.
    """
    alive = _alive(lifetimes)
    bound = max(alive, default=0)
    if eager:
        return *_place_by_time(lifetimes), bound
    best: list[int] = []
    smallest = -1
    neighbours = _neighbours(
        tuple([(item.first, item.last, item.nbytes > 0) for item in lifetimes])
    )
    looks = 2 * neighbours.pairs + LOOKS_PER_RANGE * len(lifetimes)
    attempts = min(MAX_ATTEMPTS, WORK // max(looks, 1))
    proven = neighbours.proven
    if attempts and proven:
        best, smallest = _place_in_order(lifetimes, proven, neighbours.lists())
        if smallest == bound:
            return best, smallest, bound
    order = _by_breadth(lifetimes, alive) if attempts else []
    tried: list[list[int]] = []
    for _ in range(attempts):
        offsets, total = _place_in_order(lifetimes, order, neighbours.lists())
        if smallest < 0 or total < smallest:
            best, smallest = offsets, total
        if smallest == bound:
            neighbours.proven = order if tried else []
            return best, smallest, bound
        tried.append(order)
        top = [i for i in order if offsets[i] + lifetimes[i].nbytes == total]
        on_top = set(top)
        order = top + [i for i in order if i not in on_top]
        if order in tried:  # from here on, attempts would repeat themselves
            break
    by_time, total = _place_by_time(lifetimes)
    if smallest < 0 or total < smallest:
        best, smallest = by_time, total
    return best, smallest, bound


def _place_by_time(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Place every range at the start of its lifetime, the largest of a step first; O(n log n).

    Ranges that ended before are free: neighbouring gaps are joined, and the smallest that fits is
    used, or the end moves.
    """
    offsets = [0] * len(lifetimes)
    # In whole units: gaps begin where ranges may, and the first that is large enough will do.
    rooms = [_align(item.nbytes, item.alignment) for item in lifetimes]
    gaps = _Gaps()
    ends = sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].last, reverse=True)
    for i in sorted(
        range(len(lifetimes)), key=lambda i: (lifetimes[i].first, -lifetimes[i].nbytes)
    ):
        item = lifetimes[i]
        while lifetimes[ends[-1]].last < item.first:
            over = ends.pop()
            gaps.give(offsets[over], rooms[over])
        offsets[i] = gaps.take(rooms[i], item.alignment)
    ends_at = (at + item.nbytes for at, item in zip(offsets, lifetimes, strict=True) if item.nbytes)
    return offsets, max(ends_at, default=0)


class _Gaps:
    """Free byte ranges below the highest byte that was ever used."""

    def __init__(self) -> None:
        self.top = 0
        self._sizes: list[tuple[int, int]] = []  # sorted (bytes, offset)
        self._starts: dict[int, int] = {}  # offset: end
        self._ends: dict[int, int] = {}  # end: offset

    def take(self, nbytes: int, alignment: int) -> int:
        """Return the offset of `nbytes` free bytes."""
        if nbytes == 0:
            return 0
        for place in range(bisect_left(self._sizes, (nbytes, 0)), len(self._sizes)):
            size, gap = self._sizes[place]
            offset = _align(gap, alignment)
            if offset + nbytes <= gap + size:
                self._remove(gap)
                self._add(gap, offset)
                self._add(offset + nbytes, gap + size)
                return offset
        gap = self._ends.get(self.top, self.top)
        if gap < self.top:
            self._remove(gap)
        offset = _align(gap, alignment)
        self._add(gap, offset)
        self.top = offset + nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Make a range free again."""
        if nbytes == 0:
            return
        end = offset + nbytes
        if offset in self._ends:
            offset = self._ends[offset]
            self._remove(offset)
        if end in self._starts:
            after, end = end, self._starts[end]
            self._remove(after)
        self._add(offset, end)

    def _add(self, start: int, end: int) -> None:
        if start < end:
            insort(self._sizes, (end - start, start))
            self._starts[start] = end
            self._ends[end] = start

    def _remove(self, start: int) -> None:
        end = self._starts.pop(start)
        del self._ends[end]
        del self._sizes[bisect_left(self._sizes, (end - start, start))]


class _Neighbours:
    """Non-empty ranges whose lifetimes overlap.

    Args:
        spans: first and last step of every range, and whether it has bytes.

    Attributes:
        proven: an order that wasted nothing for other sizes, after attempts that did.
    """

    def __init__(self, spans: Sequence[tuple[int, int, bool]]) -> None:
        self._count = len(spans)
        used = [i for i, (_, _, has_bytes) in enumerate(spans) if has_bytes]
        used.sort(key=lambda i: spans[i][0])
        self._used = np.array(used, np.int64)
        first = np.array([spans[i][0] for i in used], np.int64)
        last = np.array([spans[i][1] for i in used], np.int64)
        # Those that begin after a range, and before it ends, are consecutive.
        self._later = np.searchsorted(first, last, "right") - np.arange(len(used)) - 1
        self._lists: list[list[int]] = []
        self.proven: list[int] = []
        self.pairs = int(self._later.sum())

    def lists(self) -> list[list[int]]:
        """Return the neighbours of every range."""
        if self._lists:
            return self._lists
        early = np.repeat(np.arange(len(self._used)), self._later)
        row = np.cumsum(self._later) - self._later
        late = early + 1 + np.arange(self.pairs) - row[early]
        one = self._used[np.concatenate([early, late])]
        other = self._used[np.concatenate([late, early])]
        order = np.argsort(one, kind="stable")
        others = other[order].tolist()
        ends = np.cumsum(np.bincount(one, minlength=self._count)).tolist()
        self._lists = [others[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return self._lists


@lru_cache(maxsize=16)
def _neighbours(spans: tuple[tuple[int, int, bool], ...]) -> _Neighbours:
    """Return the neighbours, which are the same for a network's other input shapes."""
    return _Neighbours(spans)


def _by_breadth(lifetimes: Sequence[Lifetime], alive: Sequence[int]) -> list[int]:
    """Return the ranges by the most bytes alive at the same time, then by their own size."""
    first = np.array([item.first for item in lifetimes], np.int64)
    width = np.array([item.last for item in lifetimes], np.int64) - first + 1
    breadth = np.zeros(len(lifetimes), np.int64)
    # most[i]: the maximum alive at steps i to i + span - 1, for every power of two.
    peak, span, longest = np.array(alive, np.int64), 1, int(width.max(initial=0))
    while span <= longest:
        fit = np.nonzero((width >= span) & (width < 2 * span))[0]
        breadth[fit] = np.maximum(peak[first[fit]], peak[first[fit] + width[fit] - span])
        peak = np.maximum(peak[: max(len(peak) - span, 0)], peak[span:])
        span *= 2
    most = breadth.tolist()
    return sorted(
        range(len(lifetimes)), key=lambda i: (-most[i], -lifetimes[i].nbytes, lifetimes[i].first)
    )


def _place_in_order(
    lifetimes: Sequence[Lifetime], order: Sequence[int], neighbours: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    start = [0] * len(lifetimes)
    end = [0] * len(lifetimes)  # 0 for unplaced ranges
    for i in order:
        item = lifetimes[i]
        if item.nbytes == 0:
            continue
        taken = sorted([(start[j], end[j]) for j in neighbours[i] if end[j]])
        start[i] = _best_fit(taken, item.nbytes, item.alignment)
        end[i] = start[i] + item.nbytes
    return start, max(end, default=0)


def plan_buffers(lifetimes: Sequence[Lifetime]) -> tuple[list[int], list[int], int]:
    """Give every range a whole buffer, shared by ranges that are never alive at the same step.

    Returns:
        The number of every lifetime's buffer, the bytes of every buffer, and the lower bound of
        `plan_offsets`.

    The largest range chooses first, and uses the smallest buffer that is free for its lifetime
    ("greedy by size for shared objects", by the same authors).
    """
    sizes: list[int] = []
    users: list[list[tuple[int, int]]] = []  # sorted (first, last) by buffer
    chosen = [0] * len(lifetimes)
    order = sorted(
        range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first, i)
    )
    for i in order:
        item = lifetimes[i]
        span = (item.first, item.last)
        # Buffers were created from the largest to the smallest.
        tried = range(len(users) - 1, max(len(users) - MAX_BUFFERS_TRIED, 0) - 1, -1)
        number = next((n for n in tried if _is_free(users[n], span)), len(users))
        if number == len(users):
            sizes.append(item.nbytes)
            users.append([])
        insort(users[number], span)
        chosen[i] = number
    return chosen, sizes, max(_alive(lifetimes), default=0)


def _is_free(spans: Sequence[tuple[int, int]], span: tuple[int, int]) -> bool:
    """True if `span` overlaps none of the sorted, disjoint `spans`."""
    place = bisect_left(spans, span)
    return (place == 0 or spans[place - 1][1] < span[0]) and (
        place == len(spans) or span[1] < spans[place][0]
    )


def _best_fit(taken: Sequence[tuple[int, int]], nbytes: int, alignment: int) -> int:
    """Return the offset of the smallest gap that holds `nbytes`, or the end of all ranges."""
    best_gap, best_top, top = -1, 0, 0
    for start, end in taken:
        gap = start - top
        better = gap >= nbytes and (best_gap < 0 or gap < best_gap)
        if better and -(-top // alignment) * alignment + nbytes <= start:  # _align, for time
            best_gap, best_top = gap, top
        if end > top:
            top = end
    return _align(top if best_gap < 0 else best_top, alignment)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _alive(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Return the bytes alive at each step, from step 0 to the last."""
    changes = [0] * (max([item.last for item in lifetimes], default=-1) + 2)
    for item in lifetimes:
        changes[item.first] += item.nbytes
        changes[item.last + 1] -= item.nbytes
    return list(accumulate(changes))[:-1]
