"""Writes FlatBuffers by schema: a table comes before what it refers to."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vkmnn.schema.language import Field, Schema

_SIZES = {"text": 4, "table": 4, "vector": 4, "texts": 4, "tables": 4}
_LIMIT = 1 << 31


class TooLargeError(ValueError):
    """The offsets of a FlatBuffer reach 2 GiB."""


def write(schema: Schema, values: Mapping[str, Any]) -> bytes:
    """Return a FlatBuffer.

    Args:
        schema: what to write; its root is what `values` holds.
        values: fields by name: numbers, strings, sequences, and dicts for tables; for a union the
            name of its member and a dict. Fields that are absent or None, and scalars at their
            default, are left out.

    Raises:
        TooLargeError: it would be larger than a FlatBuffer can be.
    """
    writer = _Writer(schema)
    writer.data += struct.pack("<I4s", 0, schema.identifier)
    writer.refer(0, writer.table(schema.root, values))
    return bytes(writer.data)


class _Writer:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.data = bytearray()
        self._vtables: dict[bytes, int] = {}

    def refer(self, at: int, to: int) -> None:
        if to >= _LIMIT:
            raise TooLargeError
        struct.pack_into("<I", self.data, at, to - at)

    def align(self, multiple: int, plus: int = 0) -> None:
        self.data += bytes(-(len(self.data) + plus) % multiple)

    def table(self, kind: str, values: Mapping[str, Any]) -> int:
        fields = self.schema.tables[kind]
        present = [
            (field, value)
            for name, given in values.items()
            if given is not None
            for field, value in self._stored(fields[name], given)
            if not _is_default(field, value)
        ]
        # The largest first, from a place where they need no gaps: 4 past a multiple of 8.
        present.sort(key=lambda pair: -_size(pair[0]))
        offsets: dict[int, int] = {}
        end = 4
        for field, _ in present:
            offsets[field.slot] = end
            end += _size(field)
        slots = max(offsets, default=-1) + 1
        vtable = struct.pack(
            f"<{slots + 2}H", 4 + 2 * slots, end, *(offsets.get(slot, 0) for slot in range(slots))
        )
        if vtable not in self._vtables:
            self.align(2)
            self._vtables[vtable] = len(self.data)
            self.data += vtable
        self.align(8, 4)
        at = len(self.data)
        self.data += bytes(end)
        struct.pack_into("<i", self.data, at, at - self._vtables[vtable])
        for field, value in present:
            place = at + offsets[field.slot]
            if field.form == "scalar":
                struct.pack_into(f"<{field.code}", self.data, place, value)
            else:
                self.refer(place, self._part(field, value))
        return at

    def _stored(self, field: Field, value: Any) -> list[tuple[Field, Any]]:
        """Return what is stored for a field: of a union, its member's number and its table."""
        if field.form != "union":
            return [(field, value)]
        kind, values = value
        number = self.schema.unions[field.table].index(kind)
        return [
            (Field(field.name, field.slot, "B", "", "scalar"), number),
            (Field(field.name, field.slot + 1, "", kind, "table"), values),
        ]

    def _part(self, field: Field, value: Any) -> int:
        """Write what a field refers to, and return where it is."""
        if field.form == "text":
            return self._text(value)
        if field.form == "table":
            return self.table(field.table, value)
        if field.form == "vector":
            return self._vector(field.code, value)
        if field.form == "texts":
            return self._list(value, self._text)
        return self._list(value, lambda one: self.table(field.table, one))

    def _text(self, text: str) -> int:
        encoded = text.encode("utf-8")
        self.align(4)
        at = len(self.data)
        self.data += struct.pack("<I", len(encoded)) + encoded + b"\0"
        return at

    def _vector(self, code: str, values: Iterable[Any]) -> int:
        dtype = np.dtype({"q": "<i8", "Q": "<u8", "i": "<i4", "d": "<f8"}.get(code, code))
        raw = values if isinstance(values, bytes) else np.array(values, dtype).tobytes()
        self.align(max(dtype.itemsize, 4), 4)
        at = len(self.data)
        self.data += struct.pack("<I", len(raw) // dtype.itemsize) + raw
        return at

    def _list(self, values: Sequence[Any], write: Any) -> int:
        self.align(4)
        at = len(self.data)
        self.data += struct.pack("<I", len(values)) + bytes(4 * len(values))
        for index, value in enumerate(values):
            self.refer(at + 4 + 4 * index, write(value))
        return at


def _is_default(field: Field, value: Any) -> bool:
    """Return whether a scalar need not be written; -0.0 equals 0.0, but is another number."""
    if field.form != "scalar":
        return False
    code = f"<{field.code}"
    return struct.pack(code, value) == struct.pack(code, field.default)


def _size(field: Field) -> int:
    return struct.calcsize(f"<{field.code}") if field.form == "scalar" else _SIZES[field.form]
