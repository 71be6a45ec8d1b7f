"""Facts about devices on which the rules of several kernels depend."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.vulkan.cost.devices import AMD, INTEL, NVIDIA

CpuLanes = Literal[8, 16]

MAX_LOOP_ROUNDS = 65_000
"""Maximum iterations of an invocation's loops together, with a small margin.

lavapipe (Mesa 22.3) silently ends every loop after 65,535 rounds. The round in which a loop ends
counts too.
"""

CPU_SUBGROUPS: tuple[CpuLanes, ...] = (8, 16)
"""Subgroup sizes of CPU devices for which there are kernels."""

SHUFFLES = frozenset(
    {"subgroup_basic", "subgroup_shuffle", "subgroup_size_control", "full_subgroups"}
)
"""Features of kernels that exchange registers within a subgroup of a given size."""


class Refusal(NamedTuple):
    """Cooperative matrices that a vendor's devices of a type list, and that kernels must not use.

    `sizes` are their (m, n, k); `reason` says why.
    """

    vendor_id: int
    type: DeviceType
    sizes: frozenset[tuple[int, int, int]]
    reason: str


REFUSED_MATRICES = (
    Refusal(
        INTEL,
        DeviceType.DISCRETE,
        frozenset({(8, 8, 16), (8, 8, 32)}),
        # Measured for llama.cpp: ggml-org/llama.cpp pull requests 14001 and 24404.
        "Arc before Xe2 computes them up to a thousand times slower than vector loops do",
    ),
)
"""The table of drivers; what it does not know is measured at first use (`vulkan/proof.py`)."""


def refused_sizes(info: DeviceInfo) -> frozenset[tuple[int, int, int]]:
    """Return the sizes of matrices that the table of drivers excludes on a device."""
    return frozenset[tuple[int, int, int]]().union(*(one.sizes for one in _refusals(info)))


def refusal_reasons(info: DeviceInfo) -> list[str]:
    """Return what the table of drivers excludes on a device, and why, a sentence each."""
    listed = {(shape.m, shape.n, shape.k) for shape in info.cooperative_matrices}
    return [
        f"cooperative matrices {', '.join('x'.join(map(str, size)) for size in sorted(found))} "
        f"are not used: {one.reason}"
        for one in _refusals(info)
        if (found := one.sizes & listed)
    ]


def _refusals(info: DeviceInfo) -> list[Refusal]:
    return [
        one for one in REFUSED_MATRICES if (info.vendor_id, info.type) == (one.vendor_id, one.type)
    ]


FLAG_DEVICES = frozenset({(NVIDIA, DeviceType.DISCRETE), (AMD, DeviceType.DISCRETE)})
"""Vendors and types of GPUs that launch the workgroups of a queue in order and never drop one that
waits, as far as known: others are not even asked to prove it (docs/decisions/flags.md)."""


def may_wait_by_flags(info: DeviceInfo) -> bool:
    """Return whether dispatches may wait for one another by flags, if the device proves it."""
    return (info.vendor_id, info.type) in FLAG_DEVICES and not info.limits.whole_buffers


STAGED_MATRICES = "staged_matrices"
"""Feature of a device that proved to be slower with cooperative matrices loaded from memory."""


def loads_matrices(info: DeviceInfo) -> bool:
    """Return whether cooperative matrices may be loaded from memory, not from shared memory."""
    return STAGED_MATRICES not in info.features


def is_gpu(info: DeviceInfo) -> bool:
    """Return whether shared memory is fast on this device; CPU devices emulate it and barriers."""
    return info.type is not DeviceType.CPU


def divides_exactly(info: DeviceInfo) -> bool:
    """Return whether quotients of floats are rounded to nearest, as in IEEE 754.

    Vulkan requires less. llvmpipe uses the processor's division.
    """
    return info.type is DeviceType.CPU and info.driver_name == "llvmpipe"


def has_fast_dots(info: DeviceInfo) -> bool:
    """Return whether the device has instructions for dot products of four signed bytes each."""
    return "integer_dot_accelerated" in info.features


def has_mixed_dots(info: DeviceInfo) -> bool:
    """Return whether it has them for signed with unsigned bytes, as Adreno's open driver does."""
    return "integer_dot_mixed_accelerated" in info.features


def cpu_lanes(info: DeviceInfo) -> CpuLanes:
    """Return the SIMD width of a CPU device, which is the size of its small workgroups."""
    return 16 if info.subgroup_size >= 16 else 8


def rotate_lanes(info: DeviceInfo) -> tuple[CpuLanes, ...]:
    """Return the subgroup sizes with which rotation kernels run on a device, its own first."""
    return _rotate_lanes(info.features, info.limits.subgroup_size_range, info.subgroup_size)


@lru_cache(maxsize=64)
def _rotate_lanes(
    features: frozenset[str], sizes: tuple[int, int], own: int
) -> tuple[CpuLanes, ...]:
    if not features >= SHUFFLES:
        return ()
    smallest, largest = sizes
    found = [lanes for lanes in CPU_SUBGROUPS if smallest <= lanes <= largest]
    return tuple(sorted(found, key=lambda lanes: lanes != own))
