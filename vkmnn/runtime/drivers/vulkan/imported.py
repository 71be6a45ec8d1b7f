"""Buffers on mapped files, by VK_EXT_external_memory_host, on devices that share host memory."""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING, Any

from vkmnn.base.mapped_files import MappedFile, address_of
from vkmnn.errors import DeviceError
from vkmnn.runtime.drivers.base import EMPTY_RANGE_BYTES
from vkmnn.runtime.drivers.mapped import MappedMemory
from vkmnn.runtime.drivers.vulkan.api import address, ffi, lib, struct
from vkmnn.runtime.drivers.vulkan.handles import Handles
from vkmnn.runtime.drivers.vulkan.memory import USAGE, Views, VulkanBuffer, release_memory

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.vulkan.owner import Owner

_log = logging.getLogger(__name__)

_PAGE = mmap.PAGESIZE
_VECTOR = 16
_HOST_ALLOCATION = lib.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT


def imported(device: Owner, file: MappedFile) -> VulkanBuffer | None:
    """Return a buffer over a whole file; None if the driver cannot import it."""
    try:
        return ImportedBuffer(device, file)
    except DeviceError as error:
        _log.info("the device does not read the file where it is mapped: %s", error.message)
        return None


class ImportedBuffer(VulkanBuffer):
    """A VkBuffer on the pages of a mapped file; the last page is padded with zeros."""

    __slots__ = ("_file",)

    def __init__(self, device: Owner, file: MappedFile) -> None:
        self._device = device
        self._file = file
        self.nbytes = -(-len(file) // _VECTOR) * _VECTOR
        self.empty_offset = 0
        self.host, self.coherent = None, False
        whole = -(-len(file) // _PAGE) * _PAGE
        power = self.nbytes & (self.nbytes - 1) == 0  # see VulkanBuffer
        if power and self.nbytes + _VECTOR > whole:
            raise DeviceError(
                f"a buffer of {self.nbytes} bytes would force kernels to be compiled again"
            )
        self.nbytes += _VECTOR * power
        if max(whole, EMPTY_RANGE_BYTES) > device.info.limits.max_allocation_bytes:
            raise DeviceError(f"{whole} bytes exceed the device's limit for an allocation")
        self._handles = Handles(device)
        self._owner = MappedMemory()
        # The file stays mapped until the memory is freed, even if this object is gone.
        self._finalizer = device.own(
            self._owner, "buffers", _release, self._handles, device.heap_claims, file, nbytes=0
        )
        try:
            self._import(whole)
        except BaseException:
            device.release(self._finalizer)
            raise

    def _import(self, whole: int) -> None:
        device = self._device
        memory = self._handles.cell("VkDeviceMemory")  # the first, to be freed last
        external = struct(
            "VkExternalMemoryBufferCreateInfo",
            lib.VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
            handleTypes=_HOST_ALLOCATION,
        )
        info = struct(
            "VkBufferCreateInfo",
            lib.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
            pNext=external,
            size=self.nbytes,
            usage=USAGE,
        )
        self.handle = self._handles.create("VkBuffer", info)
        self.number = address(self.handle)
        self.views = Views(self._handles, self.handle)
        requirements = ffi.new("VkMemoryRequirements *")
        lib.vkGetBufferMemoryRequirements(device.handle, self.handle, requirements)
        pointer = ffi.cast("void *", address_of(self._file))
        usable = requirements.memoryTypeBits & _memory_types(device, pointer)
        if requirements.size > whole or not usable:
            raise DeviceError("none of the device's memory types can import the file's pages")
        source = struct(
            "VkImportMemoryHostPointerInfoEXT",
            lib.VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
            handleType=_HOST_ALLOCATION,
            pHostPointer=pointer,
        )
        allocation = struct(
            "VkMemoryAllocateInfo",
            lib.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
            pNext=source,
            allocationSize=whole,
            memoryTypeIndex=(usable & -usable).bit_length() - 1,
        )
        self._memory = self._handles.create("VkDeviceMemory", allocation, memory)
        device.check(
            lib.vkBindBufferMemory(device.handle, self.handle, self._memory, 0),
            "vkBindBufferMemory",
        )


def _memory_types(device: Owner, pointer: Any) -> int:
    """Return the bits of the memory types that can import the pointer."""
    found = lib.vkGetDeviceProcAddr(device.handle, b"vkGetMemoryHostPointerPropertiesEXT")
    if not found:
        return 0
    get = ffi.cast("PFN_vkGetMemoryHostPointerPropertiesEXT", found)
    properties = struct(
        "VkMemoryHostPointerPropertiesEXT",
        lib.VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT,
    )
    result = get(device.handle, _HOST_ALLOCATION, pointer, properties)
    device.check(result, "vkGetMemoryHostPointerPropertiesEXT")
    return int(properties.memoryTypeBits)


def _release(handles: Handles, claims: dict[int, tuple[int, int]], file: MappedFile) -> None:
    """Free the memory; the file is released with the last reference to the arguments."""
    release_memory(handles, claims)
