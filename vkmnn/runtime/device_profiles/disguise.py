"""Makes one device look like another, as far as possible: limits are only lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from vkmnn.runtime.device_info import DeviceInfo, Limits, MemoryFlag, MemoryType
from vkmnn.runtime.device_profiles.profile import DeviceProfile

_HOST = MemoryFlag.HOST_VISIBLE | MemoryFlag.HOST_COHERENT | MemoryFlag.HOST_CACHED
_FAST = dict.fromkeys(("integer_dot_accelerated", "integer_dot_mixed_accelerated"), "integer_dot")
_KEPT = {"queue_priority"}
"""Features of the system, which are not part of profiles."""
_SIZE_CONTROL = "subgroup_size_control"


def disguised(info: DeviceInfo, profile: DeviceProfile) -> DeviceInfo:
    """Return the properties of a device that emulates a profile.

    Identity, driver and the subgroups' real size stay. Features that either lacks are removed,
    limits are the tighter of the two, and the memory is split into the profile's heaps. Subgroup
    sizes that a pipeline may require are those that both support, if any.
    """
    smallest, largest = info.limits.subgroup_size_range
    profile_smallest, profile_largest = profile.limits.subgroup_size_range
    shared_sizes = max(smallest, profile_smallest), min(largest, profile_largest)
    features = info.features & profile.features
    # Speed follows from the type: the rules see the other device.
    features |= info.features & _KEPT
    features |= {fast for fast, used in _FAST.items() if used in features} & profile.features
    if shared_sizes[0] > shared_sizes[1]:
        shared_sizes = info.subgroup_size, info.subgroup_size
        features -= {_SIZE_CONTROL}
    elif _SIZE_CONTROL not in features:
        shared_sizes = info.subgroup_size, info.subgroup_size
    memory_types = _split(info.memory_types, profile.memory_types)
    return replace(
        info,
        type=profile.type,
        memory_bytes=min(info.memory_bytes, profile.memory_bytes),
        features=features,
        limits=_tighter(info.limits, profile.limits, shared_sizes),
        cooperative_matrices=tuple(
            shape for shape in info.cooperative_matrices if shape in profile.cooperative_matrices
        ),
        multiprocessors=profile.multiprocessors,
        memory_types=memory_types,
        device_profile=profile.name,
    )


_LARGER_IS_TIGHTER = frozenset(
    {"storage_offset_alignment", "texel_offset_alignment", "non_coherent_atom_size"}
)


def _tighter(real: Limits, wanted: Limits, subgroup_sizes: tuple[int, int]) -> Limits:
    changes: dict[str, Any] = {}
    for name in (field.name for field in fields(Limits)):
        a, b = getattr(real, name), getattr(wanted, name)
        pick = max if name in _LARGER_IS_TIGHTER else min
        changes[name] = tuple(map(min, a, b)) if isinstance(a, tuple) else pick(a, b)
    changes |= {
        "subgroup_size_range": subgroup_sizes,
        "timestamp_period_ns": real.timestamp_period_ns if wanted.timestamp_period_ns else 0.0,
        "whole_buffers": real.whole_buffers,
    }
    return replace(real, **changes)


def _split(real: Sequence[MemoryType], wanted: Sequence[MemoryType]) -> tuple[MemoryType, ...]:
    """Map the profile's memory types to real ones; drop those without a counterpart.

    A real type matches if it has the host access of the profile's. Whether memory is device-local
    is taken from the profile: it changes where memory is allocated, not how it may be used.
    """
    found = []
    for item in wanted:
        host = item.flags & _HOST
        fits = [other for other in real if other.flags & host == host]
        if fits:
            best = max(fits, key=lambda other: (bool(other.flags & item.flags & 1), -other.index))
            found.append(replace(item, index=best.index))
    return tuple(found)
