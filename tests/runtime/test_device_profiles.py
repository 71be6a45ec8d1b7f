"""Device profiles: their files, and their effects on a device."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkmnn.errors import DeviceProfileError, OutOfDeviceMemoryError
from vkmnn.runtime import device as devices
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.runtime.device_info import DeviceInfo, DeviceType, MemoryFlag, MemoryType
from vkmnn.runtime.device_profiles import (
    DeviceProfile,
    disguised,
    load_profile,
    parse_profile,
    profile_names,
)
from vkmnn.runtime.device_profiles.profile import FOLDER
from vkmnn.runtime.limit_checker import CAPABILITIES, CheckedDevice
from vkmnn.runtime.memory import MemoryKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "device-profiles.md"
LOCAL, VISIBLE, COHERENT = 1, 2, 4


def document(name: str = "raspberry-pi-4") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return content


def table() -> list[str]:
    """Return the table of docs/device-profiles.md."""
    rows = [
        "| Profile | Device | Driver | Subgroups | Workgroup | Shared memory | Storage range |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in profile_names():
        profile = load_profile(name)
        limits = profile.limits
        sizes = "–".join(map(str, sorted(set(limits.subgroup_size_range))))
        rows.append(
            f"| `{name}` | {profile.device} | {profile.driver} | {sizes} | "
            f"{limits.max_workgroup_invocations} | {limits.max_shared_memory // 1024} KiB | "
            f"{-(-limits.max_storage_buffer_range // (1 << 20))} MiB |"
        )
    return rows


def test_the_page_has_the_table() -> None:
    assert "\n".join(table()) in PAGE.read_text("utf-8")


# "Required Limits" of the Vulkan specification: the least, or the largest alignment, of any device.
REQUIRED = {
    "max_storage_buffer_range": 1 << 27,
    "max_texel_buffer_elements": 65536,
    "max_push_constants": 128,
    "max_workgroup_count": (65535, 65535, 65535),
    "max_workgroup_size": (128, 128, 64),
    "max_workgroup_invocations": 128,
    "max_shared_memory": 16384,
    "max_storage_bindings": 4,
    "max_texel_bindings": 4,
    "max_bindings": 128,
    "max_allocation_bytes": 1 << 30,
    "max_allocation_count": 4096,
    "storage_offset_alignment": 256,
    "texel_offset_alignment": 256,
    "non_coherent_atom_size": 256,
    "timestamp_period_ns": 0.0,
}


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_keeps_to_the_specification(name: str) -> None:
    profile = load_profile(name)
    for limit, required in REQUIRED.items():
        value = getattr(profile.limits, limit)
        if limit in profile.floors:
            assert value == required, f"{limit} is said to be the specification's"
        elif isinstance(required, tuple):
            assert all(map(operator.ge, value, required))
        else:
            is_alignment = limit.endswith(("alignment", "atom_size"))
            assert value <= required if is_alignment else value >= required
    flags = {item.flags for item in profile.memory_types}
    assert any(item & LOCAL for item in flags)
    assert any(item & VISIBLE and item & COHERENT for item in flags)


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_names_known_features(name: str) -> None:
    from vkmnn.runtime.drivers.vulkan import tables

    known = {
        *(item for row in tables.FEATURE_STRUCTS for item in row.members.values() if item),
        *tables.CORE_FEATURES.values(),
        *tables.SUBGROUP_OPERATIONS.values(),
        *tables.SPIRV_VERSIONS,
        *(f"texel_{item}" for item in tables.TEXEL_FORMATS),
        *("timestamps", "images", "integer_dot_accelerated", "integer_dot_mixed_accelerated"),
    }
    assert load_profile(name).features <= known
    assert {item for item in CAPABILITIES.values() if item} <= known


def test_an_unknown_name() -> None:
    with pytest.raises(DeviceProfileError, match="no device profile 'rasberry-pi-4'") as caught:
        load_profile("rasberry-pi-4")
    assert "did you mean raspberry-pi-4" in str(caught.value)
    assert ", ".join(profile_names()) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"vendor_id": None}, "vendor_id"),
        ({"type": "toaster"}, "type"),
        ({"subgroup_size": 12}, "subgroup_size"),
        ({"subgroup_size": 32}, "outside its range"),
        ({"sources": []}, "sources"),
        ({"floors": ["max_wonders"]}, "max_wonders"),
        ({"memory_types": [[1, "device_local"]]}, "no heap 1"),
        ({"memory_types": [[0, "host_coherent"]]}, "neither device-local nor host-visible"),
        ({"memory_types": [[0, "shiny"]]}, "memory_types"),
        ({"cooperative_matrices": [[16, 16, 16]]}, "cooperative_matrices"),
        ({"cooperative_matrices": [[16, 16, 16, *["f16"] * 4, "subgroup", False]]}, "contradict"),
        ({"features": ["timestamps", "timestamps"]}, "twice"),
        ({"features": []}, "contradict"),
        ({"colour": "red"}, "unknown \\['colour'\\]"),
    ],
)
def test_a_damaged_file(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeviceProfileError, match=problem):
        parse_profile("damaged", document() | change)


@pytest.mark.parametrize("name", ["max_shared_memory", "max_workgroup_size"])
def test_a_damaged_limit(name: str) -> None:
    content = document()
    content["limits"][name] = -1
    with pytest.raises(DeviceProfileError, match=name):
        parse_profile("damaged", content)
    del content["limits"][name]
    with pytest.raises(DeviceProfileError, match="missing"):
        parse_profile("damaged", content)


def test_no_object() -> None:
    with pytest.raises(DeviceProfileError, match="is not an object"):
        parse_profile("damaged", [])


@pytest.fixture
def real(make_info: Callable[..., DeviceInfo]) -> DeviceInfo:
    info = make_info()
    flags = LOCAL | VISIBLE | COHERENT | MemoryFlag.HOST_CACHED
    return replace(info, memory_types=(MemoryType(3, flags, 0, 1 << 32),), memory_bytes=1 << 32)


@pytest.fixture
def profile() -> DeviceProfile:
    return load_profile("raspberry-pi-4")


def test_nothing_is_raised(real: DeviceInfo, profile: DeviceProfile) -> None:
    seen = disguised(real, profile)
    assert seen.features <= real.features & profile.features
    for name in ("max_storage_buffer_range", "max_workgroup_invocations", "max_bindings"):
        pair = getattr(real.limits, name), getattr(profile.limits, name)
        assert getattr(seen.limits, name) == min(pair)
    for name in ("storage_offset_alignment", "non_coherent_atom_size"):
        pair = getattr(real.limits, name), getattr(profile.limits, name)
        assert getattr(seen.limits, name) == max(pair)
    assert seen.memory_bytes == min(real.memory_bytes, profile.memory_bytes)
    assert (seen.type, seen.device_profile) == (DeviceType.INTEGRATED, profile.name)
    assert (seen.name, seen.uuid, seen.subgroup_size) == (real.name, real.uuid, real.subgroup_size)


@pytest.mark.parametrize(
    ("real_range", "profile_range", "seen_range"),
    [((8, 8), (16, 16), None), ((8, 32), (16, 16), (16, 16)), ((8, 32), (16, 64), (16, 32))],
)
def test_subgroup_sizes_are_those_of_both(
    real: DeviceInfo,
    profile: DeviceProfile,
    real_range: tuple[int, int],
    profile_range: tuple[int, int],
    seen_range: tuple[int, int] | None,
) -> None:
    real = replace(
        real,
        features=real.features | {"subgroup_size_control"},
        limits=replace(real.limits, subgroup_size_range=real_range),
    )
    profile = replace(profile, limits=replace(profile.limits, subgroup_size_range=profile_range))
    seen = disguised(real, profile)
    assert ("subgroup_size_control" in seen.features) == (seen_range is not None)
    own = real.subgroup_size
    assert seen.limits.subgroup_size_range == (seen_range or (own, own))


def test_memory_is_split(real: DeviceInfo, profile: DeviceProfile) -> None:
    hidden = MemoryType(0, LOCAL, 0, 1 << 20)
    shared = MemoryType(1, VISIBLE | COHERENT, 1, 1 << 21)
    seen = disguised(real, replace(profile, memory_types=(hidden, shared)))
    assert seen.memory_types == (replace(hidden, index=3), replace(shared, index=3))


def test_a_device_is_opened_in_disguise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (plain, *_) = enumerate_devices()
    monkeypatch.setattr(devices, "_devices", {})
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", "raspberry-pi-4")
    (listed, *_) = enumerate_devices()
    opened = open_device(listed.index)
    try:
        assert isinstance(opened.driver_device, CheckedDevice)
        assert opened.info == listed
        assert "emulates raspberry-pi-4" in caplog.text
        assert opened.info.type is DeviceType.INTEGRATED
        assert not opened.info.features & {"int64", "texel_r8i"}
        monkeypatch.delenv("VKMNN_DEVICE_PROFILE")
        other = open_device(plain.index)
        assert (other.info, other is opened) == (plain, False)
        other.close()
    finally:
        opened.close()


def test_heaps_have_an_end_and_hidden_memory_is_staged(
    monkeypatch: pytest.MonkeyPatch, profile: DeviceProfile
) -> None:
    hidden = MemoryType(0, LOCAL, 0, 1 << 20)
    shared = MemoryType(1, VISIBLE | COHERENT, 1, 1 << 26)
    small = replace(profile, type=DeviceType.DISCRETE, memory_types=(hidden, shared))
    monkeypatch.setattr(devices, "load_profile", lambda name: small)
    monkeypatch.setattr(devices, "_devices", {})
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", profile.name)
    opened = open_device()
    try:
        first = opened.allocate(600_000, MemoryKind.WEIGHTS)
        assert first.host is None
        data = np.arange(1000, dtype=np.float32)
        first.write(256, data)
        assert np.array_equal(first.read(256, data.nbytes).view(np.float32), data)
        with pytest.raises(OutOfDeviceMemoryError):
            opened.allocate(600_000, MemoryKind.WEIGHTS)
        first.destroy()
        with opened.allocate(600_000, MemoryKind.DEVICE) as second:
            assert second.host is None
        with opened.allocate(600_000, MemoryKind.UPLOAD) as third:
            assert third.host is not None
    finally:
        opened.close()
