"""Facts about devices on which the rules of several kernels depend."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from vkmnn.runtime.device_info import DeviceInfo, DeviceType

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
