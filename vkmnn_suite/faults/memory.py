"""Lets an allocation of numpy's fail, by numpy's own hook for allocators (NEP 49)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np

# In numpy's table of C functions, since 1.22.
_SET_HANDLER, _GET_HANDLER = 304, 305
_CAPSULE = b"mem_handler"
_LEAST = 8  # bytes; smaller ones are not counted

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    )


class Allocations:
    """Counts numpy's allocations of the calling thread, and lets one of them fail."""

    def __init__(self) -> None:
        self.count = 0
        self.fired = ""
        self._at = 0
        self._set = _function(_SET_HANDLER, ctypes.py_object)
        # numpy still frees: Python code would run while an error is being raised.
        self._plain = plain = _Handler.from_address(_pointer(_function(_GET_HANDLER)(), _CAPSULE))
        # numpy's functions let go of the GIL themselves, and have to be called with it.
        malloc, calloc, realloc = (
            _with_gil(one, *arguments)
            for one, arguments in (
                (plain.malloc, (ctypes.c_size_t,)),
                (plain.calloc, (ctypes.c_size_t, ctypes.c_size_t)),
                (plain.realloc, (ctypes.c_void_p, ctypes.c_size_t)),
            )
        )
        self._handler = _Handler(
            b"vkmnn_faults",
            1,
            plain.context,
            _MALLOC(lambda me, size: None if self._fails(size) else malloc(me, size)),
            _CALLOC(lambda me, n, size: None if self._fails(n * size) else calloc(me, n, size)),
            _REALLOC(lambda me, old, size: None if self._fails(size) else realloc(me, old, size)),
            plain.free,
        )
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype = ctypes.py_object
        capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._capsule = capsule(ctypes.addressof(self._handler), _CAPSULE, None)

    def _fails(self, size: int) -> bool:
        if not self._at or size < _LEAST:
            return False
        self.count += 1
        if self.count != self._at:
            return False
        self.fired = "numpy"
        return True

    @contextmanager
    def failing(self, at: int) -> Iterator[None]:
        """Let allocation number `at` fail; only count them if it is negative."""
        self.count, self.fired = 0, ""
        if not at:
            yield
            return
        old = self._set(self._capsule)
        self._at = at
        try:
            # numpy asks the hook of the thread: all work is to be done in this one.
            with patch("vkmnn.base.threads.ThreadPoolExecutor.submit", _no_thread):
                yield
        finally:
            self._at = 0
            self._set(old)


def _with_gil(function: Any, *arguments: Any) -> Any:
    """Return a function of an allocator, called without letting go of the GIL."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, *arguments)(address)


def _no_thread(*_: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


def _function(number: int, *arguments: Any) -> Any:
    """Return a function of the table that numpy hands to extensions."""
    core: Any = getattr(np, "_core", None) or np.core
    table = _pointer(core._multiarray_umath._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[number]
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(address)


def _pointer(capsule: object, name: bytes | None) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, name))
