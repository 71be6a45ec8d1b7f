"""Whole files in page-aligned memory that a device may use in place.

By default, files are read: if a mapped file is shortened or overwritten, processes that still use
it are killed (SIGBUS) or compute wrong results.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.threads import Workers

CHUNK_BYTES = 16 << 20
MAX_THREADS = 4
OWN_PAGES = 1 << 20
"""Bytes from which an array gets pages of its own."""


class MappedFile(mmap.mmap):
    """Pages with the content of a file: either the mapped file itself, or memory.

    Arrays on it keep it alive.
    """

    own = True
    """Whether the pages are mapped, so that the system may drop and reread them."""


class FileChangedError(OSError):
    """A file changed while it was read."""


def map_file(descriptor: int) -> MappedFile:
    """Map a file that must not be shortened or written to from now on."""
    return MappedFile(descriptor, 0, access=mmap.ACCESS_READ)


def read_file(descriptor: int) -> MappedFile:
    """Return a copy of a file, unaffected by later changes to it.

    Raises:
        FileChangedError: it changed while it was read.
    """
    before = os.fstat(descriptor)
    file = MappedFile(-1, before.st_size)
    file.own = False
    _use_large_pages(file)
    starts = range(0, before.st_size, CHUNK_BYTES)
    parallel = hasattr(os, "preadv")
    threads = min(MAX_THREADS, len(starts), os.cpu_count() or 1) if parallel else 0
    with memoryview(file) as whole, Workers(threads if threads > 1 else 0, "vkmnn-read") as workers:
        parts = [
            workers.submit(_read, descriptor, whole[start : start + CHUNK_BYTES], start)
            for start in starts
        ]
        for part in parts:
            part.result()
        del parts
    after = os.fstat(descriptor)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise FileChangedError("it changed while it was read")
    return file


def paged(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array; a large one has pages of its own.

    They go back to the system with the array. The C library keeps freed memory between others.
    """
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if nbytes < OWN_PAGES:
        return np.empty(shape, dtype)
    private: dict[str, int] = {}  # pages that children do not share have the larger size
    if hasattr(mmap, "MAP_PRIVATE"):
        private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, nbytes, **private)
    _use_large_pages(pages)
    made: npt.NDArray[Any] = np.ndarray(shape, dtype, pages)
    return made


def give_back_freed() -> None:
    """Return memory that has been freed to the system; glibc keeps it for later otherwise."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _use_large_pages(pages: mmap.mmap) -> None:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a system without large pages
            pages.madvise(advice)


def _read(descriptor: int, part: memoryview, start: int) -> None:
    """Read a file into memory from an offset on."""
    done = 0
    while done < len(part):
        if hasattr(os, "preadv"):
            count = os.preadv(descriptor, [part[done:]], start + done)
        else:
            os.lseek(descriptor, start + done, os.SEEK_SET)
            data = os.read(descriptor, len(part) - done)
            part[done : done + len(data)] = data
            count = len(data)
        if not count:
            raise FileChangedError("it became shorter while it was read")
        done += count


def place_in_file(array: npt.NDArray[np.generic]) -> tuple[MappedFile, int] | None:
    """Return the mapped file that contains an array's bytes contiguously, and their offset.

    None for an array elsewhere, or whose elements are not contiguous.
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
    """Return the address of a mapped file, which is page-aligned."""
    return int(np.frombuffer(file, np.uint8).ctypes.data)


def let_go_of_pages(array: npt.NDArray[np.generic]) -> None:
    """Release the pages of a mapped file that an array covers; they are reread on access.

    Until then they count as this process's memory, although unused. Other arrays are ignored.
    """
    found = place_in_file(array)
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if found is None or advice is None or not found[0].own:
        return
    file, offset = found
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (offset + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        with suppress(OSError):  # without support, only memory is lost
            file.madvise(advice, first, length)
