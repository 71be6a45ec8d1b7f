"""The time of dispatches that stage nothing: loops in registers, and passes over memory."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.cost.tiles import MAX_RESIDENT, TINY_BYTES


@dataclass(frozen=True, slots=True)
class Loop:
    """Work of a dispatch's workgroups: rounds that wait for their loads.

    Args:
        workgroups: number of workgroups.
        invocations: invocations per workgroup.
        rounds: loop rounds of an invocation.
        round_bytes: bytes that a workgroup loads per round.
        round_flops: operations per round.
        results: results that it stores.
        registers: registers per invocation, estimated.
        shared_bytes: bytes that it moves through shared memory in all.
        weight_bytes: bytes that the whole dispatch reads once.
        efficiency: the fraction of the device's rate reached with this reuse.
        steps: steps of a round, each of which waits for staged data.
        matrix_flops: operations of a round by cooperative matrices.
        staged_bytes: bytes that a round moves through shared memory.
        closing: waits of the invocations for one another after the last round.
    """

    workgroups: int
    invocations: int
    rounds: int
    round_bytes: float
    round_flops: float = 0.0
    results: float = 0.0
    registers: int = 32
    shared_bytes: float = 0.0
    weight_bytes: float = 0.0
    efficiency: float = 1.0
    steps: int = 0
    matrix_flops: float = 0.0
    staged_bytes: float = 0.0
    closing: int = 0


def loop_cost(loop: Loop, info: DeviceInfo, cold: bool = False) -> Cost:
    """Return the predicted time of a dispatch of such workgroups.

    Args:
        loop: their work.
        info: the device.
        cold: the network's weights do not stay in the caches.
    """
    device = class_of(info)
    busiest = -(-loop.workgroups // cores_of(info))
    by_registers = device.room_registers // (loop.invocations * loop.registers)
    room = min(device.room_invocations // loop.invocations, by_registers, MAX_RESIDENT)
    waves = -(-busiest // max(1, min(room, busiest)))
    streamed = cold and loop.weight_bytes > TINY_BYTES
    wait = device.round_us + device.cold_round_us * streamed
    latency = waves * loop.rounds * (wait + loop.steps * device.step_us)
    latency += waves * loop.closing * device.step_us
    rounds = busiest * loop.rounds
    loads = rounds * loop.round_bytes / device.core_bytes
    work = rounds * loop.round_flops / (device.core_flops * loop.efficiency)
    work += rounds * loop.matrix_flops / device.matrix_flops
    work = max(work, rounds * loop.staged_bytes / device.shared_bytes)
    stores = busiest * loop.results / device.core_results
    stores += busiest * loop.shared_bytes / device.shared_bytes
    if streamed:
        loads = max(loads, loop.weight_bytes / device.stream_bytes - latency)
    return Cost(
        start=device.start_us,
        latency=latency,
        loads=loads if loads >= work else 0.0,
        arithmetic=work if work > loads else 0.0,
        stores=stores,
    )


def pass_cost(nbytes: float, info: DeviceInfo, workgroups: int = 0) -> Cost:
    """Return the predicted time of a dispatch that reads and writes `nbytes` bytes once.

    Args:
        nbytes: bytes in all.
        info: the device.
        workgroups: workgroups that share them; 0: enough to keep the device busy.
    """
    device = class_of(info)
    busy = min(workgroups or cores_of(info), cores_of(info))
    loads = max(nbytes / device.memory_bytes, nbytes / (busy * device.core_bytes))
    return Cost(start=device.start_us, latency=device.round_us, loads=loads)
