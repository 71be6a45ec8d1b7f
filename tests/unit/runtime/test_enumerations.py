"""Vulkan's enumerations stay alive as long as they are used."""

from __future__ import annotations

from typing import Any

from vkmnn.runtime.drivers.vulkan.api import enumerate_array, ffi, lib

COUNT = 64


def extensions(count: Any, array: Any) -> int:
    count[0] = COUNT
    for index in range(COUNT if array else 0):
        array[index].extensionName = f"VK_EXT_number_{index}".encode()
        array[index].specVersion = index
    return 0


def handles(count: Any, array: Any) -> int:
    count[0] = 3
    for index in range(3 if array else 0):
        array[index] = ffi.cast("VkPhysicalDevice", 16 * (index + 1))
    return 0


def test_structures_outlive_the_array_that_they_were_in() -> None:
    found = enumerate_array("VkExtensionProperties", extensions)
    size = COUNT * ffi.sizeof("VkExtensionProperties")
    taken = [b"\xff" * (size - shorter) for shorter in range(0, 200, 8) for _ in range(8)]
    assert [ffi.string(one.extensionName) for one in found] == [
        b"VK_EXT_number_%d" % index for index in range(COUNT)
    ]
    assert [one.specVersion for one in found] == list(range(COUNT))
    assert len(taken) == 200


def test_handles_are_values() -> None:
    found = enumerate_array("VkPhysicalDevice", handles)
    assert [int(ffi.cast("uintptr_t", one)) for one in found] == [16, 32, 48]


def test_an_array_that_has_grown_is_asked_for_again() -> None:
    results = [lib.VK_SUCCESS, lib.VK_INCOMPLETE, lib.VK_SUCCESS, lib.VK_SUCCESS]

    def growing(count: Any, array: Any) -> int:
        handles(count, array)
        return int(results.pop(0))

    assert len(enumerate_array("VkPhysicalDevice", growing)) == 3
    assert results == []
