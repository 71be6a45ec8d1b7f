"""Addresses of memory, as MNN's functions pass them."""

from __future__ import annotations

import ctypes
from typing import Any

from vkmnn.errors import InvalidInputError


def capsule(address: int) -> Any:
    """Return an address as a PyCapsule; its owner has to outlive it."""
    make: Any = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(address, None, None)


def is_address(value: object) -> bool:
    """Tell whether a value is a PyCapsule, or an address as a number."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return number or type(value).__name__ == "PyCapsule"


def bytes_at(where: Any, size: int) -> bytes:
    """Return a copy of the memory at an address.

    Args:
        where: a PyCapsule, or a number.
        size: bytes; the memory has to have as many.

    Raises:
        InvalidInputError: the address is 0.
    """
    address = where
    if not isinstance(where, int):
        read: Any = ctypes.pythonapi.PyCapsule_GetPointer
        read.restype = ctypes.c_void_p
        read.argtypes = (ctypes.py_object, ctypes.c_char_p)
        address = read(where, None)
    if not address:
        raise InvalidInputError("there is no memory at address 0")
    return ctypes.string_at(address, size)
