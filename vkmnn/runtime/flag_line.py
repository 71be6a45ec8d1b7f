"""The counters by which the levels of a command buffer follow each other without barriers.

A level is what runs between two barriers, or places where flags replace one. Its workgroups count
themselves in; those of the next level wait until all have. See docs/decisions/flags.md.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.runtime.flag_code import OWN_WORD, RECORD_WORDS, RESET_WORD, TARGET_WORD, WAIT_WORD
from vkmnn.runtime.memory import BufferRange, MemoryKind

if TYPE_CHECKING:
    from vkmnn.runtime.opened import OpenDevice

LINE_BYTES = 128
"""Distance of counters: each has a cache line of its own."""
LEAST_LEVELS = 3
"""Levels from which on each can set the counter two before it back to zero."""


@dataclass(slots=True)
class _Level:
    """A level: whether it waits for the one before, and the workgroups that count themselves in."""

    waits: bool
    workgroups: int = 0


class FlagLine:
    """Counters of one command buffer.

    Args:
        device: the device.
        most: the most dispatches that the command buffer may have.
        report: the word, zero before, that a wait without success sets.

    Attributes:
        buffer: the records and counters, to be freed with the command buffer.
        report: as above.
    """

    def __init__(self, device: OpenDevice, most: int, report: BufferRange) -> None:
        alignment = device.info.limits.storage_offset_alignment
        self._record_bytes = -(-4 * RECORD_WORDS // alignment) * alignment
        self._counters = -(-most * self._record_bytes // LINE_BYTES) * LINE_BYTES
        self.buffer = device.allocate(self._counters + (most + 1) * LINE_BYTES, MemoryKind.DEVICE)
        self.report = report
        self._levels: list[_Level] = []
        self._is_open = False
        self._is_whole = True

    @property
    def count(self) -> int:
        """The number of places at which flags replace a barrier."""
        return sum(level.waits for level in self._levels)

    @property
    def waits(self) -> bool:
        """Whether flags order the present level after the one before."""
        return self._is_open and self._levels[-1].waits

    @property
    def can_pass(self) -> bool:
        """Whether everything since the last barrier or flag counts itself in."""
        return self._is_open and self._is_whole

    def wait(self) -> None:
        """Begin a level that waits for the one before."""
        self._levels.append(_Level(waits=True))
        self._is_open = self._is_whole = True

    def close(self) -> None:
        """End the level by a barrier."""
        self._is_open, self._is_whole = False, True

    def mix(self) -> None:
        """Note a command that does not count itself in: only a barrier may end the level."""
        self._is_whole = False

    def join(self, groups: tuple[int, int, int]) -> tuple[BufferRange, BufferRange]:
        """Add a dispatch that counts itself in to the level; return its last two bindings."""
        if not self._is_open:
            self._levels.append(_Level(waits=False))
            self._is_open = True
        self._levels[-1].workgroups += prod(groups)
        offset = (len(self._levels) - 1) * self._record_bytes
        return BufferRange(self.buffer, offset, self.buffer.nbytes - offset), self.report

    def counters(self) -> BufferRange | None:
        """Write the records; return the counters if the commands have to set them back to zero."""
        levels, count = self._levels, len(self._levels)
        image = np.zeros(self.buffer.nbytes // 4, np.uint32)
        # The counter after the last is for those that wait for none, or set none to zero.
        cyclic = count >= LEAST_LEVELS
        for number, level in enumerate(levels):
            words = {
                WAIT_WORD: number - 1 if level.waits else count,
                OWN_WORD: number,
                RESET_WORD: (number - 2) % count if cyclic else count,
            }
            at = number * self._record_bytes // 4
            for word, counter in words.items():
                image[at + word] = (self._counters + counter * LINE_BYTES) // 4 - at
            image[at + TARGET_WORD] = self._target(number - 1) if level.waits else 0
        self.buffer.write(0, image)
        if cyclic or not self.count:
            return None
        return BufferRange(self.buffer, self._counters, self.buffer.nbytes - self._counters)

    def _target(self, number: int) -> int:
        """Return the value at which a level is complete."""
        return self._levels[number].workgroups
