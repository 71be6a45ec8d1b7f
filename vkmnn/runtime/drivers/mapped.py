"""Mapped device memory as numpy arrays."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache

_LARGE_PAGE = 2 << 20


class MappedMemory:
    """`nbytes` bytes at an address; arrays from `np.asarray` keep the object alive."""

    __slots__ = ("__array_interface__", "__weakref__")

    def place(self, pointer: int, nbytes: int) -> None:
        """Set the address of the bytes; before, there is no array."""
        self.__array_interface__ = {
            "data": (pointer, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def prefer_large_pages(pointer: int, nbytes: int) -> None:
    """Ask the system to back untouched memory of the process with large pages.

    If it agrees, touching the memory first and computing on it take less time.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or nbytes < _LARGE_PAGE:
        return
    first = -(-pointer // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (pointer + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    # It may refuse, which costs nothing: the pages stay small.
    _process().madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), advice)


@cache
def _process() -> ctypes.CDLL:
    """Return the symbols that the process is linked with, looked up once."""
    return ctypes.CDLL(None)
