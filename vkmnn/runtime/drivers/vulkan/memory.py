"""Buffers: VkBuffers with their own memory, permanently mapped if host-visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.errors import OutOfDeviceMemoryError
from vkmnn.runtime.device_info import DeviceType
from vkmnn.runtime.drivers.base import EMPTY_RANGE_BYTES
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.drivers.mapped import MappedMemory, prefer_large_pages
from vkmnn.runtime.drivers.vulkan.api import address, ffi, lib, struct
from vkmnn.runtime.drivers.vulkan.handles import Handles
from vkmnn.runtime.drivers.vulkan.tables import TEXEL_FORMATS
from vkmnn.runtime.memory import MemoryKind

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.vulkan.owner import Owner

LOCAL, VISIBLE, COHERENT, CACHED = 1, 2, 4, 8  # VK_MEMORY_PROPERTY_*

USAGE = (
    0x1 | 0x2 | 0x8 | 0x20
)  # TRANSFER_SRC | TRANSFER_DST | STORAGE_TEXEL_BUFFER | STORAGE_BUFFER
_GRANULE = 256  # no device asks for a larger alignment of ranges

# Memory types in order of preference, as (flags that must be set, flags that must not be).
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


class Views(dict[tuple[int, int, str], int]):
    """Texel views of a buffer by offset, size and format, as integers; created on first use.

    Args:
        handles: the handles with which they are freed.
        buffer: the buffer that they show.
    """

    def __init__(self, handles: Handles, buffer: Any) -> None:
        super().__init__()
        self._handles = handles
        self._buffer = buffer

    def __missing__(self, key: tuple[int, int, str]) -> int:
        offset, nbytes, texel_format = key
        info = struct(
            "VkBufferViewCreateInfo",
            lib.VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO,
            buffer=self._buffer,
            format=TEXEL_FORMATS[texel_format],
            offset=offset,
            range=nbytes,
        )
        # Two threads may get here at once: the second's view waits for the buffer's end.
        return self.setdefault(key, address(self._handles.create("VkBufferView", info)))


class VulkanBuffer(DriverBuffer):
    """A VkBuffer, its memory, its host mapping and its texel views.

    Its size is never a power of two, due to the bytes for empty ranges: Mesa's software driver
    recompiles a kernel whenever the size of a bound texel buffer changes from or to one.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_finalizer",
        "_handles",
        "_memory",
        "_owner",
        "handle",
        "number",
        "views",
    )

    def __init__(self, device: Owner, nbytes: int, kind: MemoryKind) -> None:
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
        self._handles = Handles(device)
        self.host = None
        # Views may outlive the buffer object: the memory belongs to the object that they refer to.
        self._owner = MappedMemory()
        self._finalizer = device.own(
            self._owner, "buffers", release_memory, self._handles, device.heap_claims, nbytes=size
        )
        try:
            self._make(size, kind)
        except BaseException:
            device.release(self._finalizer)
            raise

    def _make(self, size: int, kind: MemoryKind) -> None:
        device = self._device
        memory = self._handles.cell("VkDeviceMemory")  # the first, to be freed last
        self.handle = _create_buffer(self._handles, size)
        self.number = address(self.handle)
        self.views = Views(self._handles, self.handle)
        requirements = ffi.new("VkMemoryRequirements *")
        lib.vkGetBufferMemoryRequirements(device.handle, self.handle, requirements)
        self._memory, flags = allocate_memory(device, self._handles, requirements, kind, memory)
        self.coherent = bool(flags & COHERENT)
        if flags & VISIBLE:
            pointer = self._map(requirements.size)
            if device.info.type is DeviceType.CPU:
                prefer_large_pages(pointer, self.nbytes)
            self._owner.place(pointer, self.nbytes)
            self.host = np.asarray(self._owner)
        device.check(
            lib.vkBindBufferMemory(device.handle, self.handle, self._memory, 0),
            "vkBindBufferMemory",
        )

    def _map(self, size: int) -> int:
        pointer = ffi.new("void **")
        self._device.check(
            lib.vkMapMemory(self._device.handle, self._memory, 0, size, 0, pointer), "vkMapMemory"
        )
        return address(pointer[0])

    def flush(self) -> None:
        if not self.coherent:
            self._device.check(
                lib.vkFlushMappedMemoryRanges(self._device.handle, 1, self._range()),
                "vkFlushMappedMemoryRanges",
            )

    def invalidate(self) -> None:
        if not self.coherent:
            self._device.check(
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


def _create_buffer(handles: Handles, size: int) -> Any:
    info = struct(
        "VkBufferCreateInfo", lib.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, size=size, usage=USAGE
    )
    return handles.create("VkBuffer", info)


def allocate_memory(
    device: Owner,
    handles: Handles,
    requirements: Any,
    kind: MemoryKind,
    cell: Any,
    *,
    linear: bool = True,
) -> tuple[Any, int]:
    """Return memory of the most preferred available type, and the flags of that type.

    Args:
        device: where.
        handles: the handles with which the memory is freed.
        requirements: VkMemoryRequirements of the resource.
        kind: the purpose of the memory.
        cell: where Vulkan writes the handle, one of `handles`.
        linear: it is for a buffer; images need not be visible to the host.

    Raises:
        OutOfDeviceMemoryError: there is no memory left.
    """
    unified = device.info.type in _UNIFIED and linear
    table = _PREFERENCES_UNIFIED if unified else _PREFERENCES
    result, tried = 0, set()
    free = _free_bytes(device)
    for wanted, avoided in table[kind]:
        for position, item in enumerate(device.info.memory_types):
            if (
                position in tried
                or not requirements.memoryTypeBits >> item.index & 1
                or item.flags & wanted != wanted
                or item.flags & avoided
                or requirements.size > free[item.heap]
            ):
                continue
            tried.add(position)
            info = struct(
                "VkMemoryAllocateInfo",
                lib.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                allocationSize=requirements.size,
                memoryTypeIndex=item.index,
            )
            try:
                memory = handles.create("VkDeviceMemory", info, cell)
            except OutOfDeviceMemoryError as error:
                result = error.vk_result or result
            else:
                device.heap_claims[id(handles)] = item.heap, requirements.size
                return memory, item.flags
    live = device.live_objects()
    raise OutOfDeviceMemoryError(
        f"cannot allocate {requirements.size} bytes of {kind.value} memory on "
        f"{device.info.name} (VkResult {result}; {live.get('bytes', 0)} bytes in "
        f"{live.get('buffers', 0)} buffers are in use)",
        hint="close other programs or sessions that use the device, or run a smaller batch",
    )


def _free_bytes(device: Owner) -> dict[int, int]:
    """Return how many bytes may be requested from each heap."""
    info = device.info
    free = {item.heap: item.heap_bytes for item in info.memory_types}
    if info.device_profile:  # otherwise the driver knows better what is left in a heap
        for heap, nbytes in list(device.heap_claims.values()):
            free[heap] -= nbytes
    return free


def release_memory(handles: Handles, claims: dict[int, tuple[int, int]]) -> None:
    """Free objects and their memory."""
    handles.destroy()
    claims.pop(id(handles), None)
