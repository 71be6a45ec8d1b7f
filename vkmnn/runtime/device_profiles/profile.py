"""Files that describe devices: their format, reading and validation."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.errors import DeviceProfileError
from vkmnn.runtime.device_info import (
    CooperativeMatrixShape,
    DeviceType,
    Limits,
    MemoryFlag,
    MemoryType,
)

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device as its driver describes it to programs.

    `sources` lists the origin of the facts; `floors` names the fields of `limits` (and
    "memory_types", "features") that have the specification's minimum. Limits, features and matrices
    are those of `DeviceInfo`.
    """

    name: str
    device: str
    vendor_id: int
    driver: str
    type: DeviceType
    api_version: tuple[int, int, int]
    multiprocessors: int
    subgroup_size: int
    limits: Limits
    memory_types: tuple[MemoryType, ...]
    features: frozenset[str]
    cooperative_matrices: tuple[CooperativeMatrixShape, ...]
    sources: tuple[str, ...]
    floors: frozenset[str]

    @property
    def memory_bytes(self) -> int:
        """Size of the largest device-local heap."""
        local = MemoryFlag.DEVICE_LOCAL
        return max((item.heap_bytes for item in self.memory_types if item.flags & local), default=0)


def profile_names() -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def load_profile(name: str) -> DeviceProfile:
    """Return the profile called `name`.

    Raises:
        DeviceProfileError: there is none of that name, or its file is damaged.
    """
    names = profile_names()
    if name not in names:
        import difflib

        near = difflib.get_close_matches(name, names)
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        raise DeviceProfileError(
            f"there is no device profile '{name}'",
            hint=f"{guess}profiles: {', '.join(names)}",
        )
    path = FOLDER / f"{name}.json"
    try:
        return parse_profile(name, json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise DeviceProfileError(f"device profile '{name}' cannot be read: {error}") from error


def parse_profile(name: str, document: object) -> DeviceProfile:
    """Turn a file's content into a profile.

    Raises:
        DeviceProfileError: a field is missing, unknown, of the wrong type, or contradicts another.
    """
    reader = _Reader(name)
    fields = reader.record("the file", document, _FIELDS)
    heaps = fields.pop("heaps")
    types = fields.pop("memory_types")
    for heap, flags in types:
        if not 0 <= heap < len(heaps):
            reader.fail(f"memory_types: there is no heap {heap}")
        if not flags & (MemoryFlag.DEVICE_LOCAL | MemoryFlag.HOST_VISIBLE):
            reader.fail("memory_types: memory that is neither device-local nor host-visible")
    memory_types = tuple(
        MemoryType(index, flags, heap, heaps[heap]) for index, (heap, flags) in enumerate(types)
    )
    # All Vulkan devices have images of 16 and 32 bits per channel ("Required Format Support").
    fields["features"] |= {"images"}
    profile = DeviceProfile(name=name, memory_types=memory_types, **fields)
    smallest, largest = profile.limits.subgroup_size_range
    checks = (
        (bool(profile.sources), "sources: empty"),
        (smallest <= profile.subgroup_size <= largest, "subgroup_size is outside its range"),
        (
            smallest == largest or "subgroup_size_control" in profile.features,
            "subgroup_size_range: only subgroup_size_control lets sizes differ",
        ),
        (
            bool(profile.limits.timestamp_period_ns) == ("timestamps" in profile.features),
            "timestamp_period_ns and the feature 'timestamps' contradict each other",
        ),
        (
            bool(profile.cooperative_matrices) == ("cooperative_matrix" in profile.features),
            "cooperative_matrices and the feature 'cooperative_matrix' contradict each other",
        ),
        (
            profile.floors <= {field.name for field in dataclasses.fields(Limits)} | _FLOORS,
            f"floors: unknown names among {sorted(profile.floors)}",
        ),
    )
    for holds, problem in checks:
        if not holds:
            reader.fail(problem)
    return profile


_FLOORS = {"memory_types", "features", "multiprocessors", "cooperative_matrices"}


class _Reader:
    """Converts JSON values and reports where one is invalid."""

    def __init__(self, name: str) -> None:
        self._name = name

    def fail(self, problem: str) -> None:
        raise DeviceProfileError(f"device profile '{self._name}': {problem}")

    def record(
        self, where: str, value: object, fields: Mapping[str, Callable[[Any], Any]]
    ) -> dict[str, Any]:
        """Convert an object that has exactly `fields`."""
        if not isinstance(value, dict):
            raise DeviceProfileError(f"device profile '{self._name}': {where} is not an object")
        absent, unknown = sorted(set(fields) - set(value)), sorted(set(value) - set(fields))
        if absent or unknown:
            self.fail(f"{where}: missing {absent}, unknown {unknown}")
        result = {}
        for key, convert in fields.items():
            try:
                result[key] = convert(value[key])
            except DeviceProfileError as error:
                self.fail(f"{key}: {error.message}")
            except (TypeError, ValueError, KeyError) as error:
                self.fail(f"{key}: {value[key]!r} does not fit ({error})")
        return result


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("no count")
    return value


def _power_of_two(value: object) -> int:
    number = _count(value)
    if number == 0 or number & (number - 1):
        raise ValueError("not a power of two")
    return number


def _nanoseconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ValueError("no time")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("no text")
    return value


def _tuple(convert: Callable[[Any], Any], length: int = 0) -> Callable[[Any], tuple[Any, ...]]:
    def converted(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or (length and len(value) != length):
            raise ValueError(f"no list of {length}" if length else "no list")
        return tuple(map(convert, value))

    return converted


def _names(value: object) -> frozenset[str]:
    names = _tuple(_text)(value)
    if len(set(names)) != len(names):
        raise ValueError("a name twice")
    return frozenset(names)


def _memory_type(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or not value:
        raise ValueError("not a heap with flags")
    return _count(value[0]), sum({MemoryFlag[flag.upper()] for flag in value[1:]})


def _matrix(value: object) -> CooperativeMatrixShape:
    if not isinstance(value, list) or len(value) != 9 or not isinstance(value[8], bool):
        raise ValueError("not three sizes, four types, a scope and true or false")
    m, n, k = map(_power_of_two, value[:3])
    a, b, c, result, scope = map(_text, value[3:8])
    return CooperativeMatrixShape(m, n, k, a, b, c, result, scope, value[8])


_LIMIT_READERS: Mapping[str, Callable[[Any], Any]] = {
    "max_storage_buffer_range": _count,
    "max_texel_buffer_elements": _count,
    "max_push_constants": _count,
    "max_workgroup_count": _tuple(_count, 3),
    "max_workgroup_size": _tuple(_count, 3),
    "max_workgroup_invocations": _count,
    "max_shared_memory": _count,
    "max_storage_bindings": _count,
    "max_texel_bindings": _count,
    "max_bindings": _count,
    "max_allocation_bytes": _count,
    "max_allocation_count": _count,
    "storage_offset_alignment": _power_of_two,
    "texel_offset_alignment": _power_of_two,
    "non_coherent_atom_size": _power_of_two,
    "subgroup_size_range": _tuple(_power_of_two, 2),
    "timestamp_period_ns": _nanoseconds,
}


def _limits(value: object) -> Limits:
    return Limits(**_Reader("limits").record("limits", value, _LIMIT_READERS))


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "device": _text,
    "vendor_id": lambda value: int(_text(value), 16),
    "driver": _text,
    "type": DeviceType,
    "api_version": _tuple(_count, 3),
    "multiprocessors": _count,
    "subgroup_size": _power_of_two,
    "limits": _limits,
    "heaps": _tuple(_count),
    "memory_types": _tuple(_memory_type),
    "features": _names,
    "cooperative_matrices": _tuple(_matrix),
    "sources": _tuple(_text),
    "floors": _names,
}
"""Field of a file -> its converter; a memory type is [heap, flag, ...], and a matrix [m, n, k, a,
b, c, result, scope, saturating].
"""
