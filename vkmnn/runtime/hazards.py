"""Which dispatches of a command buffer must wait for which others, derived from byte ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class IntervalSet:
    """A set of bytes, kept as sorted half-open intervals that neither overlap nor touch.

    Between two barriers a set mostly holds no interval or one; these cases go first.
    """

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a byte of [start, end) is in the set."""
        starts, ends = self.starts, self.ends
        if not starts:
            return False
        if len(starts) == 1:
            return starts[0] < end and start < ends[0]
        i = bisect_right(ends, start)  # first interval that ends after `start`
        return i < len(starts) and starts[i] < end

    def add(self, start: int, end: int) -> None:
        """Add the bytes [start, end)."""
        starts, ends = self.starts, self.ends
        if not starts:
            starts.append(start)
            ends.append(end)
            return
        i = bisect_left(ends, start)  # first interval that reaches `start`
        if i == len(starts) or starts[i] > end:
            starts.insert(i, start)
            ends.insert(i, end)
            return
        j = bisect_right(starts, end)  # first interval that begins after `end`
        starts[i:j] = [min(start, starts[i])]
        ends[i:j] = [max(end, ends[j - 1])]

    def remove(self, start: int, end: int) -> None:
        """Remove the bytes [start, end)."""
        starts, ends = self.starts, self.ends
        if len(starts) == 1 and start <= starts[0] and ends[0] <= end:
            self.clear()
            return
        i = bisect_right(ends, start)  # first interval that ends after `start`
        if i == len(starts) or starts[i] >= end:
            return
        j = bisect_left(starts, end)  # first interval that begins at or after `end`
        first, last = starts[i], ends[j - 1]
        starts[i:j] = ([first] if first < start else []) + ([end] if last > end else [])
        ends[i:j] = ([start] if first < start else []) + ([last] if last > end else [])

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

    As long as a buffer of `constant` content has not been written, its reads are not tracked one by
    one: `last_read` is the number of barriers that there were before the last of them.
    """

    __slots__ = ("constant", "last_read", "read", "stale", "written")

    def __init__(self, *, constant: bool) -> None:
        self.constant = constant
        self.last_read = -1
        self.read = IntervalSet()
        self.written = IntervalSet()
        self.stale = IntervalSet()

    def is_read(self, start: int, end: int, barriers: int) -> bool:
        """Whether [start, end) has been read since barrier number `barriers`."""
        return self.last_read == barriers or self.read.overlaps(start, end)

    def note_read(self, start: int, end: int, barriers: int) -> None:
        """Record that [start, end) is read after `barriers` barriers."""
        if self.constant:
            self.last_read = barriers
        else:
            self.read.add(start, end)
            if self.stale.starts:
                self.stale.remove(start, end)

    def note_write(self, start: int, end: int) -> None:
        """Record that [start, end) is written."""
        self.constant = False
        self.written.add(start, end)
        self.stale.add(start, end)

    def pass_barrier(self, visible_to_writes: bool) -> None:
        """Forget what a barrier has ordered."""
        if self.read.starts:
            self.read.clear()
        if self.written.starts:
            self.written.clear()
        if visible_to_writes and self.stale.starts:
            self.stale.clear()
