"""NonMaxSuppression by tournament: loop counts."""

from __future__ import annotations

from typing import ClassVar

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, CpuLanes, rotate_lanes
from vkmnn.vulkan.encoder import ceil_div

TOPS = 16
"""Blocks per lane whose best key it holds."""
# Maximum dispatches of one row: sorting takes fewer if all boxes of a long row may be kept.
_MAX_PARTS = 64
SHORT_LOOPS = 400
"""A budget that the loops of small rows exceed, for tests."""
_MAX_SHORT_PARTS = 128


@dataclass(frozen=True, slots=True)
class Tournament:
    """A subgroup of `lanes` per class; up to `rounds` iterations per dispatch."""

    lanes: CpuLanes
    rounds: int = MAX_LOOP_ROUNDS
    family: ClassVar[str] = "tournament"

    def width(self, size: int) -> int:
        """Return how many scores are loaded at once."""
        return 1 if size % 4 else 4

    def block(self, size: int) -> int:
        """Return how many scores share a key."""
        step = self.lanes * self.width(size)
        return step * ceil_div(ceil_div(size, self.lanes * TOPS), step)

    def parts(self, size: int, most: int) -> int:
        """Return the maximum dispatches to select `most` of `size` boxes; 0 if unbounded.

        The kernel counts in the same way: a round for each iteration of a loop, and one to end.
        """
        width, block = self.width(size), self.block(size)
        look = block // (self.lanes * width) + 4
        first = ceil_div(size, self.lanes * block) * (block // width + 2) + 1
        # Every box after the last one that is kept is compared with all others.
        kept = most * (most - 1) // (2 * self.lanes) + (size - most) * (most // self.lanes)
        usable = self.rounds - first - look - most // self.lanes
        return ceil_div(size * look + kept, usable) if usable > 0 else 0


def tournaments(info: DeviceInfo, size: int, most: int, *, short: bool = False) -> list[Tournament]:
    """Return the tournaments that a device supports, those with few dispatches.

    Args:
        info: the device.
        size: boxes of a class.
        most: maximum number of chosen boxes.
        short: add some for tests, whose loops end early.
    """
    found = [(Tournament(lanes), _MAX_PARTS) for lanes in rotate_lanes(info)]
    if short:
        found += [(Tournament(one.lanes, SHORT_LOOPS), _MAX_SHORT_PARTS) for one, _ in found]
    return [one for one, parts in found if 0 < one.parts(size, most) <= parts]
