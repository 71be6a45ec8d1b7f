from __future__ import annotations

import dataclasses
import re
import struct
from typing import Any

import pytest

from vkmnn.runtime import CooperativeMatrixShape, Device
from vkmnn.runtime.device import FLOOR_FEATURES, enumerate_devices
from vkmnn.runtime.drivers import DriverUnavailableError
from vkmnn.runtime.shader import TEXEL_SIZES

try:
    from vkmnn.runtime.drivers.vulkan import features, tables
    from vkmnn.runtime.drivers.vulkan.api import ffi, lib
except DriverUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

STRUCTS = [name for name in dir(lib) if name.startswith("VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_")]


def _members(name: str) -> list[str]:
    return [member for member, _ in ffi.typeof(name).fields][2:]


def _package_struct(row: tables.FeatureStruct) -> str | None:
    """The package's structure with the same members, if it has one."""
    typedefs, _structs, _unions = ffi.list_types()
    for name in typedefs:
        if name.startswith("VkPhysicalDevice") and "Features" in name:
            kind = ffi.typeof(name)
            if kind.kind == "struct" and _members(name) == list(row.members):
                return name
    return None


@pytest.mark.parametrize("row", tables.FEATURE_STRUCTS, ids=lambda row: row.extension)
def test_feature_structures_are_those_of_the_headers(row: tables.FeatureStruct) -> None:
    name = _package_struct(row)
    if name is None:
        assert row.extension in {"VK_KHR_shader_bfloat16", "VK_KHR_shader_subgroup_rotate"}
        return
    blob = features._blob(row, [True] * len(row.members), ffi.NULL)
    assert ffi.sizeof(blob) == ffi.sizeof(name)
    data = ffi.cast(f"{name} *", blob)
    assert all(getattr(data, member) == 1 for member in row.members)
    assert data.sType == row.stype
    spelled = {key for key in STRUCTS if getattr(lib, key) == row.stype}
    words = name.removeprefix("VkPhysicalDevice").removesuffix("KHR").removesuffix("EXT")
    squeezed = {
        key.removeprefix("VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_").replace("_", "").lower()
        for key in spelled
    }
    assert any(key.startswith(words.lower()) for key in squeezed), squeezed


def test_texel_formats() -> None:
    assert set(tables.TEXEL_FORMATS) == set(TEXEL_SIZES)
    endings = {"f": "SFLOAT", "i": "SINT", "ui": "UINT", "": "UNORM", "_snorm": "SNORM"}
    for name, code in tables.TEXEL_FORMATS.items():
        match = re.fullmatch(r"(r|rg|rgba)(\d+)(f|i|ui|_snorm|)", name)
        assert match
        channels, bits, ending = match.groups()
        assert TEXEL_SIZES[name] == len(channels) * int(bits) // 8
        parts = "".join(f"{channel.upper()}{bits}" for channel in channels)
        assert getattr(lib, f"VK_FORMAT_{parts}_{endings[ending]}") == code


def test_every_device_has_the_floor(device: Device) -> None:
    for info in enumerate_devices():
        assert info.features >= FLOOR_FEATURES
        assert info.api_version >= (1, 1, 0)
        assert info.limits.max_storage_buffer_range >= 1 << 27
        assert info.limits.storage_offset_alignment <= 256
        assert info.limits.texel_offset_alignment <= 256
        assert info.subgroup_size >= 1
        assert info.memory_bytes > 0
        assert info.name
        assert len(info.uuid) == 36


def test_cooperative_matrix_shapes_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No software device has any: the driver's answer is made up here."""
    rows = [(16, 8, 16, 0, 0, 1, 1, 0, 3), (16, 16, 32, 3, 7, 5, 5, 1, 2)]

    def answer(_device: Any, count: Any, out: Any) -> int:
        count = ffi.cast("uint32_t *", count)
        if not out:
            count[0] = len(rows)
            return 0
        view = ffi.buffer(out, 56 * len(rows))
        for i, row in enumerate(rows):
            stype, _pad, following = struct.unpack_from("=iiQ", view, 56 * i)
            assert (stype, following) == (1000506001, 0)
            struct.pack_into("=9I", view, 56 * i + 16, *row)
        return 0

    function = ffi.callback("VkResult(VkPhysicalDevice, uint32_t *, void *)", answer)

    class Library:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: function) if name == "vkGetInstanceProcAddr" else getattr(lib, name)

    monkeypatch.setattr(features, "lib", Library())
    assert features._cooperative_matrices(ffi.NULL, ffi.NULL) == (
        CooperativeMatrixShape(16, 8, 16, "f16", "f16", "f32", "f32", "subgroup", False),
        CooperativeMatrixShape(16, 16, 32, "i8", "u8", "i32", "i32", "workgroup", True),
    )


@pytest.mark.parametrize(
    ("vendor", "raw", "text"),
    [
        (0x10DE, 550 << 22 | 54 << 14 | 15 << 6, "550.54.15.0"),
        (0x1002, 2 << 22 | 0 << 12 | 279, "2.0.279"),
    ],
)
def test_driver_versions(vendor: int, raw: int, text: str) -> None:
    assert features._driver_version(vendor, raw) == text


def test_an_old_device_gets_extensions_for_what_is_not_core(device: Device) -> None:
    """The extensions and features with which a Vulkan 1.1 device would be opened."""
    base = device.info
    info = dataclasses.replace(
        base,
        api_version=(1, 1, 0),
        features=frozenset({"storage16", "storage8", "float16", "spirv_1_4", "int16"}),
    )
    extensions = frozenset(
        {
            "VK_KHR_8bit_storage",
            "VK_KHR_shader_float16_int8",
            "VK_KHR_spirv_1_4",
            "VK_KHR_portability_subset",
            "VK_EXT_shader_atomic_float",
        }
    )
    physical = features.PhysicalDevice(ffi.NULL, info, extensions, 0, 64)
    chain = physical.enable(frozenset({"float16"}))
    assert sorted(chain.extensions) == [
        "VK_KHR_8bit_storage",
        "VK_KHR_portability_subset",
        "VK_KHR_shader_float_controls",
        "VK_KHR_spirv_1_4",
    ]
    stypes = []
    pointer = chain.head.pNext
    while pointer:
        item = ffi.cast("VkPhysicalDeviceFeatures2 *", pointer)
        stypes.append(item.sType)
        pointer = item.pNext
    assert sorted(stypes) == [1000083000, 1000177000]
    assert chain.head.features.shaderInt16 == 1
    assert chain.head.features.shaderInt64 == 0
