"""Buffers, byte ranges of buffers, and the planner that lets short-lived ranges share bytes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.errors import InvalidInputError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from vkmnn.runtime.device import Device
    from vkmnn.runtime.drivers.base import DriverBuffer


class MemoryKind(enum.Enum):
    """What a buffer is for; decides which kind of memory it gets."""

    DEVICE = "device"
    """Activations: read and written by the device."""
    WEIGHTS = "weights"
    """Written once, read by the device."""
    UPLOAD = "upload"
    """Written by the host, read by the device; device-local memory where the host can see it."""
    READBACK = "readback"
    """Written by the device, read by the host; cached host memory where there is any."""


class Buffer:
    """Device memory of `nbytes` bytes; made by `Device.allocate`.

    `host` is a zero-copy uint8 view of all of it where the host can see the memory, else None.
    The view may be used while no command buffer that touches the buffer is in flight. Freed by
    `destroy`, at the end of a `with` block, or when neither the buffer, nor a view, nor a command
    buffer that uses it is left; after `destroy` nothing of these may be used.
    """

    __slots__ = ("__weakref__", "destroyed", "device", "driver_buffer", "kind", "nbytes")

    def __init__(
        self, device: Device, nbytes: int, kind: MemoryKind, driver_buffer: DriverBuffer
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.kind = kind
        self.driver_buffer = driver_buffer
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
    def coherent_host(self) -> NDArray[np.uint8] | None:
        """`host` where the device sees writes to it at once, and the other way round, else None."""
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

    def _check_range(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise InvalidInputError(
                f"bytes {offset} to {offset + nbytes} are outside a buffer of {self.nbytes} bytes"
            )

    def destroy(self) -> None:
        """Free the memory; it must not be in use by the device. Safe to call twice."""
        self.destroyed = True
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


@dataclass(frozen=True, slots=True)
class BufferRange:
    """`nbytes` bytes of `buffer` from `offset` on."""

    buffer: Buffer
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A range of `nbytes` bytes that must keep its content from step `first` to `last`, inclusive.

    Its offset will be a multiple of `alignment`.
    """

    first: int
    last: int
    nbytes: int
    alignment: int = 256

    def __post_init__(self) -> None:
        if self.last < self.first or self.nbytes < 0 or self.alignment < 1:
            raise InvalidInputError(f"not a lifetime: {self}")


MAX_ATTEMPTS = 8


def plan_offsets(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int, int]:
    """Place ranges so that those alive at the same step do not overlap.

    Returns:
        The offset of every lifetime, the bytes needed in all, and a lower bound of any plan: the
        most bytes that are alive at one step.

    Ranges are placed one after the other, each into the smallest gap that holds it: those that live
    when most bytes are alive come first, the largest in front (after "greedy by breadth" and
    "greedy by size": Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference,
    2020). While that wastes memory, the ranges that ended on top begin the next attempt.
    """
    alive = _alive(lifetimes)
    bound = max(alive, default=0)
    order = sorted(
        range(len(lifetimes)),
        key=lambda i: (
            -max(alive[lifetimes[i].first : lifetimes[i].last + 1]),
            -lifetimes[i].nbytes,
            lifetimes[i].first,
        ),
    )
    best: list[int] = []
    least = -1
    for _ in range(MAX_ATTEMPTS):
        offsets, total = _place_in_order(lifetimes, order)
        if least < 0 or total < least:
            best, least = offsets, total
        if least == bound:
            break
        top = [i for i in order if offsets[i] + lifetimes[i].nbytes == total]
        order = top + [i for i in order if i not in top]
    return best, least, bound


def _place_in_order(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    count = len(lifetimes)
    first = np.array([item.first for item in lifetimes], np.int64)
    last = np.array([item.last for item in lifetimes], np.int64)
    start = np.zeros(count, np.int64)
    end = np.zeros(count, np.int64)  # 0 for what has not been placed
    for i in order:
        item = lifetimes[i]
        if item.nbytes == 0:
            continue
        (others,) = np.nonzero((first <= item.last) & (last >= item.first) & (end > 0))
        taken = sorted(zip(start[others].tolist(), end[others].tolist(), strict=True))
        start[i] = _best_fit(taken, item.nbytes, item.alignment)
        end[i] = start[i] + item.nbytes
    return start.tolist(), int(end.max(initial=0))


def plan_buffers(lifetimes: Sequence[Lifetime]) -> tuple[list[int], list[int], int]:
    """Give every range a whole buffer, shared by ranges that are never alive at the same step.

    Returns:
        The number of every lifetime's buffer, the bytes of every buffer, and the lower bound of
        `plan_offsets`.

    The largest range chooses first, and takes the smallest buffer that is free all its life
    ("greedy by size for shared objects", by the same authors).
    """
    sizes: list[int] = []
    users: list[list[Lifetime]] = []
    chosen = [0] * len(lifetimes)
    order = sorted(
        range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first, i)
    )
    for i in order:
        item = lifetimes[i]
        free = [
            number
            for number, others in enumerate(users)
            if all(item.last < other.first or other.last < item.first for other in others)
        ]
        if free:
            number = min(free, key=lambda number: (sizes[number], -number))
        else:
            number = len(sizes)
            sizes.append(item.nbytes)
            users.append([])
        users[number].append(item)
        chosen[i] = number
    return chosen, sizes, max(_alive(lifetimes), default=0)


def _best_fit(taken: Sequence[tuple[int, int]], nbytes: int, alignment: int) -> int:
    """Return the offset of the smallest gap that holds `nbytes`, or behind all `taken` ranges."""
    best_gap, best_offset = None, 0
    top = 0
    for start, end in taken:
        offset = _align(top, alignment)
        gap = start - top
        if offset + nbytes <= start and (best_gap is None or gap < best_gap):
            best_gap, best_offset = gap, offset
        top = max(top, end)
    return _align(top, alignment) if best_gap is None else best_offset


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _alive(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Return how many bytes are alive at each step, from step 0 to the last."""
    changes = [0] * (max((item.last for item in lifetimes), default=-1) + 2)
    for item in lifetimes:
        changes[item.first] += item.nbytes
        changes[item.last + 1] -= item.nbytes
    return list(accumulate(changes))[:-1]
