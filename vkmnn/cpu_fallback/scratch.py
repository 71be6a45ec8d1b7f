"""Memory that kernels on the CPU ask for while they are prepared (MNN's storage types)."""

from __future__ import annotations

import enum
import threading
from math import prod

import numpy as np
import numpy.typing as npt

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.errors import PluginError

ALIGNMENT = 64
"""Bytes to which blocks are aligned, for vector instructions."""


class Storage(enum.Enum):
    """Lifetime of a kernel's memory.

    It is available from the end of `prepare`, and freed with the plan.
    """

    STATIC = "static"
    """Kept between runs: zeros at first, then the kernel's last values."""
    DYNAMIC = "dynamic"
    """While the kernel computes; before and after that, other kernels use the same bytes."""
    SEPARATE = "separate"
    """From run to run, like STATIC, but with undefined content at first."""


class Memory:
    """Memory of a kernel; `array` is the memory as an array, to be asked for in `compute`."""

    __slots__ = ("_array", "_scratch", "dtype", "end", "offset", "released", "shape")

    def __init__(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, offset: int, scratch: Scratch
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.offset = offset
        self.end = offset + _aligned(self.nbytes)
        self.released = False
        self._scratch = scratch
        self._array: AnyArray | None = None

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def array(self) -> AnyArray:
        """The memory as an array; DYNAMIC memory is initially undefined."""
        if self._array is not None:
            return self._array
        raw = self._scratch.arena.room(self._scratch.nbytes)[
            self.offset : self.offset + self.nbytes
        ]
        return raw.view(self.dtype).reshape(self.shape)

    def settle(self, array: AnyArray) -> None:
        """Allocate a separate array."""
        self._array = array


class Arena:
    """Bytes that kernels use in turn: one block per thread, as large as the largest needs."""

    def __init__(self) -> None:
        self._of = threading.local()

    def room(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the thread's block, with room for as many bytes."""
        block: npt.NDArray[np.uint8] | None = getattr(self._of, "block", None)
        if block is None or block.nbytes < nbytes:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            block = self._of.block = raw[start : start + nbytes]
        return block

    @property
    def nbytes(self) -> int:
        """The size of the block of the thread that asks."""
        return getattr(getattr(self._of, "block", None), "nbytes", 0)

    def trim(self) -> None:
        """Free all blocks."""
        self._of = threading.local()


class Scratch:
    """Memory requests of one kernel; DYNAMIC blocks share an arena."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.nbytes = 0
        self._blocks: list[Memory] = []

    def acquire(self, shape: tuple[int, ...], dtype: npt.DTypeLike, storage: Storage) -> Memory:
        """Return memory; DYNAMIC memory overlaps only released memory."""
        if storage is not Storage.DYNAMIC:
            memory = Memory(shape, dtype, 0, self)
            make = np.zeros if storage is Storage.STATIC else np.empty
            memory.settle(make(shape, dtype))
            return memory
        size = _aligned(prod(shape) * np.dtype(dtype).itemsize)
        offset = 0
        for block in sorted(self._blocks, key=lambda block: block.offset):
            if block.offset - offset >= size:
                break
            offset = max(offset, block.end)
        memory = Memory(shape, dtype, offset, self)
        self._blocks.append(memory)
        self.nbytes = max(self.nbytes, memory.end)
        return memory

    def release(self, memory: Memory) -> None:
        """Let later acquisitions reuse this memory.

        Raises:
            PluginError: it was not acquired here, is not DYNAMIC, or was released before.
        """
        if memory not in self._blocks:
            raise PluginError(
                "only DYNAMIC memory of this kernel can be released, and once",
                hint="other memory is freed with the plan",
            )
        self._blocks.remove(memory)
        memory.released = True


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
