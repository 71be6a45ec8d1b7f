"""Files mapped into memory, whose bytes a device may use where they are."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt


class MappedFile(mmap.mmap):
    """A file that is mapped for reading; arrays on it keep it mapped."""


def place_in_file(array: npt.NDArray[np.generic]) -> tuple[MappedFile, int] | None:
    """Return the mapped file that an array's bytes are in, in their order, and where they begin.

    None for an array that lies elsewhere, or whose elements are not side by side.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, MappedFile) or not array.flags.c_contiguous or array.nbytes == 0:
        return None
    return base, array.ctypes.data - address_of(base)


def address_of(file: MappedFile) -> int:
    """Return where a mapped file begins in memory: with a page."""
    return int(np.frombuffer(file, np.uint8).ctypes.data)


def let_go_of_pages(array: npt.NDArray[np.generic]) -> None:
    """Let the system have the pages of a mapped file that an array fills: they can be read again.

    They count as this process's memory until then, though nobody needs them. An array that lies
    elsewhere is left alone.
    """
    found = place_in_file(array)
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if found is None or advice is None:
        return
    file, offset = found
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (offset + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        with suppress(OSError):  # a system that does not do it loses nothing but room
            file.madvise(advice, first, length)
