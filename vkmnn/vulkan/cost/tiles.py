"""The time of a product whose results are divided into tiles, one per workgroup.

With n workgroups on the busiest multiprocessor, r of which fit at once, and s steps along K:

    start + ceil(n/r)·s·latency + n·(opening + s·max(loads, arithmetic, shared memory) + stores)
    + split

In float32, n counts whole waves. The time is never less than that of streaming uncached weights.
"""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.cost.devices import DeviceClass, class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost

# Shared memory that the driver reserves for every workgroup.
RESERVED_SHARED = 1024
MAX_REGISTERS = 255
MAX_RESIDENT = 32
# Invocations that a multiprocessor needs for its rate in float32.
FULL_INVOCATIONS = 128
# The fraction that they reach with no more than that: each scheduler has one subgroup, and rests
# whenever it waits.
ALONE = 0.85
# Products per dot-product instruction on bytes.
DOT_PRODUCTS = 4
# The value of as much padding as work, as a fraction of the time, and how much of it counts.
MAX_PADDED = 8.0
PADDING = 0.2
# Weights that a single product evicts from every cache, and those that always stay cached.
HUGE_BYTES = 50_000_000
TINY_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Tiling:
    """A product divided into tiles, and the work of a workgroup.

    Args:
        tiles: tiles of the whole product.
        parts: workgroups that share the K of a tile.
        steps: steps along K of one workgroup.
        left_bytes: bytes of the left operand per step.
        right_bytes: bytes of the right one.
        staged_bytes: bytes through shared memory per step, in and out.
        flops: operations per step.
        results: results per tile.
        invocations: invocations per workgroup.
        registers: registers per invocation.
        shared: bytes of shared memory per workgroup.
        groups: groups of invocations that share each step.
        buffers: two hide the loads of a step, one does not.
        weight_bytes: the right operand of the whole product.
        matrices: multiplied by cooperative matrices.
        dots: multiplied by dot products of bytes.
        efficiency: the fraction of the float32 rate reached with this many results per invocation.
        lane_flops: float32 operations per step in addition to the matrices'.
        ahead: steps lie in shared memory one step early, so that only barriers delay them.
        closing: waits of additional invocations for one another, after the last step.
        openings: waits of a workgroup for loads that no other workgroup hides.
        direct_bytes: bytes per step that subgroups load into matrices without shared memory.
        rounds: waits for these loads per step, each as long as that of a step.
    """

    tiles: int
    parts: int
    steps: int
    left_bytes: float
    right_bytes: float
    staged_bytes: float
    flops: float
    results: int
    invocations: int
    registers: int
    shared: int
    groups: int
    buffers: int
    weight_bytes: float
    matrices: bool = False
    dots: bool = False
    efficiency: float = 1.0
    lane_flops: float = 0.0
    ahead: bool = False
    closing: int = 0
    openings: int = 0
    direct_bytes: float = 0.0
    rounds: int = 1

    @property
    def workgroups(self) -> int:
        """Number of workgroups."""
        return self.tiles * self.parts


def resident(tiling: Tiling, device: DeviceClass) -> int:
    """Return how many of the workgroups a multiprocessor runs at once."""
    by_memory = device.room_shared // (tiling.shared + RESERVED_SHARED)
    by_invocations = device.room_invocations // tiling.invocations
    by_registers = device.room_registers // (tiling.invocations * tiling.registers)
    return max(1, min(by_memory, by_invocations, by_registers, MAX_RESIDENT))


def lanes_used(invocations: int, at_once: int) -> float:
    """Return the fraction of a multiprocessor's lanes that its workgroups keep busy.

    Subgroups are assigned to schedulers workgroup by workgroup: if their number is not a multiple
    of the schedulers', some rest while the others compute.

    Args:
        invocations: invocations per workgroup.
        at_once: workgroups that it runs at once.
    """
    if invocations <= FULL_INVOCATIONS:
        there = at_once * invocations / FULL_INVOCATIONS
        return 1.0 if there > 1 else ALONE * there
    return invocations / (-(-invocations // FULL_INVOCATIONS) * FULL_INVOCATIONS)


def weighed_us(us: float, done: int, needed: int) -> float:
    """Return the time for ranking: of nearly equal kernels, the one with less padding wins.

    Padding that latency hides still costs power, and so lowers the clock.

    Args:
        us: the predicted time.
        done: multiplications of the tiles.
        needed: multiplications of the product.
    """
    return us * (1 + PADDING * (min(done / max(needed, 1), MAX_PADDED) - 1))


def tiles_cost(tiling: Tiling, info: DeviceInfo, cold: bool) -> Cost:
    """Return the predicted time of a tiled product.

    Args:
        tiling: the product and its tiles.
        info: the device.
        cold: the network's weights do not stay in the caches.
    """
    device = class_of(info)
    busiest = -(-tiling.workgroups // cores_of(info))
    at_once = min(resident(tiling, device), max(busiest, 1))
    waves = -(-busiest // at_once)
    if not tiling.matrices:
        # The remainder of the last wave is not spread: some multiprocessors run another full one.
        # Products by matrices were not observed to wait for it.
        busiest = waves * at_once
    streamed = tiling.weight_bytes > HUGE_BYTES or (cold and tiling.weight_bytes > TINY_BYTES)
    step = device.step_us if tiling.buffers > 1 else device.single_step_us
    if tiling.ahead:
        step = device.ahead_step_us
    step += (tiling.rounds - 1) * device.step_us
    step += tiling.rounds * device.cold_step_us * streamed
    rounds = busiest * tiling.steps
    busy = max(min(tiling.workgroups, cores_of(info)), 1)  # none for an empty product
    rate_bytes = min(device.core_bytes, device.cached_bytes / busy)
    right_bytes = min(rate_bytes, device.cold_bytes) if streamed else rate_bytes
    loads = tiling.left_bytes / rate_bytes + tiling.right_bytes / right_bytes
    rate = device.matrix_flops * (device.ahead_gain if tiling.ahead else 1.0)
    if not tiling.matrices:
        lanes = lanes_used(tiling.invocations, at_once)
        rate = device.core_flops * tiling.efficiency * lanes
    arithmetic = tiling.flops / rate + tiling.lane_flops / device.core_flops
    if tiling.dots:
        # One instruction for four products; others continue while it takes longer than most.
        issued = tiling.flops / DOT_PRODUCTS / rate + tiling.lane_flops / device.core_flops
        arithmetic = max(issued, tiling.flops / device.dot_flops)
    direct = tiling.direct_bytes / (device.core_bytes * device.direct_part)
    # Both through the same unit.
    work = max(arithmetic, tiling.staged_bytes / device.shared_bytes + direct)
    split = 0.0
    if tiling.parts > 1:
        part_bytes = 4.0 * tiling.results * (tiling.parts + 1)
        split = device.split_us + device.part_us * tiling.parts + part_bytes / device.part_bytes
    latency = waves * (tiling.steps + tiling.closing) * step
    latency += busiest * tiling.openings * device.round_us
    grouped = 1 + device.group_part * (tiling.groups - 1)
    stores = busiest * tiling.results * grouped / device.core_results
    streaming = tiling.weight_bytes / device.stream_bytes if streamed else 0.0
    busy_us = rounds * max(loads, work)
    waiting = streaming - latency - busy_us - stores - split
    bound = loads >= work or waiting > 0  # by loads
    return Cost(
        start=device.start_us,
        latency=latency,
        loads=busy_us + max(waiting, 0.0) if bound else 0.0,
        arithmetic=0.0 if bound else busy_us,
        stores=stores,
        split=split,
    )
