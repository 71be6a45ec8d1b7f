"""Selection of shared memory tiles on GPUs: a table, ranked by predicted time.

Convolutions are treated as products: rows are pixels, the inner axis is taps times input channels.
The constants are explained in docs/decisions/gemm-families.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any, Literal, cast

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shader_files.tiles import SMALL, VEC4_BYTES, SharedTile
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.cost.tiles import Tiling, tiles_cost, weighed_us
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import ceil_div
from vkmnn.vulkan.gemm.problem import Gemm
from vkmnn.vulkan.gemm.split import parts_of, used_parts

# Shared memory for split-K besides the tiles, in whole vec4s.
ARRIVAL_BYTES = 16
# Estimated registers per invocation besides its sums: in total, or besides its loads.
REGISTERS = 48
REGISTERS_BESIDE_LOADS = 24
SUBGROUP = 32
# Cost of a vec4 of an operand, in multiply-adds that could be executed meanwhile: locating, loading
# and storing it; higher for the left operand of a product, because of bank conflicts, and for
# pixels if subgroups load partial lines.
LOAD_FLOPS = 48
ROW_FLOPS = 32
STRADDLING_FLOPS = 64
# Cost of zeroing a vec4 beyond K or in padding; and, for the left operand, of subtracting the pivot
# and accumulating it and its squares.
ZERO_FLOPS = 8
MOMENT_FLOPS = 24
# Cost of a 3 x 3 maximum: per further vec4, locating it, its maximum and the maximum magnitude; at
# the end, the check for NaN.
POOLED_FLOPS = 8 * 28 + 24
POOLED_LOADS = 9
# Workgroups that share tiles fill the device, but not many times over.
MAX_SPLIT_WAVES = 3
# Fraction of `core_flops` reached, by results per invocation: fewer results read operands from
# shared memory more often. Loads are counted separately, so that it may exceed one.
EFFICIENCY = {(8, 8): 1.17, (8, 4): 1.03, (4, 4): 1.03}
# For float16 arithmetic, cost per vec4 of results of converting and adding in float32 at the end of
# a step, in vec4s of products.
HALF_CLOSING = 2


@dataclass(frozen=True, slots=True)
class Tile(SharedTile):
    """A tile of results in shared memory, with its cost model."""

    @property
    def name(self) -> kernels.ConvSharedTile:
        """The value of the axis `tile`."""
        return cast(kernels.ConvSharedTile, self.label)

    @property
    def results(self) -> int:
        """The number of results of a tile."""
        return self.rows * self.columns

    @property
    def splits(self) -> bool:
        """Whether several workgroups may also share K."""
        return 1 < self.groups <= SMALL

    @property
    def chained(self) -> int:
        """Number of products that float16 kernels add up before adding in float32."""
        return self.depth // self.groups

    @property
    def vectors(self) -> int:
        """Vec4s that a workgroup loads per step; with too few of them, subgroups idle."""
        return self.depth // 4 * (self.rows + self.columns)

    @property
    def straddles(self) -> bool:
        """Whether subgroups that load adjacent rows end in the middle of a cache line."""
        return self.rows > SUBGROUP and self.rows % SUBGROUP != 0

    @property
    def loads(self) -> int:
        """Vec4s that an invocation loads per step."""
        vectors = (self.depth // 4 * self.rows, self.depth * self.columns // 4)
        return sum(ceil_div(count, self.invocations) for count in vectors)

    @property
    def registers(self) -> int:
        """Estimated registers per invocation."""
        down, across = self.each
        return down * across + max(REGISTERS, REGISTERS_BESIDE_LOADS + 4 * self.loads)

    @property
    def staged_bytes(self) -> int:
        """Bytes that pass through shared memory per step, in and out.

        Every invocation reads its rows and columns. Groups in the same subgroup read different
        ones, which takes twice as long as reading the same ones.
        """
        reads = self.members * sum(self.each) * (2 if self.members < SUBGROUP else 1)
        return 4 * self.depth * (reads + self.rows + self.columns)

    def shared_bytes(self, buffers: int) -> int:
        """Shared memory per workgroup, in bytes."""
        return buffers * self.stage * VEC4_BYTES + ARRIVAL_BYTES

    def half_bytes(self, buffers: int) -> int:
        """Shared memory per workgroup with float16 staging, in bytes; groups add in float32."""
        return self.shared_bytes(buffers) // 2 + self.met * VEC4_BYTES + ARRIVAL_BYTES

    def buffers(self, info: DeviceInfo) -> int:
        """Return the number of buffers that fit into shared memory; 0 if the tile does not fit."""
        return self.buffers_in(room_of(info))

    def buffers_in(self, room: tuple[int, int]) -> int:
        """Return the number of buffers for a device described only by `room_of`."""
        invocations, shared = room
        if self.invocations > invocations:
            return 0
        return next((n for n in (2, 1) if self.shared_bytes(n) <= shared), 0)

    def grid(self, gemm: Gemm) -> tuple[int, int]:
        """Return the number of tiles down and across."""
        return ceil_div(gemm.rows, self.rows), ceil_div(gemm.columns, self.columns)

    def done(self, gemm: Gemm) -> int:
        """Return the multiplications of a product's tiles, including padding."""
        down, across = self.grid(gemm)
        return down * across * gemm.batches * self.results * self.steps(gemm.k) * self.depth

    def steps(self, k: int) -> int:
        """Return the number of steps along an inner axis."""
        return ceil_div(k, self.depth)

    def has_tail(self, k: int) -> bool:
        """Return whether the last step extends past the inner axis."""
        return k % self.depth != 0

    def iterations(self, k: int) -> int:
        """Return the loop iterations of an invocation.

        On lavapipe, a loop's terminating iteration counts.
        """
        return self.steps(k) * (self.depth // self.groups // 4 + 2) + 1


def room_of(info: DeviceInfo) -> tuple[int, int]:
    """Return the maximum invocations and bytes of shared memory per workgroup."""
    limits = info.limits
    invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
    return invocations, limits.max_shared_memory


# Largest first; then tiles whose K is shared by groups of invocations, and also by workgroups.
TILES = (
    *(Tile(128, 128), Tile(128, 64), Tile(64, 64), Tile(32, 32), Tile(64, 32, 2)),
    *(Tile(40, 32, 8), Tile(32, 32, 8), Tile(16, 16, 8), Tile(16, 16, 16)),
)
# For convolutions with few output channels, where invocations need not span rows.
NARROW = (Tile(128, 16), Tile(128, 16, 2))
# Tiles with float16 kernels.
HALF_TILES = (Tile(128, 64), Tile(64, 64), Tile(32, 32), Tile(64, 32, 2))
HALF_NARROW = (Tile(128, 16),)


@dataclass(frozen=True, slots=True)
class SharedKernel:
    """Tiles in shared memory; K is split over `parts` workgroups; the last to finish adds up."""

    tile: Tile
    parts: int = 1
    family = "shared"
    half = False
    """Whether the arithmetic of a step is float16."""

    def buffers(self, info: DeviceInfo) -> int:
        """Return the number of buffers that fit into shared memory; 0 if the tile does not fit."""
        if not self.half:
            return self.tile.buffers(info)
        invocations, shared = room_of(info)
        if self.tile.invocations > invocations:
            return 0
        return next((n for n in (2, 1) if self.tile.half_bytes(n) <= shared), 0)

    @property
    def split(self) -> Literal[0, 1]:
        """The value of the axis `split`."""
        return 1 if self.parts > 1 else 0

    def walk(self, gemm: Gemm) -> dict[str, Any]:
        """Return the parameters of the workgroups' order over a gemm."""
        steps = ceil_div(self.tile.steps(gemm.k), self.parts)
        return {"tiles": workgroups(self.tile, gemm), "steps": steps, "parts": self.parts}


def workgroups(tile: Tile, gemm: Gemm) -> int:
    """Return the number of tiles of a product."""
    down, across = tile.grid(gemm)
    return down * across * gemm.batches


def rank_shared(
    gemm: Gemm, info: DeviceInfo, weight_bytes: int = 0, element_bytes: int = 4
) -> list[SharedKernel]:
    """Return the kernels that fit the device, fastest prediction first; all of them last.

    Args:
        gemm: the sizes.
        info: the device.
        weight_bytes: of all constants of the network.
        element_bytes: bytes per element in memory.
    """
    return [kernel for _, kernel in timed_shared(gemm, info, weight_bytes, element_bytes)]


def timed_shared(
    gemm: Gemm,
    info: DeviceInfo,
    weight_bytes: int = 0,
    element_bytes: int = 4,
    tiles: Sequence[Tile] = TILES,
    *,
    pixels: bool = False,
    padded: bool = False,
    kind: type[SharedKernel] | None = None,
) -> list[tuple[float, SharedKernel]]:
    """Return kernels with predicted microseconds, including the cost of padding.

    For each tile, only the fastest K split has its predicted time; one further split gets an
    infinite cost, so that every kernel is offered. `kind`: a class of kernels other than
    `SharedKernel`.
    """
    make = kind or SharedKernel
    if gemm.k == 0:
        return []  # no first step to load

    def timed(kernel: SharedKernel) -> tuple[float, SharedKernel]:
        sizes = weight_bytes, element_bytes
        cost = shared_cost(kernel, gemm, info, *sizes, pixels=pixels, padded=padded)
        return weighed_us(cost.total, kernel.tile.done(gemm), gemm.work), kernel

    offered: list[tuple[float, SharedKernel]] = []
    spare: list[tuple[float, SharedKernel]] = []
    for tile in tiles:
        if not make(tile).buffers(info) or tile.iterations(gemm.k) > MAX_LOOP_ROUNDS:
            continue
        offered.append(timed(make(tile)))
        if not tile.splits:
            continue
        steps = tile.steps(gemm.k)
        most = MAX_SPLIT_WAVES * cores_of(info) // workgroups(tile, gemm)
        counts = [parts for parts in parts_of(steps, gemm.k) if parts <= most]
        shared = [timed(make(tile, parts)) for parts in counts]
        best = sorted(shared, key=lambda pair: pair[0])[:1]
        offered += best
        three = make(tile, used_parts(steps, 3))
        if steps > 1 and three not in [kernel for _, kernel in best]:
            spare.append((inf, three))
    return [*sorted(offered, key=lambda pair: pair[0]), *spare]


@lru_cache(maxsize=512)
def listed_shared(k: int, room: tuple[int, int], *, narrow: bool) -> tuple[SharedKernel, ...]:
    """Return, for each tile that fits a device, a kernel and one with split K, unranked.

    Cached, because the result does not depend on rows, and devices that emulate shared memory ask
    every time.

    Args:
        k: the length of the inner axis.
        room: the result of `room_of` for the device.
        narrow: whether to include the tiles for few output channels.
    """
    listed: list[SharedKernel] = []
    tiles = (*TILES, *NARROW) if narrow else TILES
    for tile in tiles if k else ():
        if not tile.buffers_in(room) or tile.iterations(k) > MAX_LOOP_ROUNDS:
            continue
        listed.append(SharedKernel(tile))
        parts = used_parts(tile.steps(k), 3)
        if tile.splits and parts > 1:
            listed.append(SharedKernel(tile, parts))
    return tuple(listed)


def shared_cost(
    kernel: SharedKernel,
    gemm: Gemm,
    info: DeviceInfo,
    weight_bytes: int = 0,
    element_bytes: int = 4,
    *,
    pixels: bool = False,
    padded: bool = False,
    normed: bool = False,
    pooled: bool = False,
) -> Cost:
    """Return the predicted time of a kernel; arguments as for `rank_shared`.

    `pixels`: the rows are pixels of a convolution. `padded`: some loaded values count as zero,
    wherever steps end. `normed`: the kernel normalises the rows of the left operand. `pooled`: the
    rows are 3 x 3 maxima.
    """
    tile = kernel.tile
    flops = LOAD_FLOPS + (ZERO_FLOPS if padded or tile.has_tail(gemm.k) else 0)
    if pixels and tile.straddles:
        flops += STRADDLING_FLOPS
    left_flops = MOMENT_FLOPS * normed + POOLED_FLOPS * pooled
    left_flops += 0 if pixels else ROW_FLOPS
    vectors = tile.rows * tile.depth // 4
    buffers, half = kernel.buffers(info), kernel.half
    device = class_of(info)
    # Relative to float32: products, and the end of a step.
    products = device.core_flops / device.half_flops
    pace = products + HALF_CLOSING / tile.chained if half else 1.0
    tiling = Tiling(
        tiles=workgroups(tile, gemm),
        parts=kernel.parts,
        steps=kernel.walk(gemm)["steps"],
        left_bytes=element_bytes * tile.rows * tile.depth * (POOLED_LOADS if pooled else 1),
        right_bytes=element_bytes * tile.columns * tile.depth,
        staged_bytes=tile.staged_bytes // 2 if half else tile.staged_bytes,
        flops=2 * tile.results * tile.depth,
        results=tile.results,
        invocations=tile.invocations,
        registers=tile.registers,
        shared=tile.half_bytes(buffers) if half else tile.shared_bytes(buffers),
        groups=tile.groups,
        buffers=buffers,
        weight_bytes=element_bytes * gemm.columns * gemm.k * gemm.batches,
        efficiency=EFFICIENCY[tile.each] / pace,
        lane_flops=flops * tile.vectors + left_flops * vectors,
        closing=2 * normed,
        openings=1,
    )
    return tiles_cost(tiling, info, weight_bytes > class_of(info).cache_bytes)
