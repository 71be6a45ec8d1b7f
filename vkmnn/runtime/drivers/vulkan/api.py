"""Raw access to Vulkan: the cffi library of the package `vulkan`, and typed results.

The package's own functions convert every argument (20 us per recorded dispatch); the raw ones do
not (2 us). Only functions of Vulkan 1.0 and 1.1 are used from `lib`; later ones are loaded with
`vkGetDeviceProcAddr` after a check.
"""

from __future__ import annotations

import sys
from typing import Any

from vkmnn.errors import DeviceError, DeviceLostError, OutOfDeviceMemoryError
from vkmnn.runtime.drivers.base import DriverUnavailableError
from vkmnn.runtime.drivers.vulkan.package import loaders, raw_vulkan

_LOADER_HINTS = {
    "linux": "install the Vulkan loader and a driver (Debian, Ubuntu: `apt install libvulkan1 "
    "mesa-vulkan-drivers`; Fedora: `dnf install vulkan-loader mesa-vulkan-drivers`)",
    "win32": "install the GPU vendor's driver; it brings vulkan-1.dll",
    "darwin": "`brew install vulkan-loader molten-vk`, or install the Vulkan SDK and set "
    "VULKAN_SDK",
}
LOADER_HINT = _LOADER_HINTS.get(sys.platform, _LOADER_HINTS["linux"])

try:
    ffi, lib = raw_vulkan()
except ImportError as error:
    raise DriverUnavailableError(
        f"the Python package 'vulkan' cannot be imported: {error}", "pip install vulkan"
    ) from error
except OSError as error:
    # The package's own message asks for the SDK, which is not needed.
    raise DriverUnavailableError(
        f"no Vulkan loader: cannot load {loaders()[0]}", LOADER_HINT
    ) from error

NULL = ffi.NULL

__all__ = [
    "LOADER_HINT",
    "NULL",
    "address",
    "check",
    "enumerate_array",
    "ffi",
    "lib",
    "names",
    "result_error",
    "struct",
]

_RESULTS = {
    -1: ("VK_ERROR_OUT_OF_HOST_MEMORY", OutOfDeviceMemoryError),
    -2: ("VK_ERROR_OUT_OF_DEVICE_MEMORY", OutOfDeviceMemoryError),
    -3: ("VK_ERROR_INITIALIZATION_FAILED", DeviceError),
    -4: ("VK_ERROR_DEVICE_LOST", DeviceLostError),
    -5: ("VK_ERROR_MEMORY_MAP_FAILED", OutOfDeviceMemoryError),
    -6: ("VK_ERROR_LAYER_NOT_PRESENT", DeviceError),
    -7: ("VK_ERROR_EXTENSION_NOT_PRESENT", DeviceError),
    -8: ("VK_ERROR_FEATURE_NOT_PRESENT", DeviceError),
    -9: ("VK_ERROR_INCOMPATIBLE_DRIVER", DeviceError),
    -10: ("VK_ERROR_TOO_MANY_OBJECTS", OutOfDeviceMemoryError),
    -11: ("VK_ERROR_FORMAT_NOT_SUPPORTED", DeviceError),
    -12: ("VK_ERROR_FRAGMENTED_POOL", OutOfDeviceMemoryError),
    -13: ("VK_ERROR_UNKNOWN", DeviceError),
    -1000011001: ("VK_ERROR_VALIDATION_FAILED_EXT", DeviceError),
    -1000012000: ("VK_ERROR_INVALID_SHADER_NV", DeviceError),
    -1000069000: ("VK_ERROR_OUT_OF_POOL_MEMORY", OutOfDeviceMemoryError),
    -1000161000: ("VK_ERROR_FRAGMENTATION", OutOfDeviceMemoryError),
    -1000174001: ("VK_ERROR_NOT_PERMITTED_KHR", DeviceError),
}
_RESULT_HINTS: dict[type[DeviceError], str] = {
    OutOfDeviceMemoryError: "close other programs that use the device, or run a smaller batch",
    DeviceLostError: "the driver reset the device: open it again and rebuild the session, "
    'which sessions made with on_device_lost="rebuild" do by themselves',
}


def result_error(result: int, call: str) -> DeviceError:
    """Create the typed error of a negative VkResult."""
    name, kind = _RESULTS.get(result, (f"VkResult {result}", DeviceError))
    error = kind(f"{call} failed: {name}", hint=_RESULT_HINTS.get(kind))
    error.vk_result = result
    return error


def check(result: int, call: str) -> None:
    """Raise the typed error of an error code; success codes pass."""
    if result < 0:
        raise result_error(result, call)


def address(handle: Any) -> int:
    """Return a handle as the integer stored in Vulkan structures."""
    return int(ffi.cast("uintptr_t", handle))


def struct(name: str, stype: int, **members: Any) -> Any:
    """Allocate a Vulkan structure, zeroed except for `sType` and `members`.

    Pointers stored in it do not keep their targets alive; the caller has to.
    """
    return ffi.new(f"{name} *", {"sType": stype, **members})


def names(items: list[str]) -> tuple[Any, Any]:
    """Return an array of C strings and the objects that keep them alive."""
    keep = [ffi.new("char[]", item.encode()) for item in items]
    return ffi.new("char *[]", keep), keep


def enumerate_array(ctype: str, call: Any, *args: Any) -> list[Any]:
    """Run a Vulkan call of the form (..., count, array) and return the elements.

    Structures are copied: as elements they would be views, which do not keep the array alive.
    """
    count = ffi.new("uint32_t *")
    is_struct = ffi.typeof(ctype).kind == "struct"
    while True:
        _check_enumeration(call(*args, count, NULL))
        array = ffi.new(f"{ctype}[]", count[0])
        result = call(*args, count, array)
        if result != lib.VK_INCOMPLETE:
            _check_enumeration(result)
            elements = (array[i] for i in range(count[0]))
            return [ffi.new(f"{ctype} *", one)[0] if is_struct else one for one in elements]


def _check_enumeration(result: int | None) -> None:
    if result is not None:
        check(result, "a Vulkan enumeration")
