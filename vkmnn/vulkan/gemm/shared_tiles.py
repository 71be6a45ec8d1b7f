"""Which tile in shared memory computes a product on a GPU: a table, and the rules that rank it.

Convolutions are products, too: pixels are the rows, taps times input channels the inner axis.
docs/decisions/gemm-families.md says where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, multiprocessors
from vkmnn.vulkan.encoder import ceil_div
from vkmnn.vulkan.gemm.problem import Gemm

# A tile is large enough when it still makes as many workgroups per multiprocessor,
FILLED = 96 / 132
# and gives the busiest multiprocessor at most this multiple of the fewest results possible.
MAX_PADDING = 1.4
# With fewer invocations per multiprocessor, groups of them share the K of a tile.
GROUPED_BELOW = 512
# With fewer than FEW workgroups per multiprocessor and so long a K, workgroups share a tile: as
# many as make at most MAX_GRID of them per multiprocessor, each with no less than MIN_PART of K.
FEW = 60 / 132
MAX_GRID = 140 / 132
LONG_K = 1024
MIN_PART = 256

VEC4_BYTES = 16
# What split-K keeps in shared memory besides the tiles, in whole vec4s.
ARRIVAL_BYTES = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of results in shared memory; sizes follow as in `include/staged.glsl.j2`.

    `groups` of invocations share each step along K.
    """

    rows: int
    columns: int
    groups: int = 1

    @property
    def name(self) -> kernels.MatmulSharedTile:
        """The value of the axis `tile`."""
        grouped = f"x{self.groups}" if self.groups > 1 else ""
        return cast(kernels.MatmulSharedTile, f"{self.rows}x{self.columns}{grouped}")

    @property
    def results(self) -> int:
        """How many results a tile has."""
        return self.rows * self.columns

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        tm, tn = 8 if self.rows > 32 else 4, 8 if self.rows > 64 else 4
        return self.rows * self.columns // (tm * tn) * self.groups

    @property
    def depth(self) -> int:
        """Length of a step along K."""
        return 32 if (self.rows, self.groups) == (32, 1) else 16 * self.groups

    def shared_bytes(self, buffers: int) -> int:
        """Shared memory of a workgroup."""
        vectors = self.depth * (self.rows // 4 + 1 + self.columns // 4)
        return buffers * vectors * VEC4_BYTES + ARRIVAL_BYTES

    def buffers(self, info: DeviceInfo) -> int:
        """Return how many buffers fit into shared memory; 0 where the tile does not fit at all."""
        limits = info.limits
        if self.invocations > min(limits.max_workgroup_invocations, limits.max_workgroup_size[0]):
            return 0
        fitting = (n for n in (2, 1) if self.shared_bytes(n) <= limits.max_shared_memory)
        return next(fitting, 0)

    def grid(self, gemm: Gemm) -> tuple[int, int]:
        """Return how many tiles there are down and across."""
        return ceil_div(gemm.rows, self.rows), ceil_div(gemm.columns, self.columns)

    def steps(self, k: int) -> int:
        """Return how many steps an inner axis takes."""
        return ceil_div(k, self.depth)

    def iterations(self, k: int) -> int:
        """Return how often an invocation goes round its loops.

        A loop of lavapipe counts the round in which it finds out that it is done.
        """
        return self.steps(k) * (self.depth // self.groups // 4 + 2) + 1


# The largest first.
TILES = (Tile(128, 128), Tile(128, 64), Tile(64, 64), Tile(32, 32))
# Tiles whose K is shared: by groups of invocations, and by workgroups on top of these.
GROUPED = {Tile(64, 64): Tile(64, 64, 2), Tile(32, 32): Tile(32, 32, 4)}


@dataclass(frozen=True)
class SharedKernel:
    """Tiles in shared memory; K split over `parts` workgroups, of which the last to arrive adds."""

    tile: Tile
    parts: int = 1
    family = "shared"

    @property
    def split(self) -> Literal[0, 1]:
        """The value of the axis `split`."""
        return 1 if self.parts > 1 else 0

    def walk(self, gemm: Gemm) -> dict[str, Any]:
        """Return the parameters that say how workgroups go over a gemm."""
        steps = ceil_div(self.tile.steps(gemm.k), self.parts)
        return {"tiles": workgroups(self.tile, gemm), "steps": steps, "parts": self.parts}


def workgroups(tile: Tile, gemm: Gemm) -> int:
    """Return how many tiles a product has."""
    down, across = tile.grid(gemm)
    return down * across * gemm.batches


def rank_shared(gemm: Gemm, info: DeviceInfo) -> list[SharedKernel]:
    """Return the kernels that fit the device, the likely fastest first; all of them last.

    The largest tile that fills the device without much padding or idleness, else the smallest one.
    With few workgroups its K is shared inside of them, with very few by workgroups as well.
    """
    if gemm.k == 0:
        return []  # there is nothing to load a first step from
    processors = multiprocessors(info)
    fitting = [tile for tile in TILES if tile.buffers(info)]
    busiest = {
        tile: ceil_div(workgroups(tile, gemm), processors) * tile.rows * tile.columns
        for tile in fitting
    }
    lean = [tile for tile in fitting if busiest[tile] <= MAX_PADDING * min(busiest.values())]
    filling = [tile for tile in lean if workgroups(tile, gemm) >= FILLED * processors]
    ranked: list[SharedKernel] = []
    for tile in [*filling, *reversed(lean), *reversed(fitting)]:
        ranked += _alternatives(tile, gemm, info)
    ranked += (kernel for tile in fitting for kernel in _every(tile, gemm, info))
    unique = list(dict.fromkeys(ranked))
    return [kernel for kernel in unique if kernel.tile.iterations(gemm.k) <= MAX_LOOP_ROUNDS]


def _alternatives(tile: Tile, gemm: Gemm, info: DeviceInfo) -> list[SharedKernel]:
    """Return the ways to share the K of a tile, the likely fastest first."""
    count = workgroups(tile, gemm)
    grouped = GROUPED.get(tile)
    if grouped is None or not grouped.buffers(info):
        return [SharedKernel(tile)]
    plain, shared = SharedKernel(tile), SharedKernel(grouped)
    busy = count * tile.invocations >= GROUPED_BELOW * multiprocessors(info)
    if busy or gemm.k < grouped.depth:
        return [plain, shared]
    parts = parts_of(count, gemm.k, info)
    split = [SharedKernel(grouped, _used(grouped, gemm.k, parts))] if parts > 1 else []
    return [*split, shared, plain]


def parts_of(count: int, k: int, info: DeviceInfo) -> int:
    """Return how many workgroups should share the K of each of `count` tiles."""
    processors = multiprocessors(info)
    if count >= FEW * processors or k < LONG_K:
        return 1
    return max(1, min(int(MAX_GRID * processors) // max(count, 1), k // MIN_PART))


def _every(tile: Tile, gemm: Gemm, info: DeviceInfo) -> Iterator[SharedKernel]:
    """Yield all that a tile can do, for the tests and for devices that no rule knows."""
    yield SharedKernel(tile)
    grouped = GROUPED.get(tile)
    if grouped is not None and grouped.buffers(info):
        yield SharedKernel(grouped)
        parts = _used(grouped, gemm.k, 3)
        if parts > 1:
            yield SharedKernel(grouped, parts)


def _used(tile: Tile, k: int, parts: int) -> int:
    """Return how many parts have steps to do when all but the last have the same number."""
    steps = tile.steps(k)
    return ceil_div(steps, ceil_div(steps, min(parts, steps)))
