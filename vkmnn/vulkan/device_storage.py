"""Memory of DeviceTensors: one buffer each, in plain order, 32 bits per element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from vkmnn.core.device_tensor import DeviceTensor, Storage
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, DType, TensorInfo
from vkmnn.runtime.device import Device
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.vulkan.storage import read_view, storage_bytes, storage_dtype, to_storage, write_view

# Types of 32 bits whose elements are visible without conversion.
_AS_THEY_ARE = (DType.FLOAT32, DType.INT32)


class VulkanStorage(Storage):
    """A buffer of a device.

    Args:
        device: the owner, named in messages.
        place: the bytes.
        info: shape and element type.
    """

    def __init__(self, device: Device, place: BufferRange, info: TensorInfo) -> None:
        self.vulkan = device
        self.device = device.info.name
        self.place = place
        self._info = info

    def view(self) -> Array | None:
        """Return the mapped elements; see `Storage`."""
        return self._stored() if self._info.dtype in _AS_THEY_ARE else None

    def read(self) -> Array:
        """Return a copy; see `Storage`."""
        self.vulkan.counts["host_copies"] += 1
        stored = self._stored()
        if stored is None:
            raw = self.place.buffer.read(self.place.offset, self._nbytes)
            stored = raw.view(self._word).reshape(self._info.dims)
        return read_view(stored, self._info.dtype)

    def integer(self) -> int:
        """Return the first element; see `Storage`."""
        self.vulkan.raise_unusable()
        self.vulkan.counts["host_copies"] += 1
        return self.place.buffer.word(self.place.offset)

    def reader(self) -> Callable[[], int]:
        """Return a reader of the first element; see `Storage`."""
        self.vulkan.raise_unusable()
        counts, read, offset = self.vulkan.counts, self.place.buffer.word, self.place.offset

        def first() -> int:
            counts["host_copies"] += 1
            return read(offset)

        return first

    def write(self, array: Array) -> None:
        """Take elements; see `Storage`."""
        self.vulkan.counts["host_copies"] += 1
        stored = self._stored()
        if stored is not None:
            write_view(stored, array, self._info.name)
        elif array.size:
            words = np.ascontiguousarray(to_storage(array, self._info.name))
            self.place.buffer.write(self.place.offset, words)

    def write_from(self, other: Storage) -> bool:
        """Copy on the device; see `Storage`."""
        if not isinstance(other, VulkanStorage) or other.vulkan is not self.vulkan:
            return False
        target, source = self._stored(), other._stored()
        if target is not None and source is not None:
            np.copyto(target, source)
        elif self._nbytes:
            self.vulkan.copy(other.place, self.place)
        return True

    def write_rows(self, other: Storage, axis: int, count: int) -> bool:
        """Copy rows on the device; see `Storage`."""
        if not isinstance(other, VulkanStorage) or other.vulkan is not self.vulkan:
            return False
        target, source = self._stored(), other._stored()
        if target is not None and source is not None:
            rows = (*[slice(None)] * axis, slice(count))
            np.copyto(target[rows], source[rows])
            return True
        dims, theirs = self._info.dims, other._info.dims
        row = prod(dims[axis + 1 :]) * self._word.itemsize
        source_at, target_at = other.place.offset, self.place.offset
        with self.vulkan.gate.visit():
            self.vulkan.copy_all(
                (
                    BufferRange(
                        other.place.buffer, source_at + n * theirs[axis] * row, count * row
                    ),
                    BufferRange(self.place.buffer, target_at + n * dims[axis] * row, count * row),
                )
                for n in range(prod(dims[:axis]) if count * row else 0)
            )
        return True

    def part(self, first: int, count: int) -> Storage | None:
        """Return the same memory from an index of the first axis on; see `Storage`.

        Kernels bind it only if it begins at an offset that the device allows.
        """
        dims = self._info.dims
        each = prod(dims[1:]) * self._word.itemsize
        start = self.place.offset + first * each
        limits = self.vulkan.info.limits
        alignment = max(limits.storage_offset_alignment, limits.texel_offset_alignment)
        if start % alignment or (start and limits.whole_buffers):
            return None
        info = replace(self._info, shape=(count, *dims[1:]))
        return VulkanStorage(self.vulkan, BufferRange(self.place.buffer, start, count * each), info)

    @property
    def _word(self) -> np.dtype[np.generic]:
        return storage_dtype(self._info.dtype)

    @property
    def _nbytes(self) -> int:
        return int(np.prod(self._info.dims, dtype=np.int64)) * self._word.itemsize

    def _stored(self) -> Array | None:
        """Return the elements as stored on the device, if the host can see them."""
        self.vulkan.raise_unusable()
        host = self.place.buffer.coherent_host
        if host is None:
            return None
        raw = host[self.place.offset : self.place.offset + self._nbytes]
        view: Array = raw.view(self._word).reshape(self._info.dims)
        return view


def new_tensor(
    device: Device, shape: tuple[int, ...], dtype: DType, kind: MemoryKind = MemoryKind.DEVICE
) -> DeviceTensor:
    """Return a tensor of zeros with its own memory.

    Raises:
        OutOfDeviceMemoryError: there is not enough memory.
    """
    info = TensorInfo("tensor", dtype, shape)
    nbytes = storage_bytes(Tensor(info))
    place = BufferRange(device.allocate(nbytes, kind), 0, nbytes)
    place.buffer.write(0, np.zeros(nbytes, np.uint8))
    return DeviceTensor(shape, dtype, VulkanStorage(device, place, info))


def place_on(device: Device, tensor: DeviceTensor) -> BufferRange | None:
    """Return the bytes of a tensor of this device; None for a tensor of another."""
    storage = tensor.storage
    if isinstance(storage, VulkanStorage) and storage.vulkan is device:
        return storage.place
    return None
