"""Which dispatches of a command buffer must wait for which others, derived from byte ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class IntervalSet:
    """A set of bytes, kept as sorted half-open intervals that neither overlap nor touch."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a byte of [start, end) is in the set."""
        i = bisect_right(self.ends, start)
        return i < len(self.starts) and self.starts[i] < end

    def add(self, start: int, end: int) -> None:
        """Add the bytes [start, end)."""
        starts, ends = self.starts, self.ends
        i = bisect_left(ends, start)  # first interval that reaches `start`
        j = bisect_right(starts, end)  # first interval that begins after `end`
        if i < j:
            start = min(start, starts[i])
            end = max(end, ends[j - 1])
        starts[i:j] = [start]
        ends[i:j] = [end]

    def remove(self, start: int, end: int) -> None:
        """Remove the bytes [start, end)."""
        starts, ends = self.starts, self.ends
        i = bisect_right(ends, start)  # first interval that ends after `start`
        j = bisect_left(starts, end)  # first interval that begins at or after `end`
        if i >= j:
            return
        first, last = starts[i], ends[j - 1]
        new_starts, new_ends = [], []
        if first < start:
            new_starts.append(first)
            new_ends.append(start)
        if last > end:
            new_starts.append(end)
            new_ends.append(last)
        starts[i:j] = new_starts
        ends[i:j] = new_ends

    def clear(self) -> None:
        """Remove everything."""
        self.starts.clear()
        self.ends.clear()


class BufferHazards:
    """What has happened to the bytes of one buffer.

    `read` and `written` hold the accesses since the last barrier. `stale` holds bytes whose last
    write has not been made visible to later writes and has not been read since: writing them again
    needs a barrier with write access (write after write). A read ordered after the write, and a
    write ordered after that read, need no more than the two barriers between them.
    """

    __slots__ = ("read", "stale", "written")

    def __init__(self) -> None:
        self.read = IntervalSet()
        self.written = IntervalSet()
        self.stale = IntervalSet()
