"""Converts values of flatc's bindings to Python values; the buffer has been verified before.

The package looks a field up in its table's list of fields at every access, and checks numbers that
the verifier has checked. `quick` gives a table of the bindings a list that is read once, and reads
without checks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from flatbuffers.table import Table

T = TypeVar("T")

_LISTED = struct.Struct("<H")
_BACK = struct.Struct("<i")
_FORWARD = struct.Struct("<I")
_DTYPES = {f"<{code}": np.dtype(f"<{code}") for code in "?bBhHiIqQfd"}


class _QuickTable(Table):  # type: ignore[misc]
    """A table of a verified buffer, with the list of fields that tables of its kind share."""

    __slots__ = ("_list", "lists")

    def __init__(self, data: memoryview, at: int, lists: dict[int, tuple[int, ...]]) -> None:
        super().__init__(data, at)
        self.lists = lists
        start = at - _BACK.unpack_from(data, at)[0]
        found = lists.get(start)
        if found is None:
            count = _LISTED.unpack_from(data, start)[0] // 2
            found = lists[start] = struct.unpack_from(f"<{count}H", data, start)
        self._list = found

    def Offset(self, vtableOffset: int) -> int:  # noqa: N802 - the package's names
        """Return the offset of a field in the table; 0 if the file does not have it."""
        place = vtableOffset // 2
        return self._list[place] if place < len(self._list) else 0

    def Get(self, flags: Any, off: int) -> Any:  # noqa: N802
        """Return the scalar at an offset in the buffer."""
        return flags.packer_type.unpack_from(self.Bytes, off)[0]

    def Vector(self, off: int) -> int:  # noqa: N802
        """Return the offset of the items of a table's vector field."""
        at: int = self.Pos + off
        return at + int(_FORWARD.unpack_from(self.Bytes, at)[0]) + _FORWARD.size

    def GetVectorAsNumpy(self, flags: Any, off: int) -> Any:  # noqa: N802
        """Return the vector that a field of the table refers to, as a view."""
        at = self.Vector(off)
        (count,) = _FORWARD.unpack_from(self.Bytes, at - _FORWARD.size)
        return np.frombuffer(self.Bytes, _DTYPES[flags.packer_type.format], count, at)


def quick(table: T, lists: dict[int, tuple[int, ...]] | None = None) -> T:
    """Let a table of the bindings read its list of fields once.

    Args:
        table: it is changed, and returned.
        lists: lists of fields that are known already; tables that `each` returns share them.
    """
    inner: Any = table
    known = {} if lists is None else lists
    inner._tab = _QuickTable(inner._tab.Bytes, inner._tab.Pos, known)
    return table


def each(item: Callable[[int], T], count: int) -> list[T]:
    """Return the tables of a vector.

    Args:
        item: the method of a table that `quick` or this function returned: `graph.Ops`.
        count: how many there are: `graph.OpsLength()`.
    """
    owner: Any = item.__self__  # type: ignore[attr-defined]
    lists = owner._tab.lists
    return [quick(item(index), lists) for index in range(count)]


def texts(item: Callable[[int], bytes], count: int) -> list[str]:
    """Return the strings of a vector."""
    return [item(index).decode("utf-8") for index in range(count)]


def text(value: bytes | None) -> str:
    """Return a string; "" if the file does not have it."""
    return value.decode("utf-8") if value else ""


def integers(values: Any) -> list[int]:
    """Return a vector of integers, of a method `…AsNumpy`, which returns 0 if there is none."""
    result: list[int] = [] if isinstance(values, int) else values.tolist()
    return result
