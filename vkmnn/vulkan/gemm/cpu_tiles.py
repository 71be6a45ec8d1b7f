"""Measured speed of register-tiled convolutions on CPU devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from vkmnn.base.records import dataclass
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.device_rules import CpuLanes, cpu_lanes
from vkmnn.vulkan.encoder import ceil_div
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.target import Target

TileFamily = Literal["rotate", "tile", "channels"]


@dataclass(frozen=True, slots=True)
class CpuTile:
    """A tile of the implicit GEMM, and its GFLOP/s on one core when full.

    `panel`: blocks of four output channels.
    """

    family: TileFamily
    pixels: int
    panel: int
    speed: float


# By concurrent invocations, measured on lavapipe (Mesa 22.3, Sapphire Rapids); only ratios matter.
CPU_TILES: dict[CpuLanes, tuple[CpuTile, ...]] = {
    8: (
        CpuTile("rotate", 32, 8, 42.0),
        CpuTile("rotate", 16, 8, 37.0),
        CpuTile("rotate", 8, 8, 30.0),
        CpuTile("tile", 8, 2, 20.0),
        CpuTile("tile", 8, 1, 17.0),
        CpuTile("tile", 4, 2, 19.5),
        CpuTile("tile", 4, 1, 16.0),
        CpuTile("tile", 1, 1, 7.5),
        CpuTile("channels", 4, 8, 17.5),
        CpuTile("channels", 1, 8, 8.0),
    ),
    16: (
        CpuTile("rotate", 64, 16, 52.0),
        CpuTile("rotate", 32, 16, 50.0),
        CpuTile("rotate", 16, 16, 44.0),
        CpuTile("tile", 8, 2, 23.5),
        CpuTile("tile", 8, 1, 18.5),
        CpuTile("tile", 4, 2, 19.5),
        CpuTile("tile", 4, 1, 14.5),
        CpuTile("tile", 1, 1, 7.5),
        CpuTile("channels", 4, 16, 17.5),
        CpuTile("channels", 1, 16, 8.0),
    ),
}
# Cost of storing a result, in iterations of the loop over channel blocks: sixteen lanes are stored
# one at a time like eight, from registers that are slower to access.
STORE_ROUNDS = {8: 6, 16: 22}


def tiles_of(
    family: TileFamily, problem: ConvProblem, target: Target
) -> list[tuple[float, CpuTile]]:
    """Return the tiles of a family with predicted microseconds: totals of `cpu_cost`."""
    info = target.info
    lanes, cores, start = cpu_lanes(info), cores_of(info), class_of(info).start_us
    rounds, walks = _walks(lanes, problem.outputs, problem.in_blocks, problem.taps, problem.group)
    pixels, stored = problem.pixels, STORE_ROUNDS[lanes]
    found = []
    # Inlined, because planning repeats this for every convolution of a new input shape.
    for tile, step, work, speed in walks[family]:
        us = -(-pixels // step) * step * work / speed / 1000 / cores
        stores = us * stored / rounds
        found.append((start + (us - stores) + stores, tile))
    return found


def cpu_tile(family: TileFamily, pixels: int, panel: int, target: Target) -> CpuTile:
    """Return the row of a tile; for unmeasured tiles, the slowest of the family."""
    rows = [row for row in CPU_TILES[cpu_lanes(target.info)] if row.family == family]
    measured = (row for row in rows if (row.pixels, row.panel) == (pixels, panel))
    return next(measured, CpuTile(family, pixels, panel, min(row.speed for row in rows)))


def cpu_cost(problem: ConvProblem, tile: CpuTile, target: Target) -> Cost:
    """Return the time of a tile."""
    lanes = cpu_lanes(target.info)
    rounds = _rounds(problem.taps, problem.in_blocks, lanes)
    step, work = _walk(tile, lanes, problem.outputs, rounds, problem.group)
    us = ceil_div(problem.pixels, step) * step * work / tile.speed / 1000 / cores_of(target.info)
    stores = us * STORE_ROUNDS[lanes] / rounds
    return Cost(class_of(target.info).start_us, arithmetic=us - stores, stores=stores)


def min_nanoseconds(problem: ConvProblem, lanes: CpuLanes, rotations: Sequence[int]) -> float:
    """Return the nanoseconds of the fastest tile on one core.

    Args:
        problem: the sizes.
        lanes: number of concurrent invocations.
        rotations: subgroup sizes that support rotation kernels.
    """
    _, walks = _walks(lanes, problem.outputs, problem.in_blocks, problem.taps, problem.group)
    pixels = problem.pixels
    return min(
        [
            -(-pixels // step) * step * work / speed
            for family, tiles in walks.items()
            for tile, step, work, speed in tiles
            if family != "rotate" or tile.panel in rotations
        ]
    )


_Walks = dict[TileFamily, list[tuple[CpuTile, int, int, float]]]


@lru_cache(maxsize=1024)
def _walks(
    lanes: CpuLanes, outputs: int, in_blocks: int, taps: int, group: int
) -> tuple[int, _Walks]:
    """Return loop iterations, and the derived values of each tile except its pixels.

    The derived values are pixels computed at once, operations per pixel, and speed.
    """
    rounds = _rounds(taps, in_blocks, lanes)
    walks: _Walks = {"rotate": [], "tile": [], "channels": []}
    for tile in CPU_TILES[lanes]:
        walk = _walk(tile, lanes, outputs, rounds, group)
        walks[tile.family].append((tile, *walk, tile.speed))
    return rounds, walks


def _walk(tile: CpuTile, lanes: CpuLanes, outputs: int, rounds: int, group: int) -> tuple[int, int]:
    across = lanes if tile.family == "tile" else 1
    columns = ceil_div(ceil_div(outputs, 4), tile.panel) * tile.panel * 4
    return tile.pixels * across, 8 * columns * rounds * group


def _rounds(taps: int, in_blocks: int, lanes: CpuLanes) -> int:
    # On lavapipe, the loop over channel blocks runs one extra iteration.
    return taps * (in_blocks + 1) + STORE_ROUNDS[lanes]
