"""Buffers: one VkBuffer with its own memory each, mapped for good where the host can see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.errors import DeviceError, OutOfDeviceMemoryError
from vkmnn.runtime.device_info import DeviceType
from vkmnn.runtime.drivers.base import EMPTY_RANGE_BYTES, DriverBuffer
from vkmnn.runtime.drivers.mapped import MappedMemory, prefer_large_pages
from vkmnn.runtime.drivers.vulkan.api import NULL, address, check, ffi, lib, struct
from vkmnn.runtime.drivers.vulkan.tables import TEXEL_FORMATS
from vkmnn.runtime.memory import MemoryKind

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.vulkan.device import VulkanDevice

LOCAL, VISIBLE, COHERENT, CACHED = 1, 2, 4, 8  # VK_MEMORY_PROPERTY_*

_USAGE = (
    0x1 | 0x2 | 0x8 | 0x20
)  # TRANSFER_SRC | TRANSFER_DST | STORAGE_TEXEL_BUFFER | STORAGE_BUFFER
_GRANULE = 256  # no device asks for a larger alignment of ranges

# Memory types in order of preference, each as (flags that must be set, flags that must not be).
_LOCAL_ONLY = ((LOCAL, VISIBLE), (LOCAL, 0))
_LOCAL_MAPPED = ((LOCAL | VISIBLE | COHERENT, 0), (LOCAL | VISIBLE, 0), (LOCAL, 0))
_UPLOAD = ((LOCAL | VISIBLE | COHERENT, 0), (VISIBLE | COHERENT, CACHED), (VISIBLE | COHERENT, 0))
_READBACK = (
    (VISIBLE | COHERENT | CACHED, 0),
    (VISIBLE | CACHED, 0),
    (VISIBLE | COHERENT, 0),
)
_PREFERENCES = {
    MemoryKind.DEVICE: _LOCAL_ONLY,
    MemoryKind.WEIGHTS: _LOCAL_ONLY,
    MemoryKind.UPLOAD: _UPLOAD,
    MemoryKind.READBACK: _READBACK,
}
_PREFERENCES_UNIFIED = _PREFERENCES | {
    MemoryKind.DEVICE: _LOCAL_MAPPED,
    MemoryKind.WEIGHTS: _LOCAL_MAPPED,
}
_UNIFIED = (DeviceType.CPU, DeviceType.INTEGRATED)


class VulkanBuffer(DriverBuffer):
    """A VkBuffer, its memory, its host mapping and its texel views.

    Its size is never a power of two, thanks to the bytes for empty ranges: Mesa's software driver
    compiles a kernel again whenever the size of a bound texel buffer changes from or to one.
    """

    __slots__ = ("__weakref__", "_device", "_finalizer", "_memory", "_views", "handle", "number")

    def __init__(self, device: VulkanDevice, nbytes: int, kind: MemoryKind) -> None:
        self.nbytes = nbytes
        self._device = device
        self.empty_offset = max(-(-nbytes // _GRANULE), 1) * _GRANULE
        size = self.empty_offset + EMPTY_RANGE_BYTES
        limit = device.info.limits.max_allocation_bytes
        if size > limit:
            raise OutOfDeviceMemoryError(
                f"a buffer of {size} bytes exceeds the device's limit of {limit} bytes",
                hint="split the tensor, or run a smaller batch",
            )
        self.handle, requirements = _create_buffer(device.handle, size)
        try:
            self._memory, flags = self._allocate(requirements, kind)
        except OutOfDeviceMemoryError:
            lib.vkDestroyBuffer(device.handle, self.handle, NULL)
            raise
        self.number = address(self.handle)
        self.coherent = bool(flags & COHERENT)
        self._views: dict[tuple[int, int, str], Any] = {}
        self.host = None
        owner: object = self
        try:
            if flags & VISIBLE:
                # Views may outlive the buffer object: the memory belongs to what they refer to.
                pointer = _map(device.handle, self._memory, requirements.size)
                if device.info.type is DeviceType.CPU:
                    prefer_large_pages(pointer, nbytes)
                owner = MappedMemory(pointer, nbytes)
                self.host = np.asarray(owner)
            check(
                lib.vkBindBufferMemory(device.handle, self.handle, self._memory, 0),
                "vkBindBufferMemory",
            )
        except DeviceError:
            _release(device.handle, self.handle, self._memory, {})
            raise
        self._finalizer = device.own(
            owner,
            "buffers",
            _release,
            device.handle,
            self.handle,
            self._memory,
            self._views,
            nbytes=requirements.size,
        )

    def _allocate(self, requirements: Any, kind: MemoryKind) -> tuple[Any, int]:
        table = _PREFERENCES_UNIFIED if self._device.info.type in _UNIFIED else _PREFERENCES
        out = ffi.new("VkDeviceMemory *")
        result, tried = 0, set()
        for wanted, avoided in table[kind]:
            for index, (flags, heap_size) in enumerate(self._device.memory_types):
                if (
                    index in tried
                    or not requirements.memoryTypeBits >> index & 1
                    or flags & wanted != wanted
                    or flags & avoided
                    or requirements.size > heap_size
                ):
                    continue
                tried.add(index)
                info = struct(
                    "VkMemoryAllocateInfo",
                    lib.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                    allocationSize=requirements.size,
                    memoryTypeIndex=index,
                )
                result = lib.vkAllocateMemory(self._device.handle, info, NULL, out)
                if result >= 0:
                    return out[0], flags
        live = self._device.live_objects()
        raise OutOfDeviceMemoryError(
            f"cannot allocate {requirements.size} bytes of {kind.value} memory on "
            f"{self._device.info.name} (VkResult {result}; {live.get('bytes', 0)} bytes in "
            f"{live.get('buffers', 0)} buffers are in use)",
            hint="close other programs or sessions that use the device, or run a smaller batch",
        )

    def view(self, offset: int, nbytes: int, texel_format: str) -> int:
        """Return the VkBufferView of a range as an integer, made on first use."""
        key = (offset, nbytes, texel_format)
        view = self._views.get(key)
        if view is None:
            info = struct(
                "VkBufferViewCreateInfo",
                lib.VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO,
                buffer=self.handle,
                format=TEXEL_FORMATS[texel_format],
                offset=offset,
                range=nbytes,
            )
            out = ffi.new("VkBufferView *")
            check(
                lib.vkCreateBufferView(self._device.handle, info, NULL, out), "vkCreateBufferView"
            )
            # Two threads may get here at once: the second's view must not be lost.
            view = self._views.setdefault(key, out[0])
            if view != out[0]:
                lib.vkDestroyBufferView(self._device.handle, out[0], NULL)
        return address(view)

    def flush(self) -> None:
        if not self.coherent:
            check(
                lib.vkFlushMappedMemoryRanges(self._device.handle, 1, self._range()),
                "vkFlushMappedMemoryRanges",
            )

    def invalidate(self) -> None:
        if not self.coherent:
            check(
                lib.vkInvalidateMappedMemoryRanges(self._device.handle, 1, self._range()),
                "vkInvalidateMappedMemoryRanges",
            )

    def _range(self) -> Any:
        whole_size = 0xFFFF_FFFF_FFFF_FFFF
        return struct(
            "VkMappedMemoryRange",
            lib.VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE,
            memory=self._memory,
            size=whole_size,
        )

    def destroy(self) -> None:
        self.host = None
        self._device.release(self._finalizer)


def _create_buffer(device: Any, size: int) -> tuple[Any, Any]:
    info = struct(
        "VkBufferCreateInfo", lib.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, size=size, usage=_USAGE
    )
    out = ffi.new("VkBuffer *")
    check(lib.vkCreateBuffer(device, info, NULL, out), "vkCreateBuffer")
    requirements = ffi.new("VkMemoryRequirements *")
    lib.vkGetBufferMemoryRequirements(device, out[0], requirements)
    return out[0], requirements


def _map(device: Any, memory: Any, size: int) -> int:
    pointer = ffi.new("void **")
    check(lib.vkMapMemory(device, memory, 0, size, 0, pointer), "vkMapMemory")
    return address(pointer[0])


def _release(device: Any, buffer: Any, memory: Any, views: dict[tuple[int, int, str], Any]) -> None:
    for view in views.values():
        lib.vkDestroyBufferView(device, view, NULL)
    views.clear()
    lib.vkDestroyBuffer(device, buffer, NULL)
    lib.vkFreeMemory(device, memory, NULL)
