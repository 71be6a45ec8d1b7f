"""The kernels of CachedAttention: workgroups that share a cache's rows, or single subgroups."""

from __future__ import annotations

from math import inf

from vkmnn.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.device_rules import CpuLanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div

KEYS = 64
"""Rows of a cache that a workgroup takes at a time: one for each invocation."""
PARTS = (2, 4, 8, 16)
PART_VECTORS = KEYS + 1
"""Vec4s that a part leaves: those of its invocations, its maximum and sum."""
STEPS = 4  # of a round, with a barrier after each
ROUND_LOADS = 2  # that wait for one another: keys, then values


@dataclass(frozen=True, slots=True)
class CachedProblem:
    """What decides which kernel is fastest.

    Attributes:
        workgroups: one for every head and row.
        keys: rows of the cache that each reads, at most.
        depth: numbers of a key.
        width: numbers of a value.
    """

    workgroups: int
    keys: int
    depth: int
    width: int

    @property
    def columns(self) -> int:
        """Numbers of a key and a value."""
        return self.depth + self.width


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """The rows of a cache are shared by `parts` workgroups, of which the last to arrive merges."""

    parts: int = 1
    family = "cached"

    def call(self, encoder: VulkanEncoder) -> ShaderCall:
        """Return what to dispatch."""
        shader = kernels.cached_attention(
            split=0 if self.parts == 1 else 1,
            element=encoder.element,
            load=encoder.load if self.parts == 1 else "buffer",
        )
        return shader, kernels.CachedAttentionParams

    def spec(self, _: CachedProblem) -> dict[str, int]:
        """Return its own specialization constants: none."""
        return {}

    def time(self, problem: CachedProblem, info: DeviceInfo) -> Cost:
        """Return the time that the kernel is expected to take where the cache is half full."""
        rounds = -(-problem.keys // (2 * KEYS * self.parts))
        loop = Loop(
            workgroups=problem.workgroups * self.parts,
            invocations=KEYS,
            rounds=ROUND_LOADS * rounds,
            round_bytes=KEYS * problem.columns * 4 / ROUND_LOADS,
            round_flops=KEYS * problem.columns * 2 / ROUND_LOADS,
            results=problem.columns,
            steps=STEPS // ROUND_LOADS,
        )
        cost = loop_cost(loop, info)
        if self.parts == 1:
            return cost
        device = class_of(info)
        part_bytes = 16.0 * PART_VECTORS * (self.parts + 1)
        merged = device.split_us + device.part_us * self.parts + part_bytes / device.part_bytes
        return cost + Cost(split=merged)


@dataclass(frozen=True, slots=True)
class CachedSubgroup:
    """A workgroup is a subgroup of `lanes`, and keeps what it knows in registers."""

    lanes: CpuLanes
    parts: int = 1
    family = "subgroup"

    def call(self, encoder: VulkanEncoder) -> ShaderCall:
        """Return what to dispatch."""
        shader = kernels.cached_attention_subgroup(lanes=self.lanes, element=encoder.element)
        return shader, kernels.CachedAttentionSubgroupParams

    def spec(self, problem: CachedProblem) -> dict[str, int]:
        """Return its own specialization constants: vec4s of a lane."""
        held = 4 * self.lanes
        return {
            "KEY_VECTORS": ceil_div(problem.depth, held),
            "VALUE_VECTORS": ceil_div(problem.width, held),
        }

    def time(self, problem: CachedProblem, info: DeviceInfo) -> Cost:
        """Return the time that the kernel is expected to take where the cache is half full."""
        loop = Loop(
            workgroups=problem.workgroups,
            invocations=self.lanes,
            rounds=ROUND_LOADS * ceil_div(problem.keys, 2 * self.lanes),
            round_bytes=self.lanes * problem.columns * 4 / ROUND_LOADS,
            round_flops=self.lanes * problem.columns * 2 / ROUND_LOADS,
            results=problem.columns,
        )
        return loop_cost(loop, info)


Kernel = CachedKernel | CachedSubgroup


def kernels_of(problem: CachedProblem, info: DeviceInfo, texel: bool) -> list[Kernel]:
    """Return the kernels that can do it, the likely fastest first.

    Rows are shared where a GPU has more cores than there are workgroups. Subgroups need texel
    buffers; devices that are no GPUs take them first.
    """
    shared = [CachedKernel(parts) for parts in PARTS]
    alone = [CachedSubgroup(lanes) for lanes in rotate_lanes(info)] if texel else []
    if not is_gpu(info):
        return [*alone, CachedKernel(), shared[0]]
    if problem.workgroups >= cores_of(info):
        return [CachedKernel(), shared[0], *alone]

    def us(kernel: CachedKernel) -> float:
        idle = kernel.parts > 1 and problem.keys < KEYS * kernel.parts
        return inf if idle else kernel.time(problem, info).total

    return [*sorted([CachedKernel(), *shared], key=us), *alone]
