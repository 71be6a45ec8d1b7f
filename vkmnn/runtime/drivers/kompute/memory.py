"""Buffers: one kp tensor each, bound as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.errors import OutOfDeviceMemoryError
from vkmnn.runtime.device_info import DeviceType
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.drivers.kompute.package import translated
from vkmnn.runtime.drivers.mapped import MappedMemory
from vkmnn.runtime.memory import MemoryKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vkmnn.runtime.drivers.kompute.owner import Owner

_GRANULE = 256  # kp flushes whole tensors, in units of the non-coherent atom size
_UNIFIED = (DeviceType.CPU, DeviceType.INTEGRATED)


class KomputeBuffer(DriverBuffer):
    """A tensor in host-visible memory, or one in device memory with a copy for the host.

    `mapped` is the host's view: the memory itself, or that copy. `push` copies it to the device,
    `fetch` back; both do nothing if the memory itself is mapped.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_empty",
        "_fetch",
        "_finalizer",
        "_owned",
        "_push",
        "mapped",
        "tensor",
    )

    def __init__(self, device: Owner, nbytes: int, kind: MemoryKind) -> None:
        self.nbytes = nbytes
        self.coherent = True
        self._device = device
        self._empty: Any = None
        # No bytes of this tensor: empty ranges have a separate tensor.
        self.empty_offset = max(-(-nbytes // _GRANULE), 1) * _GRANULE
        local = kind in (MemoryKind.DEVICE, MemoryKind.WEIGHTS) and not is_unified(device)
        self.tensor = _tensor(device, self.empty_offset, kind, local=local)
        owner = MappedMemory()
        owner.place(self.tensor.data().ctypes.data, nbytes)
        self.mapped: NDArray[np.uint8] | None = np.asarray(owner)
        self.host = None if local else self.mapped
        self._push: Any = None
        self._fetch: Any = None
        if local:
            kp = device.kp
            self._push = _sequence(device, kp.OpTensorSyncDevice([self.tensor]))
            self._fetch = _sequence(device, kp.OpTensorSyncLocal([self.tensor]))
        self._owned = [
            thing for thing in (self._push, self._fetch, self.tensor) if thing is not None
        ]
        self._finalizer = device.own(owner, "buffers", self._owned, nbytes=self.empty_offset)

    def bound_tensor(self, nbytes: int) -> Any:
        """Return the tensor to bind for the first `nbytes` bytes; a separate one if there are none.

        The recorder knows that empty ranges touch no bytes of the buffer; a dispatch that bound the
        buffer anyway would look like a hazard.
        """
        if nbytes:
            return self.tensor
        if self._empty is None:
            self._empty = _tensor(self._device, _GRANULE, MemoryKind.DEVICE, local=False)
            self._owned.append(self._empty)
        return self._empty

    def push(self) -> None:
        """Copy the host's writes to the device."""
        if self._push is not None:
            self._device.evaluate(self._push)

    def fetch(self) -> None:
        """Copy the device's writes to the host."""
        if self._fetch is not None:
            self._device.evaluate(self._fetch)

    def flush(self) -> None:
        pass

    def invalidate(self) -> None:
        pass

    def destroy(self) -> None:
        self.host = self.mapped = None
        self._device.release(self._finalizer)


def is_unified(device: Owner) -> bool:
    """Return whether all memory of the device is the host's."""
    return device.info.type in _UNIFIED


def _tensor(device: Owner, size: int, kind: MemoryKind, *, local: bool) -> Any:
    limits = device.info.limits
    if size > limits.max_allocation_bytes:
        raise OutOfDeviceMemoryError(
            f"a buffer of {size} bytes exceeds the device's limit of "
            f"{limits.max_allocation_bytes} bytes",
            hint="split the tensor, or run a smaller batch",
        )
    # kp ignores a failed allocation, and then works without memory.
    sizes = device.buffer_sizes()
    used, count = sum(sizes), len(sizes)
    allocations = (count + 1) * (2 if local else 1)
    if used + size > device.info.memory_bytes or allocations > limits.max_allocation_count:
        raise OutOfDeviceMemoryError(
            f"cannot allocate {size} bytes of {kind.value} memory on {device.info.name} "
            f"({used} bytes in {count} buffers are in use)",
            hint="close other programs or sessions that use the device, or run a smaller batch",
        )
    types = device.kp.TensorTypes
    try:
        return device.manager.tensor_t(
            np.zeros(size // 4, np.uint32), types.device if local else types.host
        )
    except RuntimeError as error:
        raise translated(error, f"allocating {size} bytes of {kind.value} memory") from error


def _sequence(device: Owner, operation: Any) -> Any:
    return device.manager.sequence().record(operation)
