"""Queries of the Vulkan loader that need no instance."""

from __future__ import annotations

from vkmnn.runtime.drivers.vulkan.api import NULL, check, enumerate_array, ffi, lib


def loader_version() -> tuple[int, int, int]:
    """Return the newest Vulkan version that the loader supports; (1, 0, 0) before 1.1."""
    version = ffi.new("uint32_t *", 1 << 22)
    if hasattr(lib, "vkEnumerateInstanceVersion"):
        check(lib.vkEnumerateInstanceVersion(version), "vkEnumerateInstanceVersion")
    return unpack_version(version[0])


def unpack_version(packed: int) -> tuple[int, int, int]:
    """Return (major, minor, patch) of a version as Vulkan packs it."""
    return packed >> 22, packed >> 12 & 0x3FF, packed & 0xFFF


def layers() -> dict[str, tuple[int, int, int]]:
    """Return the names of the installed layers, with the version of each."""
    found = enumerate_array("VkLayerProperties", lib.vkEnumerateInstanceLayerProperties)
    return {
        ffi.string(layer.layerName).decode(): unpack_version(layer.specVersion) for layer in found
    }


def instance_extensions(layer: str | None = None) -> set[str]:
    """Return the instance extensions of the loader and the drivers, or those of a layer."""
    name = NULL if layer is None else ffi.new("char[]", layer.encode())
    found = enumerate_array(
        "VkExtensionProperties", lib.vkEnumerateInstanceExtensionProperties, name
    )
    return {ffi.string(item.extensionName).decode() for item in found}
