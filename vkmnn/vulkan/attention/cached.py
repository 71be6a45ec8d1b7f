"""Kernels of CachedAttention: workgroups that share a cache's rows, or single subgroups."""

from __future__ import annotations

from math import inf
from typing import Literal

from vkmnn.base.packed_rows import Packing, packed_words
from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.device_rules import SHUFFLES, CpuLanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div

KEYS = 64
"""Cache rows per workgroup and round: one per invocation."""
PARTS = (2, 4, 8, 16)
PART_VECTORS = KEYS + 1
"""Vec4s that a part stores: those of its invocations, its maximum and sum."""
STEPS = 4  # barriers per round
ROUND_LOADS = 2  # loads that wait for one another: keys, then values
WideLanes = Literal[8, 32]
WIDE_LANES: tuple[WideLanes, ...] = (32, 8)
SHARERS = 8
"""Invocations that share a row in the kernel of eight subgroups."""
AHEAD = 2  # rows that each of these loads at once


@dataclass(frozen=True, slots=True)
class CachedProblem:
    """The properties that determine the fastest kernel.

    Attributes:
        workgroups: workgroups: one per head and row.
        keys: maximum rows of the cache that each reads.
        depth: elements of a key.
        width: elements of a value.
        packing: how rows of the cache are packed.
    """

    workgroups: int
    keys: int
    depth: int
    width: int
    packing: Packing = ""

    @property
    def columns(self) -> int:
        """Elements of a key and a value."""
        return self.depth + self.width

    @property
    def row_bytes(self) -> int:
        """Bytes of a key and a value in the cache."""
        return 4 * sum(packed_words(self.packing, size) for size in (self.depth, self.width))

    @property
    def rows(self) -> Literal["none", "f16", "i8"]:
        """The kernels' axis `packing`."""
        return self.packing or "none"


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """`parts` workgroups share the rows of the cache; the last to arrive merges."""

    parts: int = 1
    family = "cached"

    def call(self, encoder: VulkanEncoder, problem: CachedProblem) -> ShaderCall:
        """Return the dispatch."""
        by_texel = self.parts == 1 and not problem.packing
        shader = kernels.cached_attention(
            split=0 if self.parts == 1 else 1,
            element=encoder.element,
            load=encoder.load if by_texel else "buffer",
            packing=problem.rows,
        )
        return shader, kernels.CachedAttentionParams

    def spec(self, _: CachedProblem) -> dict[str, int]:
        """Return no specialization constants."""
        return {}

    def time(self, problem: CachedProblem, info: DeviceInfo) -> Cost:
        """Return the predicted time for a half-full cache."""
        rounds = -(-problem.keys // (2 * KEYS * self.parts))
        loop = Loop(
            workgroups=problem.workgroups * self.parts,
            invocations=KEYS,
            rounds=ROUND_LOADS * rounds,
            round_bytes=KEYS * problem.row_bytes / ROUND_LOADS,
            round_flops=KEYS * problem.columns * 2 / ROUND_LOADS,
            results=problem.columns,
            steps=STEPS // ROUND_LOADS,
        )
        cost = loop_cost(loop, info)
        return cost if self.parts == 1 else cost + _merged(self.parts, info)


@dataclass(frozen=True, slots=True)
class CachedSubgroup:
    """A workgroup is a subgroup of `lanes` that keeps its state in registers."""

    lanes: CpuLanes
    parts: int = 1
    family = "subgroup"

    def call(self, encoder: VulkanEncoder, problem: CachedProblem) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.cached_attention_subgroup(
            lanes=self.lanes, element=encoder.element, packing=problem.rows
        )
        return shader, kernels.CachedAttentionSubgroupParams

    def spec(self, problem: CachedProblem) -> dict[str, int]:
        """Return its specialization constant: vec4s per lane."""
        held = 4 * self.lanes
        return {
            "KEY_VECTORS": ceil_div(problem.depth, held),
            "VALUE_VECTORS": ceil_div(problem.width, held),
        }

    def time(self, problem: CachedProblem, info: DeviceInfo) -> Cost:
        """Return the predicted time for a half-full cache."""
        loop = Loop(
            workgroups=problem.workgroups,
            invocations=self.lanes,
            rounds=ROUND_LOADS * ceil_div(problem.keys, 2 * self.lanes),
            round_bytes=self.lanes * problem.row_bytes / ROUND_LOADS,
            round_flops=self.lanes * problem.columns * 2 / ROUND_LOADS,
            results=problem.columns,
        )
        return loop_cost(loop, info)


@dataclass(frozen=True, slots=True)
class CachedWide:
    """Eight subgroups of `lanes` per head; eight invocations share a row."""

    lanes: WideLanes
    parts: int = 1
    family = "wide"

    def call(self, encoder: VulkanEncoder, problem: CachedProblem) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.cached_attention_wide(
            lanes=self.lanes,
            split=0 if self.parts == 1 else 1,
            element=encoder.element,
            packing=problem.rows,
        )
        return shader, kernels.CachedAttentionWideParams

    def spec(self, problem: CachedProblem) -> dict[str, int]:
        """Return its specialization constant: vec4s per invocation."""
        return {
            "KEY_VECTORS": ceil_div(problem.depth, 4 * SHARERS),
            "VALUE_VECTORS": ceil_div(problem.width, 4 * SHARERS),
        }

    def time(self, problem: CachedProblem, info: DeviceInfo) -> Cost:
        """Return the predicted time for a half-full cache."""
        rows = self.lanes * AHEAD
        loop = Loop(
            workgroups=problem.workgroups * self.parts,
            invocations=8 * self.lanes,
            # Two more: the new row, which waits for its length, and the combination of all results.
            rounds=2 + ceil_div(problem.keys, 2 * rows * self.parts),
            round_bytes=rows * problem.row_bytes,
            round_flops=rows * problem.columns * 2,
            results=problem.columns,
            registers=64,
        )
        cost = loop_cost(loop, info)
        return cost if self.parts == 1 else cost + _merged(self.parts, info)


def _merged(parts: int, info: DeviceInfo) -> Cost:
    """Return the time for the last workgroup to merge the results of all."""
    device = class_of(info)
    part_bytes = 16.0 * PART_VECTORS * (parts + 1)
    return Cost(split=device.split_us + device.part_us * parts + part_bytes / device.part_bytes)


Kernel = CachedKernel | CachedSubgroup | CachedWide


def kernels_of(problem: CachedProblem, info: DeviceInfo, texel: bool) -> list[Kernel]:
    """Return the possible kernels, the likely fastest first.

    Rows are shared if a GPU has more cores than there are workgroups. Kernels of single subgroups
    need texel buffers, and come first on devices that are not GPUs.
    """
    wide = wide_lanes(info)
    alone = [CachedSubgroup(lanes) for lanes in rotate_lanes(info)] if texel else []
    several = [CachedWide(lanes, parts) for lanes in wide for parts in (1, PARTS[0])]
    if not is_gpu(info):
        return [*alone, CachedKernel(), CachedKernel(PARTS[0]), *several]

    def us(kernel: CachedKernel | CachedWide) -> float:
        idle = kernel.parts > 1 and problem.keys < KEYS * kernel.parts
        return inf if idle else kernel.time(problem, info).total

    first = [CachedWide(lanes, parts) for lanes in wide[:1] for parts in (1, *PARTS)]
    plain = [CachedKernel(parts) for parts in (1, *PARTS)]
    # On an H100, the first took at most half of the others' time at any length.
    return [
        *sorted(first, key=us),
        *sorted(plain, key=us),
        *alone,
        *(kernel for kernel in several if kernel not in first),
    ]


def wide_lanes(info: DeviceInfo) -> tuple[WideLanes, ...]:
    """Return the subgroup sizes that the device supports and that have kernels."""
    if not info.features >= SHUFFLES:
        return ()
    smallest, largest = info.limits.subgroup_size_range
    return tuple(lanes for lanes in WIDE_LANES if smallest <= lanes <= largest)
