"""Dependencies between the dispatches of a command buffer, derived from byte ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class IntervalSet:
    """A set of bytes as half-open intervals that neither overlap nor touch.

    `bounds` holds the starts and ends in order: positions with an even number of bounds before them
    are outside. Between two barriers, a set usually holds no interval or one.
    """

    __slots__ = ("bounds",)

    def __init__(self) -> None:
        self.bounds: list[int] = []

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any byte of [start, end) is in the set."""
        bounds = self.bounds
        if not bounds or bounds[-1] <= start or end <= bounds[0]:
            return False
        i = bisect_right(bounds, start)
        return i % 2 == 1 or bounds[i] < end

    def add(self, start: int, end: int) -> None:
        """Add the bytes [start, end), at least one."""
        bounds = self.bounds
        if not bounds or bounds[-1] < start:  # the usual order of ranges
            bounds += start, end
            return
        i, j = bisect_left(bounds, start), bisect_right(bounds, end)
        bounds[i:j] = ([] if i % 2 else [start]) + ([] if j % 2 else [end])

    def remove(self, start: int, end: int) -> None:
        """Remove the bytes [start, end), at least one."""
        bounds = self.bounds
        if bounds == [start, end]:  # written bytes are usually read next
            del bounds[:]
            return
        i, j = bisect_left(bounds, start), bisect_right(bounds, end)
        bounds[i:j] = ([start] if i % 2 else []) + ([end] if j % 2 else [])


class BufferHazards:
    """Pending reads and writes of one buffer.

    `read` and `written` hold the accesses since the last barrier. `stale` holds bytes whose last
    write has not been made visible to later writes and has not been read since: writing them again
    needs a barrier with write access (write after write). A read ordered after the write, and a
    write ordered after that read, need no more than the two barriers between them.

    As long as a buffer of `constant` content has not been written, its reads are not tracked
    individually: `last_read` is the number of barriers before the last read.
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
            if self.stale.bounds:
                self.stale.remove(start, end)

    def note_write(self, start: int, end: int) -> None:
        """Record that [start, end) is written."""
        self.constant = False
        self.written.add(start, end)
        self.stale.add(start, end)

    def pass_barrier(self, visible_to_writes: bool) -> None:
        """Forget the accesses that a barrier has ordered."""
        del self.read.bounds[:], self.written.bounds[:]
        if visible_to_writes:
            del self.stale.bounds[:]
