"""Mapped device memory as numpy sees it."""

from __future__ import annotations


class MappedMemory:
    """`nbytes` bytes at an address; arrays made of it by `np.asarray` keep this object alive."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (pointer, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
