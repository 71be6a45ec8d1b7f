"""Time of a product whose left operand is computed by the workgroups, chunk by chunk."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.cost.devices import DeviceClass, class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.cost.tiles import FULL_INVOCATIONS, MAX_RESIDENT, RESERVED_SHARED, TINY_BYTES

# The fraction of the float32 rate that loops reach if they load for every few products.
LOADED_RATE = 0.65


@dataclass(frozen=True, slots=True)
class Chunks:
    """A workgroup's work per chunk of K: compute the left operand, then multiply.

    Args:
        workgroups: number of workgroups.
        invocations: invocations per workgroup.
        chunks: chunks along K.
        waits: waits of an invocation for loads while it computes the left operand.
        rounds: rounds of the product, whose loads are one round ahead.
        made_bytes: bytes loaded to compute the left operand.
        made_flops: operations to compute it.
        right_bytes: bytes of the right operand.
        flops: operations of the product.
        staged_bytes: bytes through shared memory, in and out.
        results: results of a workgroup, over all chunks.
        groups: groups of invocations that share a chunk.
        registers: registers per invocation, estimated.
        shared: bytes of shared memory per workgroup.
        weight_bytes: bytes that the whole dispatch reads once.
        efficiency: the fraction of the float32 rate that the product reaches.
    """

    workgroups: int
    invocations: int
    chunks: int
    waits: int
    rounds: int
    made_bytes: float
    made_flops: float
    right_bytes: float
    flops: float
    staged_bytes: float
    results: int
    groups: int
    registers: int
    shared: int
    weight_bytes: float
    efficiency: float


def _at_once(work: Chunks, device: DeviceClass, busiest: int) -> int:
    """Return how many workgroups a multiprocessor runs side by side."""
    room = min(
        device.room_shared // (work.shared + RESERVED_SHARED),
        device.room_invocations // work.invocations,
        device.room_registers // (work.invocations * work.registers),
        MAX_RESIDENT,
    )
    return max(1, min(room, busiest))


def chunks_cost(work: Chunks, info: DeviceInfo, cold: bool = False) -> Cost:
    """Return the predicted time of a dispatch of such workgroups.

    A workgroup computes the left operand and multiplies in sequence, so each takes the longer of
    its loads and its arithmetic.

    Args:
        work: their work.
        info: the device.
        cold: the network's weights do not stay in the caches.
    """
    device, cores = class_of(info), cores_of(info)
    busiest = -(-work.workgroups // cores)
    at_once = _at_once(work, device, busiest)
    waits = work.waits * device.round_us + work.rounds * device.step_us + device.single_step_us
    latency = -(-busiest // at_once) * work.chunks * waits
    rate_bytes = min(device.core_bytes, device.cached_bytes / min(work.workgroups, cores))
    lanes = min(1.0, at_once * work.invocations / FULL_INVOCATIONS)
    rate = device.core_flops * lanes
    product_us = work.flops / (rate * work.efficiency)
    loads = arithmetic = 0.0
    for load, compute in (
        (work.made_bytes / rate_bytes, work.made_flops / (rate * LOADED_RATE)),
        (work.right_bytes / rate_bytes, max(product_us, work.staged_bytes / device.shared_bytes)),
    ):
        times = busiest * work.chunks
        loads += times * load if load >= compute else 0.0
        arithmetic += times * compute if compute > load else 0.0
    grouped = 1 + device.group_part * (work.groups - 1)
    stores = busiest * work.results * grouped / device.core_results
    if cold and work.weight_bytes > TINY_BYTES:
        streaming = work.weight_bytes / device.stream_bytes
        loads += max(0.0, streaming - latency - loads - arithmetic - stores)
    return Cost(device.start_us, latency, loads, arithmetic, stores)
