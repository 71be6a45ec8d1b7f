"""Tensors that stay on a device between runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from vkmnn.base.closing import OneProcess
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, DType

_DL_CPU = (1, 0)
_DL_VULKAN = 7


class Storage(ABC):
    """The memory of a DeviceTensor; `device` names the device it is on."""

    device: str

    @abstractmethod
    def view(self) -> Array | None:
        """Return the elements without a copy, or None if the host cannot read them directly."""

    @abstractmethod
    def read(self) -> Array:
        """Return a copy of the elements."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Copy in the elements of an array of the same shape and type."""

    def integer(self) -> int:
        """Return the first element, an integer."""
        return int(self.read().reshape(-1)[0])

    def reader(self) -> Callable[[], int]:
        """Return a faster `integer`, for frequent callers that keep the memory alive."""
        return self.integer

    def write_rows(self, other: Storage, axis: int, count: int) -> bool:
        """Copy the first `count` rows along an axis on the device; False if that is impossible.

        The two differ only in the size of that axis.
        """
        return False

    def write_from(self, other: Storage) -> bool:
        """Copy the elements of another storage on the device; False if that is impossible."""
        return False

    def part(self, first: int, count: int) -> Storage | None:
        """Return the same memory starting at an index of the first axis; None if impossible."""
        return None


class HostStorage(Storage):
    """An array, for backends that compute on the host."""

    device = "CPU"

    def __init__(self, array: Array) -> None:
        self._array = array

    def view(self) -> Array:
        """Return the array itself."""
        return self._array

    def read(self) -> Array:
        """Return a copy."""
        return np.array(self._array)

    def write(self, array: Array) -> None:
        """Copy the elements."""
        np.copyto(self._array, array)


class DeviceTensor(OneProcess):
    """A tensor in device memory: runs read and write it, the host reads it on request.

    Sessions create them: `InferenceSession.tensor`, `upload`, `run_on_device` and `bind`. A tensor
    outlives the session that created it, and can be passed to other sessions; those on other
    devices copy it. During a run, its inputs must not be written and its outputs not read.
    """

    __slots__ = ("__weakref__", "_dtype", "_shape", "storage")

    def __init__(self, shape: tuple[int, ...], dtype: DType, storage: Storage) -> None:
        self._shape = shape
        self._dtype = dtype
        self.storage = storage

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of its elements, as numpy has it."""
        return self._dtype.numpy

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self._shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes as a numpy array; a device may store them wider."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> str:
        """The name of the device that holds it."""
        return self.storage.device

    @property
    def is_mapped(self) -> bool:
        """Whether `numpy` is a view: the host can read the memory, in the array's format.

        Devices store elements in 32 bits; float32 and int32 are stored unchanged.
        """
        return self.storage.view() is not None

    def numpy(self) -> Array:
        """Return the elements: a view of the device's memory if `is_mapped`, else a copy.

        A view may also be written, and keeps the memory alive.

        Raises:
            DeviceLostError: the device has been lost.
            InvalidInputError: the device has been closed.
        """
        view = self.storage.view()
        return self.storage.read() if view is None else view

    def copy_from(self, source: Array | DeviceTensor) -> None:
        """Copy in the elements of an array or tensor of the same shape and type.

        Copies between tensors on the same device do not go through the host.

        Raises:
            InvalidInputError: not an array or tensor, or of another shape or element type.
            IntegerRangeError: an integer does not fit in the 32 bits of the device.
        """
        if not isinstance(source, np.ndarray | np.generic | DeviceTensor):
            raise InvalidInputError(
                f"a tensor cannot take a {type(source).__name__}", hint="pass numpy.asarray of it"
            )
        if source.shape != self.shape or source.dtype != self.dtype:
            raise InvalidInputError(
                f"a tensor of {self.dtype} {list(self.shape)} cannot take {source.dtype} "
                f"{list(source.shape)}",
                hint="shape and element type must match",
            )
        if not isinstance(source, DeviceTensor):
            self.storage.write(source)
        elif not self.storage.write_from(source.storage):
            self.storage.write(source.numpy())

    def copy_rows_from(self, source: DeviceTensor, axis: int, count: int) -> None:
        """Copy the first `count` rows of a tensor that differs in size along `axis` only."""
        if not self.storage.write_rows(source.storage, axis, count):
            rows = (*[slice(None)] * axis, slice(count))
            array = self.numpy()
            array[rows] = source.numpy()[rows]
            self.storage.write(array)

    def images(self, first: int, count: int) -> DeviceTensor | None:
        """Return `count` entries of the first axis in the same memory; None if impossible."""
        storage = self.storage.part(first, count)
        shape = (count, *self._shape[1:])
        return None if storage is None else DeviceTensor(shape, self._dtype, storage)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the elements for numpy.

        Raises:
            ValueError: `copy` is False, but only a copy is possible.
        """
        view = self.storage.view()
        same = dtype is None or self.dtype == dtype
        if copy is False and (view is None or not same):
            raise ValueError("the elements of this DeviceTensor cannot be accessed without a copy")
        array = self.storage.read() if view is None or (copy and same) else view
        return array if same else array.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the location of the memory: (1, 0), the host's, if `is_mapped`; else Vulkan's."""
        return _DL_CPU if self.is_mapped else (_DL_VULKAN, 0)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the memory as a DLPack capsule; it keeps the memory alive.

        Raises:
            BufferError: the host cannot see the memory, and a copy on the host was not requested.
        """
        view = self.storage.view()
        host = dl_device is not None and tuple(dl_device) == _DL_CPU
        if (view is None and (not host or copy is False)) or (dl_device is not None and not host):
            raise BufferError(
                f"the memory of this DeviceTensor, on {self.device}, cannot be exported; "
                "export .numpy(), which is a copy"
            )
        array: Any = self.storage.read() if view is None or copy else view
        try:
            return array.__dlpack__(stream=stream, max_version=max_version)
        except TypeError:  # numpy before 2.1
            return array.__dlpack__(stream=stream)

    def __repr__(self) -> str:
        """Return type, shape and device."""
        return f"<vkmnn.DeviceTensor {self.dtype} {list(self.shape)} on {self.device}>"


def as_array(value: Any) -> Any:
    """Return the elements of a DeviceTensor; anything else unchanged."""
    return value.numpy() if isinstance(value, DeviceTensor) else value
