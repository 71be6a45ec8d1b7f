"""Classes of devices: rates of a multiprocessor, costs of a dispatch.

One row is measured, that of a server GPU (docs/decisions/cost-model.md). The others are from data
sheets; values that these lack are the measured row scaled by clock and width.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo, DeviceType

NVIDIA, AMD, INTEL, _QUALCOMM, _APPLE = 0x10DE, 0x1002, 0x8086, 0x5143, 0x106B
_ARM, _BROADCOM, _IMAGINATION = 0x13B5, 0x14E4, 0x1010
SERVER_BYTES = 30 << 30
_ANY_SIZE = 1 << 62


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Costs of a class of devices; times in microseconds, rates per microsecond.

    Args:
        name: its name in tables.
        source: "measured", or the origin of the numbers.
        submit_us: from the submit to the first dispatch, and from the last to the host.
        gap_us: from the last store of a dispatch to the first load of one that waits for it.
        flag_us: what a level saves if it waits by flags, not at a barrier.
        beside_us: a further dispatch in a level, which waits for nothing.
        start_us: a dispatch that loads once and stores.
        step_us: a step along K that hides its loads in two buffers of shared memory.
        single_step_us: the same with one buffer, and so with two barriers.
        ahead_step_us: the same if the operands are in shared memory a step before.
        cold_step_us: additional time of a step if the right operand comes from memory.
        round_us: a loop round in registers, whose loads wait for memory.
        cold_round_us: additional time of a round if weights come from memory.
        core_bytes: bandwidth of a multiprocessor through the caches.
        direct_part: the part of it that matrices reach which are loaded without shared memory, if
            stored one after the other.
        cached_bytes: bandwidth of all of them together through the caches.
        cold_bytes: bandwidth of a multiprocessor from memory.
        shared_bytes: bandwidth between shared memory and registers, per multiprocessor.
        core_flops: float32 rate of a multiprocessor.
        dot_flops: its rate in dot products of four bytes each.
        half_flops: its float16 rate, without matrices.
        matrix_flops: its rate with cooperative matrices.
        ahead_gain: factor of that rate if operands are in shared memory a step before.
        core_results: rate at which it stores sums to memory.
        group_part: cost of each further group whose sums are added, as a fraction of that time.
        split_us: counting arrivals, and waiting for the last of them.
        part_us: each further part that the last workgroup adds.
        part_bytes: bandwidth at which a workgroup reads partial sums back.
        stream_bytes: bandwidth of weights read once, on the whole device.
        memory_bytes: bandwidth of copies, on the whole device.
        cache_bytes: bytes of constants that stay in the last-level cache.
        stored_bytes: size up to which kernels store a result to host memory; larger ones are
            copied.
        room_shared: bytes of shared memory of a multiprocessor for all its workgroups.
        room_invocations: invocations that it runs at once.
        room_registers: registers that it has for them.
        cores: number of multiprocessors, if the device does not report it.
        shared_in_memory: shared memory is ordinary memory behind the caches, so that staging what
            the caches hold gains nothing.
    """

    name: str
    source: str
    submit_us: float
    gap_us: float
    flag_us: float
    beside_us: float
    start_us: float
    step_us: float
    single_step_us: float
    ahead_step_us: float
    cold_step_us: float
    round_us: float
    cold_round_us: float
    core_bytes: float
    direct_part: float
    cached_bytes: float
    cold_bytes: float
    shared_bytes: float
    core_flops: float
    dot_flops: float
    half_flops: float
    matrix_flops: float
    ahead_gain: float
    core_results: float
    group_part: float
    split_us: float
    part_us: float
    part_bytes: float
    stream_bytes: float
    memory_bytes: float
    cache_bytes: int
    stored_bytes: int
    room_shared: int
    room_invocations: int
    room_registers: int
    cores: int
    shared_in_memory: bool = False


SERVER = DeviceClass(
    name="server GPU",
    source="measured on an H200 and an H100",
    submit_us=17.0,
    gap_us=1.65,
    flag_us=1.4,  # assumed: a launch, addresses and the first loads run before the wait
    beside_us=0.25,
    start_us=1.948,
    step_us=0.1118,
    single_step_us=0.2676,
    ahead_step_us=0.03,  # assumed: a barrier of eight subgroups, 60 cycles
    cold_step_us=0.0631,
    round_us=0.35,
    cold_round_us=0.75,
    core_bytes=88_670,
    # Assumed: 4 times the 18,200 bytes measured for rows K apart (77 TFLOP/s), which touch 4 times
    # as many lines.
    direct_part=0.82,
    cached_bytes=9_610_000,
    cold_bytes=84_550,
    shared_bytes=486_800,
    core_flops=333_000,
    dot_flops=666_000,  # assumed: half as many instructions as in float32, four products each
    half_flops=666_000,  # data sheets: two in one instruction
    matrix_flops=3_157_300,
    # Assumed: nine tenths of what eight subgroups reached with fragments from shared memory.
    ahead_gain=1.27,
    core_results=11_705,
    group_part=0.01403,
    split_us=1.45,
    part_us=0.1258,
    part_bytes=53_735,
    stream_bytes=1_715_700,
    memory_bytes=3_700_000,
    cache_bytes=40_000_000,
    stored_bytes=256 << 10,  # a guess; `tasks.py bench gpu` measures both ways
    room_shared=100 << 10,
    room_invocations=2048,
    room_registers=65_536,
    cores=16,
)
_DESKTOP = replace(
    SERVER,
    name="GeForce",
    source="data sheets",
    core_bytes=50_000,
    cold_bytes=50_000,
    shared_bytes=200_000,
    core_flops=280_000,
    dot_flops=560_000,
    half_flops=280_000,
    matrix_flops=900_000,
    ahead_gain=1.0,
    stream_bytes=240_000,
    memory_bytes=300_000,
    cache_bytes=2_000_000,
    room_shared=100 << 10,
    room_invocations=1536,
)
_RADEON = replace(
    SERVER,
    name="Radeon",
    source="data sheets",
    gap_us=3.0,
    start_us=2.5,
    core_bytes=40_000,
    cold_bytes=40_000,
    shared_bytes=220_000,
    core_flops=220_000,
    dot_flops=880_000,
    half_flops=440_000,
    matrix_flops=700_000,
    ahead_gain=1.0,
    stream_bytes=500_000,
    memory_bytes=700_000,
    cache_bytes=32_000_000,
    room_shared=64 << 10,
    room_invocations=1024,
    room_registers=49_152,
)
# Clock and memory by data sheets: 2.97 of 2.5 GHz, 640 of 960 GB/s. A multiprocessor multiplies
# matrices twice as fast per clock; the rate is scaled by what PyTorch reaches with 4,096 rows and
# columns: 129 TFLOP/s with 64 multiprocessors instead of 105 with 96.
_RADEON_RDNA4 = replace(
    _RADEON,
    name="Radeon RDNA 4",
    core_bytes=47_500,
    cold_bytes=47_500,
    shared_bytes=261_000,
    core_flops=261_000,
    dot_flops=1_045_000,
    half_flops=522_000,
    matrix_flops=1_290_000,
    stream_bytes=333_000,
    memory_bytes=467_000,
    cache_bytes=21_000_000,
)
_ARC = replace(
    SERVER,
    name="Arc",
    source="data sheets",
    gap_us=4.0,
    start_us=3.0,
    core_bytes=60_000,
    cold_bytes=60_000,
    shared_bytes=250_000,
    core_flops=600_000,
    dot_flops=2_400_000,
    half_flops=1_200_000,
    matrix_flops=3_000_000,
    ahead_gain=1.0,
    stream_bytes=300_000,
    memory_bytes=400_000,
    cache_bytes=8_000_000,
    room_shared=256 << 10,
)
_INTEGRATED = replace(
    SERVER,
    name="integrated GPU",
    source="data sheets",
    submit_us=30.0,
    gap_us=5.0,
    beside_us=1.0,
    start_us=4.0,
    step_us=0.25,
    single_step_us=0.6,
    ahead_step_us=0.07,
    cold_step_us=0.2,
    round_us=0.8,
    cold_round_us=0.4,  # their caches are hardly nearer than their memory
    core_bytes=20_000,
    cold_bytes=20_000,
    shared_bytes=60_000,
    core_flops=80_000,
    dot_flops=320_000,
    half_flops=160_000,
    matrix_flops=160_000,
    ahead_gain=1.0,
    core_results=3_000,
    split_us=4.0,
    part_bytes=12_000,
    stream_bytes=35_000,
    memory_bytes=40_000,
    cache_bytes=2_000_000,
    stored_bytes=_ANY_SIZE,  # all of its memory is the host's
    room_shared=64 << 10,
    room_invocations=896,
    room_registers=32_768,
)
_APPLE_GPU = replace(
    _INTEGRATED,
    name="Apple",
    core_bytes=40_000,
    cold_bytes=40_000,
    shared_bytes=150_000,
    core_flops=230_000,
    dot_flops=230_000,
    half_flops=230_000,
    matrix_flops=460_000,
    stream_bytes=50_000,
    memory_bytes=60_000,
    cache_bytes=4_000_000,
    cores=8,
)
_ADRENO = replace(
    _INTEGRATED,
    name="Adreno",
    submit_us=60.0,
    gap_us=8.0,
    start_us=6.0,
    core_flops=120_000,
    dot_flops=480_000,
    half_flops=240_000,
    core_bytes=16_000,
    cold_bytes=16_000,
    stream_bytes=30_000,
    memory_bytes=40_000,
    cache_bytes=1_000_000,
    room_shared=32 << 10,
    room_invocations=2048,
    room_registers=65_536,
    cores=8,
)
_MALI = replace(
    _ADRENO,
    name="Mali",
    shared_in_memory=True,
    shared_bytes=16_000,
    core_flops=60_000,
    dot_flops=240_000,
    half_flops=120_000,
    core_bytes=12_000,
    cold_bytes=12_000,
    stream_bytes=20_000,
    memory_bytes=25_000,
    cores=16,
)
_SMALL = replace(
    _MALI,
    name="small GPU",
    submit_us=100.0,
    gap_us=15.0,
    start_us=10.0,
    core_flops=4_000,
    dot_flops=4_000,
    half_flops=4_000,
    core_bytes=2_000,
    cold_bytes=2_000,
    shared_bytes=4_000,
    core_results=500,
    stream_bytes=4_000,
    memory_bytes=5_000,
    cache_bytes=250_000,
    cores=16,
)
# A core is a thread of the pool, with an equal share of the workgroups. Nothing is staged: kernels
# of these devices are ranked by measured rates (`cpu.py`).
CPU = replace(
    SERVER,
    name="software device",
    source="measured on lavapipe, two cores",
    submit_us=40.0,
    gap_us=15.0,
    beside_us=15.0,
    start_us=0.1,
    cold_round_us=0.0,
    core_bytes=10_000,
    cold_bytes=10_000,
    shared_bytes=2_000,
    core_flops=50_000,
    dot_flops=50_000,
    half_flops=5_000,  # emulated
    matrix_flops=50_000,
    core_results=1_500,
    stream_bytes=20_000,
    memory_bytes=20_000,
    cache_bytes=1_000_000,
    stored_bytes=_ANY_SIZE,
    cores=2,
)

# By vendor and kind of memory; the first match wins.
_BY_VENDOR: dict[int, dict[DeviceType, DeviceClass]] = {
    NVIDIA: {DeviceType.DISCRETE: _DESKTOP},
    AMD: {DeviceType.DISCRETE: _RADEON},
    INTEL: {DeviceType.DISCRETE: _ARC},
}
_BY_NAME = ((AMD, re.compile(r"\bRX 90\d\d|\bR9[67]\d\d|\bGFX12"), _RADEON_RDNA4),)
_BY_VENDOR_ALONE = {
    _QUALCOMM: _ADRENO,
    _ARM: _MALI,
    _APPLE: _APPLE_GPU,
    _BROADCOM: _SMALL,
    _IMAGINATION: replace(_SMALL, shared_in_memory=False),
}
_BY_TYPE = {DeviceType.CPU: CPU, DeviceType.DISCRETE: SERVER, DeviceType.VIRTUAL: SERVER}


def class_of(info: DeviceInfo) -> DeviceClass:
    """Return the class of a device, by vendor, type, name and memory."""
    if info.type is DeviceType.CPU:
        return CPU
    for vendor_id, name, named in _BY_NAME:
        if info.vendor_id == vendor_id and name.search(info.name):
            return named
    if info.vendor_id in _BY_VENDOR_ALONE:
        return _BY_VENDOR_ALONE[info.vendor_id]
    of_vendor = _BY_VENDOR.get(info.vendor_id, {}).get(info.type)
    if of_vendor is _DESKTOP and info.memory_bytes > SERVER_BYTES:
        return SERVER
    return of_vendor or _BY_TYPE.get(info.type, _INTEGRATED)


def cores_of(info: DeviceInfo) -> int:
    """Return how many workgroups run without sharing a multiprocessor, estimated if unknown."""
    return info.multiprocessors or class_of(info).cores
