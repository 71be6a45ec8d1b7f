"""Writes FlatBuffers by schema, with the builder of the package `flatbuffers`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flatbuffers.builder import Builder, BuilderSizeError

from vkmnn.schema.language import Field, Schema

_PREPEND = {
    "?": Builder.PrependBool,
    "B": Builder.PrependUint8,
    "b": Builder.PrependInt8,
    "H": Builder.PrependUint16,
    "h": Builder.PrependInt16,
    "I": Builder.PrependUint32,
    "i": Builder.PrependInt32,
    "Q": Builder.PrependUint64,
    "q": Builder.PrependInt64,
    "f": Builder.PrependFloat32,
    "d": Builder.PrependFloat64,
}
_FIRST_BYTES = 1 << 16


class TooLargeError(ValueError):
    """The offsets of a FlatBuffer reach 2 GiB."""


def write(schema: Schema, values: Mapping[str, Any]) -> bytes:
    """Return a FlatBuffer.

    Args:
        schema: the schema to write by; its root is what `values` holds.
        values: fields by name: numbers, strings, sequences, dicts for tables, and for a union a
            pair of a table's name and a dict. Fields that are absent or None, and scalars at their
            default, are left out.

    Raises:
        TooLargeError: it would be larger than a FlatBuffer can be.
    """
    writer = _Writer(schema)
    try:
        writer.builder.Finish(writer.table(schema.root, values), schema.identifier or None)
    except BuilderSizeError as error:
        raise TooLargeError from error
    return bytes(writer.builder.Output())


class _Writer:
    """Writes parts before the tables that refer to them, as the builder requires."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.builder = Builder(_FIRST_BYTES)

    def table(self, kind: str, values: Mapping[str, Any]) -> int:
        fields = self.schema.tables[kind]
        scalars: list[tuple[Field, Any]] = []
        references: list[tuple[int, int]] = []
        for name, value in values.items():
            field = fields[name]
            if value is None or _is_default(field, value):
                continue
            if field.form == "scalar":
                scalars.append((field, value))
            elif field.form == "union":
                number = self.schema.unions[field.table].index(value[0])
                tag = Field(name, field.slot, "B", "", "scalar")
                scalars.append((tag, number))
                references.append((field.slot + 1, self.table(*value)))
            else:
                references.append((field.slot, self._part(field, value)))
        builder = self.builder
        builder.StartObject(self.schema.slots[kind])
        # The largest first, so that they need no gaps.
        scalars.sort(key=lambda pair: -struct.calcsize(f"<{pair[0].code}"))
        wide = [pair for pair in scalars if pair[0].code in "Qqd"]
        for field, value in wide:
            _PREPEND[field.code](builder, value)
            builder.Slot(field.slot)
        for slot, at in references:
            builder.PrependUOffsetTRelative(at)
            builder.Slot(slot)
        for field, value in scalars[len(wide) :]:
            _PREPEND[field.code](builder, value)
            builder.Slot(field.slot)
        return int(builder.EndObject())

    def _part(self, field: Field, value: Any) -> int:
        """Write the target of a field, and return its offset."""
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
        return int(self.builder.CreateString(text))

    def _vector(self, code: str, values: Any) -> int:
        if isinstance(values, bytes):
            return int(self.builder.CreateByteVector(values))
        dtype = np.dtype(code if code in "?Bb" else f"<{code}")
        return int(self.builder.CreateNumpyVector(np.array(values, dtype).reshape(-1)))

    def _list(self, values: Sequence[Any], write: Callable[[Any], int]) -> int:
        places = [write(value) for value in values]
        self.builder.StartVector(4, len(places), 4)
        for at in reversed(places):
            self.builder.PrependUOffsetTRelative(at)
        return int(self.builder.EndVector())


def _is_default(field: Field, value: Any) -> bool:
    """Return whether a scalar need not be written; -0.0 equals 0.0, but is another number."""
    if field.form != "scalar":
        return False
    code = f"<{field.code}"
    return struct.pack(code, value) == struct.pack(code, field.default)
