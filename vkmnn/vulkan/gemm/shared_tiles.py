"""Which tile in shared memory computes a product on a GPU: a table, ranked by time.

Convolutions are products, too: pixels are the rows, taps times input channels the inner axis.
docs/decisions/gemm-families.md says where the numbers come from.
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

# What split-K keeps in shared memory besides the tiles, in whole vec4s.
ARRIVAL_BYTES = 16
# Registers of an invocation besides its sums, at a guess: all, or those besides what it loads.
REGISTERS = 48
REGISTERS_BESIDE_LOADS = 24
SUBGROUP = 32
# What a vec4 of an operand costs, in multiplications and additions that could be made meanwhile:
# finding it, loading it, storing it; more of it in the left operand of a product, whose numbers go
# to banks of shared memory that conflict, and among pixels where subgroups load parts of lines.
LOAD_FLOPS = 48
ROW_FLOPS = 32
STRADDLING_FLOPS = 64
# Where steps do not end with K or there are pads, zeroing it where it counts as none; and, of the
# left operand, taking the pivot off and adding it up and its squares.
ZERO_FLOPS = 8
MOMENT_FLOPS = 24
# The same of a maximum of 3 x 3: for each further vec4, finding it, its maximum and that of its
# magnitude; at the end, whether there was a NaN.
POOLED_FLOPS = 8 * 28 + 24
POOLED_LOADS = 9
# Workgroups that share tiles fill a device, and not many times over.
MAX_SPLIT_WAVES = 3
# What of `core_flops` is reached, by results of an invocation: with fewer, operands are read more
# often from shared memory. Loads are counted apart, so that it may be more than one.
EFFICIENCY = {(8, 8): 1.17, (8, 4): 1.03, (4, 4): 1.03}
# Of float16 arithmetic, for each vec4 of results: what is converted and added in float32 at the
# end of a step, in vec4s of products.
HALF_CLOSING = 2


@dataclass(frozen=True, slots=True)
class Tile(SharedTile):
    """A tile of results in shared memory, and what it costs."""

    @property
    def name(self) -> kernels.ConvSharedTile:
        """The value of the axis `tile`."""
        return cast(kernels.ConvSharedTile, self.label)

    @property
    def results(self) -> int:
        """How many results a tile has."""
        return self.rows * self.columns

    @property
    def splits(self) -> bool:
        """Whether several workgroups may share K, too."""
        return 1 < self.groups <= SMALL

    @property
    def chained(self) -> int:
        """How many products kernels of float16 arithmetic add up before they add in float32."""
        return self.depth // self.groups

    @property
    def vectors(self) -> int:
        """Vec4s that a workgroup loads for a step; where one is too few, whole subgroups rest."""
        return self.depth // 4 * (self.rows + self.columns)

    @property
    def straddles(self) -> bool:
        """Whether subgroups that load neighbouring rows end in the middle of a line of them."""
        return self.rows > SUBGROUP and self.rows % SUBGROUP != 0

    @property
    def loads(self) -> int:
        """Vec4s that an invocation loads for a step."""
        vectors = (self.depth // 4 * self.rows, self.depth * self.columns // 4)
        return sum(ceil_div(count, self.invocations) for count in vectors)

    @property
    def registers(self) -> int:
        """Registers of an invocation, at a guess."""
        down, across = self.each
        return down * across + max(REGISTERS, REGISTERS_BESIDE_LOADS + 4 * self.loads)

    @property
    def staged_bytes(self) -> int:
        """What goes through shared memory in a step, in and out.

        Every invocation reads its rows and columns. Groups that share a subgroup read different
        ones, which cost it twice as long as the same ones do.
        """
        reads = self.members * sum(self.each) * (2 if self.members < SUBGROUP else 1)
        return 4 * self.depth * (reads + self.rows + self.columns)

    def shared_bytes(self, buffers: int) -> int:
        """Shared memory of a workgroup."""
        return buffers * self.stage * VEC4_BYTES + ARRIVAL_BYTES

    def half_bytes(self, buffers: int) -> int:
        """Shared memory of a workgroup that stages float16; groups meet in float32."""
        return self.shared_bytes(buffers) // 2 + self.met * VEC4_BYTES + ARRIVAL_BYTES

    def buffers(self, info: DeviceInfo) -> int:
        """Return how many buffers fit into shared memory; 0 where the tile does not fit at all."""
        return self.buffers_in(room_of(info))

    def buffers_in(self, room: tuple[int, int]) -> int:
        """Return the same for a device of which only `room_of` is known."""
        invocations, shared = room
        if self.invocations > invocations:
            return 0
        return next((n for n in (2, 1) if self.shared_bytes(n) <= shared), 0)

    def grid(self, gemm: Gemm) -> tuple[int, int]:
        """Return how many tiles there are down and across."""
        return ceil_div(gemm.rows, self.rows), ceil_div(gemm.columns, self.columns)

    def done(self, gemm: Gemm) -> int:
        """Return how many numbers the tiles of a product multiply, with what fills them up."""
        down, across = self.grid(gemm)
        return down * across * gemm.batches * self.results * self.steps(gemm.k) * self.depth

    def steps(self, k: int) -> int:
        """Return how many steps an inner axis takes."""
        return ceil_div(k, self.depth)

    def has_tail(self, k: int) -> bool:
        """Return whether the last step ends beyond the inner axis."""
        return k % self.depth != 0

    def iterations(self, k: int) -> int:
        """Return how often an invocation goes round its loops.

        A loop of lavapipe counts the round in which it finds out that it is done.
        """
        return self.steps(k) * (self.depth // self.groups // 4 + 2) + 1


def room_of(info: DeviceInfo) -> tuple[int, int]:
    """Return the most invocations, and bytes of shared memory, that a workgroup may have."""
    limits = info.limits
    invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
    return invocations, limits.max_shared_memory


# The largest first; then those whose K is shared by groups of invocations, and by workgroups on
# top of these.
TILES = (
    *(Tile(128, 128), Tile(128, 64), Tile(64, 64), Tile(32, 32), Tile(64, 32, 2)),
    *(Tile(40, 32, 8), Tile(32, 32, 8), Tile(16, 16, 8), Tile(16, 16, 16)),
)
# For convolutions of few output channels, where invocations need not lie along rows.
NARROW = (Tile(128, 16), Tile(128, 16, 2))
# Those with kernels of float16 arithmetic.
HALF_TILES = (Tile(128, 64), Tile(64, 64), Tile(32, 32), Tile(64, 32, 2))
HALF_NARROW = (Tile(128, 16),)


@dataclass(frozen=True, slots=True)
class SharedKernel:
    """Tiles in shared memory; K split over `parts` workgroups, of which the last to arrive adds."""

    tile: Tile
    parts: int = 1
    family = "shared"
    half = False
    """Whether the arithmetic of a step is float16."""

    def buffers(self, info: DeviceInfo) -> int:
        """Return how many buffers fit into shared memory; 0 where the tile does not fit at all."""
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
        """Return the parameters that say how workgroups go over a gemm."""
        steps = ceil_div(self.tile.steps(gemm.k), self.parts)
        return {"tiles": workgroups(self.tile, gemm), "steps": steps, "parts": self.parts}


def workgroups(tile: Tile, gemm: Gemm) -> int:
    """Return how many tiles a product has."""
    down, across = tile.grid(gemm)
    return down * across * gemm.batches


def rank_shared(
    gemm: Gemm, info: DeviceInfo, weight_bytes: int = 0, element_bytes: int = 4
) -> list[SharedKernel]:
    """Return the kernels that fit the device, the likely fastest first; all of them last.

    Args:
        gemm: what to compute.
        info: the device.
        weight_bytes: of all constants of the network.
        element_bytes: of an element in memory.
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
    """Return the same with the microseconds that each is expected to take, more where it pads.

    Of the ways to share a tile's K by workgroups, the fastest; and one more, so that every kernel
    is offered, as if it took forever. `kind`: a class of kernels other than `SharedKernel`.
    """
    make = kind or SharedKernel
    if gemm.k == 0:
        return []  # there is nothing to load a first step from

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
    """Return a kernel of every tile that fits a device, and one that splits K, as they come.

    Kept, as nothing about rows changes it, and devices that emulate shared memory ask every time.

    Args:
        k: the length of the inner axis.
        room: what `room_of` says of the device.
        narrow: list the tiles for few output channels, too.
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
    """Return the time that a kernel is expected to take; arguments as of `rank_shared`.

    `pixels`: the rows are those of a convolution. `padded`: of what is loaded, some counts as zero,
    wherever steps end. `normed`: it normalises the rows of the left operand. `pooled`: they are
    maxima of 3 x 3 others.
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
    # Next to float32: products, and what closes a step.
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
