"""Untrusted FlatBuffers: every offset is checked before it is followed."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from vkmnn.errors import ModelError
from vkmnn.ir.graph import Array
from vkmnn.schema.language import Default, Field, Schema

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_SCALARS = {code: struct.Struct(f"<{code}") for code in "?BbHhIiQqfd"}
_DTYPES = {code: np.dtype("?" if code == "?" else f"<{code}") for code in "?BbHhIifd"} | {
    "Q": np.dtype("<u8"),
    "q": np.dtype("<i8"),
    "I": np.dtype("<u4"),
    "i": np.dtype("<i4"),
}
_NO_ITEMS = {code: np.empty(0, dtype) for code, dtype in _DTYPES.items()}
_READS = 8
"""Maximum reads of a buffer, relative to its size: shared parts are read again."""


class Buffer:
    """The bytes of a FlatBuffer, and the schema that they follow.

    Args:
        data: the bytes, which may go on after the buffer's end.
        schema: the schema of its content.
        what: the kind of file, for messages.
    """

    def __init__(self, data: memoryview, schema: Schema, what: str) -> None:
        self.data = data
        self.size = len(data)
        self.schema = schema
        self.what = what
        self._left = _READS * self.size + 4096

    def root(self) -> Table:
        """Return the root table.

        Raises:
            ModelError: there is none.
        """
        return Table(self, self.follow(0), self.schema.root)

    def verify(self) -> None:
        """Check every part that the schema leads to from the root, and their size as read.

        Afterwards, code that follows offsets unchecked, such as flatc's bindings, may read the
        buffer.

        Raises:
            ModelError: a part lies outside the buffer, or the parts contain each other.
        """
        plans: dict[tuple[int, str], _TablePlan] = {}
        todo = [(self.follow(0), self.schema.root)]
        data, end = self.data, self.size - 4
        while todo:  # a stack of our own: files may nest deeper than Python's
            at, kind = (
                todo.pop()
            )  # `follow` and similar methods have checked that these four bytes exist
            plan = plans.get((at - _I32.unpack_from(data, at)[0], kind))
            if plan is None:
                place = at - int(_I32.unpack_from(data, at)[0])
                plan = plans[place, kind] = _TablePlan.of(Table(self, at, kind))
            self.check(at, plan.size)
            self.spend(plan.nbytes)
            for offset, field in plan.references:
                to = _U32.unpack_from(data, at + offset)[0]
                if not to or at + offset + to > end:
                    self.follow(at + offset)  # the message gives the reason
                todo += self._verify_part(at + offset + to, field)
            for tag, offset, kinds in plan.unions:
                number = self.data[at + tag]
                if 0 < number < len(kinds) and kinds[number] in self.schema.tables:
                    todo.append((self.follow(at + offset), kinds[number]))

    def _verify_part(self, at: int, field: Field) -> list[tuple[int, str]]:
        """Check the target of a field; return the tables still to be checked."""
        if field.form == "table":
            return [(at, field.table)]
        if field.form == "text":
            self.text(at)
        elif field.form == "vector":
            self.items(at, _DTYPES[field.code].itemsize)
            self.spend(4)
        else:
            start, count = self.items(at, 4)
            self.spend(4 * count)
            offsets = struct.unpack_from(f"<{count}I", self.data, start)
            if 0 in offsets:
                raise self.fail(f"an offset in the list at {at} points nowhere")
            places = [start + 4 * index + offset for index, offset in enumerate(offsets)]
            self.check(max(places, default=0), 4)
            if field.form == "tables":
                return [(place, field.table) for place in places]
            for place in places:
                self.text(place)
        return []

    def fail(self, reason: str) -> ModelError:
        """Return the error for a defect of the file."""
        return ModelError(
            f"the {self.what} file is damaged: {reason}",
            hint="convert the model again, or copy the file again",
        )

    def check(self, at: int, size: int) -> None:
        """Check that `size` bytes exist at an offset."""
        if at < 0 or size < 0 or at + size > self.size:
            raise self.fail(f"{size} bytes at {at} lie outside its {self.size} bytes")

    def spend(self, nbytes: int) -> None:
        """Count bytes that are read; a file whose parts share others endlessly is refused."""
        self._left -= nbytes
        if self._left < 0:
            raise self.fail("its parts contain each other")

    def u16(self, at: int) -> int:
        """Return an unsigned number of 16 bits."""
        self.check(at, 2)
        return int(_U16.unpack_from(self.data, at)[0])

    def u32(self, at: int) -> int:
        """Return an unsigned number of 32 bits."""
        self.check(at, 4)
        return int(_U32.unpack_from(self.data, at)[0])

    def follow(self, at: int) -> int:
        """Return the target of the offset at an offset."""
        offset = self.u32(at)
        if not offset:
            raise self.fail(f"the offset at {at} points nowhere")
        self.check(at + offset, 4)
        return at + offset

    def items(self, at: int, size: int) -> tuple[int, int]:
        """Return the offset of a vector's items, and their number."""
        count = self.u32(at)
        self.check(at + 4, count * size)
        return at + 4, count

    def text(self, at: int) -> str:
        """Return the string at an offset."""
        start, count = self.items(at, 1)
        self.spend(count + 4)
        try:
            return bytes(self.data[start : start + count]).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"the text at {at} is not UTF-8") from error

    def vector(self, at: int, code: str) -> Array:
        """Return the vector at an offset, as a view of the bytes."""
        dtype = _DTYPES[code]
        start, count = self.items(at, dtype.itemsize)
        self.spend(4)
        return np.frombuffer(self.data, dtype, count, start)


class Table:
    """A table in a buffer; fields are read on request, and checked then."""

    __slots__ = ("_at", "_buffer", "_fields", "_size", "_slots", "_vtable", "kind")

    def __init__(self, buffer: Buffer, at: int, kind: str) -> None:
        self._buffer, self._at, self.kind = buffer, at, kind
        self._fields: Mapping[str, Field] = buffer.schema.tables[kind]
        buffer.check(at, 4)
        self._vtable = at - int(_I32.unpack_from(buffer.data, at)[0])
        size = buffer.u16(self._vtable)
        buffer.check(self._vtable, size)
        self._slots = (size - 4) // 2
        self._size = buffer.u16(self._vtable + 2)
        buffer.check(at, self._size)
        if size < 4 or size % 2:
            raise buffer.fail(f"the table at {at} has a list of {size} bytes")
        buffer.spend(size + self._size)

    @property
    def size(self) -> int:
        """Bytes of the table."""
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes of the table and of its list of fields."""
        return 4 + 2 * self._slots + self._size

    def places(self) -> Iterator[tuple[Field, int, int]]:
        """Yield fields with their offsets in the table, unions' included; 0: absent."""
        for field in self._fields.values():
            union = field.form == "union"
            size = _SCALARS[field.code].size if field.form == "scalar" else 1 if union else 4
            place = self._place(field.slot, size)
            reference = self._place(field.slot + 1, 4) if union else 0
            yield field, place and place - self._at, reference and reference - self._at

    def kinds(self, field: Field) -> tuple[str, ...]:
        """Return the tables of a union's number."""
        return self._buffer.schema.unions[field.table]

    def _place(self, slot: int, size: int) -> int:
        """Return the offset of a field by number; 0 if it is absent."""
        if slot >= self._slots:
            return 0
        offset = self._buffer.u16(self._vtable + 4 + 2 * slot)
        if not offset:
            return 0
        if offset < 4 or offset + size > self._size:
            raise self._buffer.fail(f"a field of the {self.kind} at {self._at} is outside it")
        return self._at + offset

    def scalar(self, name: str) -> Default:
        """Return a scalar, or its default if the file does not contain it."""
        field = self._fields[name]
        form = _SCALARS[field.code]
        at = self._place(field.slot, form.size)
        if not at:
            return field.default
        value: Default = form.unpack_from(self._buffer.data, at)[0]
        return value

    def integer(self, name: str) -> int:
        """Return a scalar that is a whole number."""
        return int(self.scalar(name))

    def has(self, name: str) -> bool:
        """Return whether the file has the field."""
        return self._place(self._fields[name].slot, 1) != 0

    def place(self, name: str) -> int:
        """Return the offset of a scalar in the buffer; 0 if the file does not have it."""
        field = self._fields[name]
        return self._place(field.slot, _SCALARS[field.code].size)

    def text(self, name: str) -> str:
        """Return a string; "" if the file does not have it."""
        at = self._reference(name)
        return self._buffer.text(at) if at else ""

    def vector(self, name: str) -> Array:
        """Return a vector of scalars; empty if the file does not have it."""
        code = self._fields[name].code
        at = self._reference(name)
        return self._buffer.vector(at, code) if at else _NO_ITEMS[code]

    def integers(self, name: str) -> list[int]:
        """Return a vector of whole numbers as a list."""
        found = self.vector(name)
        self._buffer.spend(found.nbytes)
        result: list[int] = found.tolist()
        return result

    def texts(self, name: str) -> list[str]:
        """Return a vector of strings."""
        return [self._buffer.text(at) for at in self._references(name)]

    def table(self, name: str) -> Table | None:
        """Return a table; None if the file does not have it."""
        at = self._reference(name)
        return Table(self._buffer, at, self._fields[name].table) if at else None

    def tables(self, name: str) -> list[Table]:
        """Return a vector of tables."""
        kind = self._fields[name].table
        return [Table(self._buffer, at, kind) for at in self._references(name)]

    def union(self, name: str) -> Table | None:
        """Return the table of a union; None if it has none, or an unknown one."""
        field = self._fields[name]
        tag = self._place(field.slot, 1)
        kinds = self._buffer.schema.unions[field.table]
        kind = self._buffer.data[tag] if tag else 0
        at = self._place(field.slot + 1, 4)
        if not at or not 0 < kind < len(kinds) or kinds[kind] not in self._buffer.schema.tables:
            return None
        return Table(self._buffer, self._buffer.follow(at), kinds[kind])

    def _reference(self, name: str) -> int:
        at = self._place(self._fields[name].slot, 4)
        return self._buffer.follow(at) if at else 0

    def _references(self, name: str) -> list[int]:
        at = self._reference(name)
        if not at:
            return []
        start, count = self._buffer.items(at, 4)
        self._buffer.spend(4 * count)
        return [self._buffer.follow(start + 4 * index) for index in range(count)]


class _TablePlan(NamedTuple):
    """Checks shared by all tables with the same fields; offsets count from a table.

    Attributes:
        size: bytes of a table.
        nbytes: bytes of a table and the list.
        references: fields that refer to parts, with their places.
        unions: positions of the number and of the reference, and the meaning of the numbers.
    """

    size: int
    nbytes: int
    references: list[tuple[int, Field]]
    unions: list[tuple[int, int, tuple[str, ...]]]

    @classmethod
    def of(cls, table: Table) -> _TablePlan:
        """Check the offsets of a table's fields."""
        references: list[tuple[int, Field]] = []
        unions: list[tuple[int, int, tuple[str, ...]]] = []
        for field, place, reference in table.places():
            if field.form == "union":
                if place and reference:
                    unions.append((place, reference, table.kinds(field)))
            elif place and field.form != "scalar":
                references.append((place, field))
        return cls(table.size, table.nbytes, references, unions)
