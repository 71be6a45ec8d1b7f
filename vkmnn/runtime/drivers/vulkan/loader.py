"""What the Vulkan loader says before any instance exists."""

from __future__ import annotations

from vkmnn.runtime.drivers.vulkan.api import enumerate_array, ffi, lib


def loader_version() -> tuple[int, int, int]:
    """Return the newest Vulkan version that the loader knows; (1, 0, 0) of loaders before 1.1."""
    version = ffi.new("uint32_t *", 1 << 22)
    if hasattr(lib, "vkEnumerateInstanceVersion"):
        lib.vkEnumerateInstanceVersion(version)
    return version[0] >> 22, version[0] >> 12 & 0x3FF, version[0] & 0xFFF


def layer_names() -> list[str]:
    """Return the names of the layers that are installed."""
    layers = enumerate_array("VkLayerProperties", lib.vkEnumerateInstanceLayerProperties)
    return [ffi.string(layer.layerName).decode() for layer in layers]
