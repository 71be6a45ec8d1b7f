"""Buffers, and byte ranges of buffers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from vkmnn.runtime.drivers.buffer import DriverBuffer


class MemoryKind(enum.Enum):
    """Purpose of a buffer; determines its memory type."""

    DEVICE = "device"
    """Activations: read and written by the device."""
    WEIGHTS = "weights"
    """Written once, read by the device."""
    UPLOAD = "upload"
    """Written by the host, read by the device; device-local memory if the host can see it."""
    READBACK = "readback"
    """Written by the device, read by the host; cached host memory if available."""


class Transfers(Protocol):
    """The device's part of buffer access: moves bytes that the host cannot see."""

    def upload(self, target: BufferRange, data: NDArray[np.uint8]) -> None:
        """Copy to the device; returns when they have arrived."""

    def download(self, source: BufferRange) -> NDArray[np.uint8]:
        """Return a copy."""


class Destroyed:
    """Counts destroyed buffers on all devices.

    A user whose buffers were all alive need not check them again until the number changes:
    `destroy` first marks the buffer, then counts.
    """

    count = 0


class Buffer:
    """Device memory of `nbytes` bytes; created by `Device.allocate`.

    `host` is a zero-copy uint8 view of the whole buffer if the host can see the memory, else None.
    The view may be used while no command buffer that touches the buffer is in flight. Freed by
    `destroy`, at the end of a `with` block, or when the last buffer, view and command buffer that
    use it are gone; after `destroy`, none of these may be used.
    """

    __slots__ = ("__weakref__", "_words", "destroyed", "device", "driver_buffer", "kind", "nbytes")
    is_image = False

    def __init__(
        self, device: Transfers, nbytes: int, kind: MemoryKind, driver_buffer: DriverBuffer
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.kind = kind
        self.driver_buffer = driver_buffer
        self._words: memoryview[int] | None = None
        self.destroyed = False

    def __repr__(self) -> str:
        state = ", destroyed" if self.destroyed else ""
        return f"Buffer({self.nbytes} bytes, {self.kind.value}{state})"

    @property
    def host(self) -> NDArray[np.uint8] | None:
        """Zero-copy view, or None."""
        if self.destroyed:
            raise InvalidInputError("the buffer has been destroyed")
        return self.driver_buffer.host

    @property
    def granule(self) -> int:
        """Alignment of offset and size of a copy."""
        return 1

    @property
    def coherent_host(self) -> NDArray[np.uint8] | None:
        """`host` if the device sees writes to it at once, and vice versa, else None."""
        return self.host if self.driver_buffer.coherent else None

    def write(self, offset: int, array: NDArray[np.generic]) -> None:
        """Copy the bytes of `array` to `offset`; returns when they have arrived."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._check_range(offset, data.nbytes)
        host = self.host
        if host is None:
            self.device.upload(BufferRange(self, offset, data.nbytes), data)
        else:
            host[offset : offset + data.nbytes] = data
            self.driver_buffer.flush()

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a copy of `nbytes` bytes at `offset`."""
        self._check_range(offset, nbytes)
        host = self.host
        if host is None:
            return self.device.download(BufferRange(self, offset, nbytes))
        self.driver_buffer.invalidate()
        data: NDArray[np.uint8] = host[offset : offset + nbytes].copy()
        return data

    def word(self, offset: int) -> int:
        """Return the signed 32-bit word at `offset`, a multiple of 4.

        On mapped memory, this takes a fraction of the time of `read`.
        """
        words = self._words
        if words is None or self.destroyed:
            words = self._mapped_words()
        if words is None:
            return int(self.read(offset, 4).view(np.int32)[0])
        return words[offset // 4]

    def set_word(self, offset: int, value: int) -> None:
        """Write the signed 32-bit word at `offset`, a multiple of 4."""
        words = self._words
        if words is None or self.destroyed:
            words = self._mapped_words()
        if words is None:
            self.write(offset, np.array([value], np.int32))
        else:
            words[offset // 4] = value

    def _mapped_words(self) -> memoryview[int] | None:
        host = self.coherent_host if self._words is None or self.destroyed else None
        if host is not None:
            self._words = memoryview(cast(Any, host[: self.nbytes // 4 * 4])).cast("i")
        return self._words

    def _check_range(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise InvalidInputError(
                f"bytes {offset} to {offset + nbytes} are outside a buffer of {self.nbytes} bytes"
            )

    def destroy(self) -> None:
        """Free the memory; it must not be in use by the device. Safe to call twice."""
        self.destroyed = True
        Destroyed.count += 1
        self.driver_buffer.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.destroy()


class Image(Buffer):
    """A 2-D image of RGBA texels on a device; created by `Device.allocate_image`.

    To the host it is a buffer of its rows, in order, that is never mapped: whole rows are written
    and read. Kernels bind it as a whole, as `BindingType.IMAGE`.
    """

    __slots__ = ("height", "texel_format", "width")
    is_image = True

    def __init__(
        self, device: Transfers, width: int, height: int, texel_format: str, made: DriverBuffer
    ) -> None:
        super().__init__(device, made.nbytes, MemoryKind.DEVICE, made)
        self.width, self.height, self.texel_format = width, height, texel_format

    def __repr__(self) -> str:
        state = ", destroyed" if self.destroyed else ""
        return f"Image({self.width} x {self.height}, {self.texel_format}{state})"

    @property
    def granule(self) -> int:
        """Bytes of a row."""
        return self.nbytes // self.height

    def _check_range(self, offset: int, nbytes: int) -> None:
        super()._check_range(offset, nbytes)
        if offset % self.granule or nbytes % self.granule:
            raise InvalidInputError(
                f"bytes {offset} to {offset + nbytes} are not whole rows of {self.granule} bytes"
            )


@dataclass(frozen=True, slots=True)
class BufferRange:
    """`nbytes` bytes of `buffer` from `offset` on."""

    buffer: Buffer
    offset: int
    nbytes: int
