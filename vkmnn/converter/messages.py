"""Protobuf classes from compact tables, for formats whose own packages are not needed.

A table has a message per line: its name, then its fields: name, number, type, "*" where it is
repeated, and the default. Types are protobuf's, messages, or the members of an enumeration in their
order, "A,B", counted from the number before it ("1:A,B"). A field whose number is "-" gets one that
no file has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

_APART = 10_000
"""The first number of fields without one."""

_FIELD = re.compile(r"(\w+) (\d+|-) (?:(\d+):)?([\w,]+)(\*?)(?: =(\S+))?")
_SCALARS = frozenset(
    {"bool", "bytes", "double", "fixed32", "float", "int32", "int64", "string", "uint32", "uint64"}
)


class Messages:
    """The classes of a table, created when the first is requested.

    They are in a separate pool: the formats' packages register messages of the same names.

    Args:
        package: begins the messages' full names.
        table: the table.
    """

    def __init__(self, package: str, table: str) -> None:
        self._package, self._table = package, table
        self._pool: Any = None

    def __call__(self, name: str) -> Any:
        """Return the class of a message."""
        from google.protobuf.message_factory import GetMessageClass

        if self._pool is None:
            self._pool = self._filled()
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))

    def _filled(self) -> Any:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool

        file = FileDescriptorProto(
            name=f"{self._package}.proto", package=self._package, syntax="proto2"
        )
        for line in self._table.strip().split("\n"):
            name, fields = line.split(": ")
            message = file.message_type.add(name=name)
            for number, field in enumerate(fields.split("; ")):
                self._add_field(message, field, _APART + number)
        pool = DescriptorPool()
        pool.Add(file)
        return pool

    def _add_field(self, message: DescriptorProto, text: str, apart: int) -> None:
        from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Kind

        found = _FIELD.fullmatch(text)
        assert found is not None, text
        name, number, first, kind, repeated, default = found.groups()
        field: FieldDescriptorProto = message.field.add(
            name=name,
            number=apart if number == "-" else int(number),
            label=Kind.LABEL_REPEATED if repeated else Kind.LABEL_OPTIONAL,
        )
        if default is not None:
            field.default_value = default
        if kind in _SCALARS:
            field.type = Kind.Type.Value(f"TYPE_{kind.upper()}")
            return
        field.type, field.type_name = Kind.TYPE_MESSAGE, f".{self._package}.{kind}"
        if "," in kind:
            enum = message.enum_type.add(name=f"{name}_kind")
            for value, member in enumerate(kind.split(","), int(first or 0)):
                enum.value.add(name=member, number=value)
            field.type = Kind.TYPE_ENUM
            field.type_name = f".{self._package}.{message.name}.{enum.name}"
