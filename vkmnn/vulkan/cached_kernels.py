"""The kernels of CachedAttention: by how many workgroups the rows of a cache are shared."""

from __future__ import annotations

from math import inf

from vkmnn.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.device_rules import is_gpu

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
        columns: numbers of a key and a value.
    """

    workgroups: int
    keys: int
    columns: int


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """The rows of a cache are shared by `parts` workgroups, of which the last to arrive merges."""

    parts: int = 1
    family = "cached"

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


def kernels_of(problem: CachedProblem, info: DeviceInfo) -> list[CachedKernel]:
    """Return the kernels that can do it, the likely fastest first.

    Rows are shared where a GPU has more cores than there are workgroups.
    """
    shared = [CachedKernel(parts) for parts in PARTS]
    if not is_gpu(info) or problem.workgroups >= cores_of(info):
        return [CachedKernel(), shared[0]]

    def us(kernel: CachedKernel) -> float:
        idle = kernel.parts > 1 and problem.keys < KEYS * kernel.parts
        return inf if idle else kernel.time(problem, info).total

    return sorted([CachedKernel(), *shared], key=us)
