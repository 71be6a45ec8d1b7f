"""What flatc's bindings return, as Python's values; the buffer has been verified before.

The package looks a field up in its table's list of fields whenever it is read, which takes longer
than the field itself. `quick` gives a table of the bindings a list that is read once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from flatbuffers.table import Table

T = TypeVar("T")

_LISTED = struct.Struct("<H")
_BACK = struct.Struct("<i")


class _QuickTable(Table):  # type: ignore[misc]
    """A table with its list of fields, which it shares with tables that have the same one."""

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
        """Return where a field is in the table; 0 where the file does not have it."""
        place = vtableOffset // 2
        return self._list[place] if place < len(self._list) else 0


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
    """Return a string; "" where the file does not have it."""
    return value.decode("utf-8") if value else ""


def integers(values: Any) -> list[int]:
    """Return a vector of whole numbers, of a method `…AsNumpy`; that is 0 where there is none."""
    result: list[int] = [] if isinstance(values, int) else values.tolist()
    return result
