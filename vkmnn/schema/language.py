"""The part of the schema language of FlatBuffers that our schemas need.

Tables, enums and unions; scalars, strings, tables, and vectors of them. Fields are numbered in
their order, a union counts twice. Everything else, structs and attributes among it, is refused: a
field that is skipped would shift those after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from vkmnn.errors import PluginError

SCALARS = {
    "bool": "?", "ubyte": "B", "byte": "b", "int8": "b", "ushort": "H", "short": "h",
    "uint": "I", "uint32": "I", "int": "i", "int32": "i", "ulong": "Q", "long": "q",
    "int64": "q", "float": "f", "double": "d",
}  # fmt: skip
"""Types of scalars, and how `struct` calls them."""

Default = int | float | bool


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table.

    Attributes:
        slot: its number in the table, which counts from 0.
        code: how `struct` calls the scalar, or the elements of the vector; "" for others.
        table: the type where it is a table or a vector of tables; of a union, the union's name.
        form: scalar, text, table, union, or vector, texts, tables.
        default: the value of an absent scalar.
    """

    name: str
    slot: int
    code: str
    table: str
    form: str
    default: Default = 0


@dataclass(frozen=True)
class Schema:
    """Tables by name, their fields by name; enums and unions with their members."""

    tables: Mapping[str, Mapping[str, Field]]
    enums: Mapping[str, Mapping[str, int]]
    unions: Mapping[str, tuple[str, ...]]
    root: str
    identifier: bytes

    @cached_property
    def slots(self) -> Mapping[str, int]:
        """Number of slots of each table: a union takes two."""
        return {
            kind: max((f.slot + 1 + (f.form == "union") for f in fields.values()), default=0)
            for kind, fields in self.tables.items()
        }


@cache
def load_schema(name: str) -> Schema:
    """Return one of the schemas next to this module."""
    return parse_schema((files(__package__) / f"{name}.fbs").read_text("utf-8"))


_BLOCK = re.compile(r"\b(table|enum|union)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{([^}]*)\}")
_DIRECTIVE = re.compile(r"\b(namespace|root_type|file_identifier|file_extension)\s+[\w.\"]+\s*;")
_MEMBER = re.compile(r"\s*(\w+)\s*(?:=\s*(-?\d+)\s*)?(?:,|$)")
_FIELD = re.compile(r"(\w+)\s*:\s*(?:\[\s*(\w+)\s*\]|(\w+))\s*(?:=\s*([-\w.]+)\s*)?;")


def parse_schema(text: str) -> Schema:
    """Return the schema that a text describes.

    Raises:
        PluginError: a field is of a type that is not there, or the text has something else in it.
    """
    text = re.sub(r"//[^\n]*", "", text)
    _refuse_rest("a schema", _DIRECTIVE.sub("", _BLOCK.sub("", text)))
    blocks = [match.groups() for match in _BLOCK.finditer(text)]
    enums = {name: _members(name, body) for kind, name, _, body in blocks if kind == "enum"}
    bases = {name: base for kind, name, base, _ in blocks if kind == "enum"}
    unions = {
        name: ("", *_members(name, body)) for kind, name, _, body in blocks if kind == "union"
    }
    names = {name for kind, name, *_ in blocks if kind == "table"}
    if len({name for _, name, *_ in blocks}) != len(blocks):
        raise PluginError("a schema declares one name twice")
    odd = [name for name, base in bases.items() if SCALARS.get(base, "?") in "?fd"]
    odd += [name for kind, name, base, _ in blocks if base and kind != "enum"]
    if odd:
        raise PluginError(f"{odd[0]} has no type, or one that it cannot have")
    tables = {
        name: _fields(name, body, names, unions, bases, enums)
        for kind, name, _, body in blocks
        if kind == "table"
    }
    root = re.search(r"root_type\s+(\w+)\s*;", text)
    identifier = re.search(r'file_identifier\s+"(\w+)"\s*;', text)
    if root and root[1] not in tables:
        raise PluginError(f"the root of a schema, {root[1]}, is not a table")
    return Schema(
        tables,
        enums,
        unions,
        root[1] if root else "",
        identifier[1].encode() if identifier else b"",
    )


def _refuse_rest(where: str, rest: str) -> None:
    if rest.strip():
        raise PluginError(f"{where} has {rest.strip()[:60]!r} , which is not understood")


def _members(name: str, body: str) -> dict[str, int]:
    members: dict[str, int] = {}
    _refuse_rest(name, _MEMBER.sub("", body))
    number = 0
    for member, value in _MEMBER.findall(body):
        number = int(value) if value else number
        members[member] = number
        number += 1
    return members


def _fields(
    table: str,
    body: str,
    tables: set[str],
    unions: Mapping[str, tuple[str, ...]],
    bases: Mapping[str, str],
    enums: Mapping[str, Mapping[str, int]],
) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    slot = 0
    _refuse_rest(table, _FIELD.sub("", body))
    for name, item, single, default in _FIELD.findall(body):
        bracket, kind = bool(item), item or single
        code = SCALARS.get(bases.get(kind, kind), "")
        if code:
            form = "vector" if bracket else "scalar"
        elif kind == "string":
            form = "texts" if bracket else "text"
        elif kind in unions and not bracket:
            form = "union"
        elif kind in tables:
            form = "tables" if bracket else "table"
        else:
            raise PluginError(f"field {table}.{name} is of type {kind}, which is not declared")
        if name in fields:
            raise PluginError(f"field {table}.{name} is declared twice")
        try:
            value = _default(default, code, enums.get(kind, {}))
        except ValueError as error:
            raise PluginError(f"field {table}.{name} has the default {default}") from error
        if default and form != "scalar":
            raise PluginError(f"field {table}.{name} is not a scalar, and has a default")
        fields[name] = Field(name, slot, code, "" if code else kind, form, value)
        slot += 2 if form == "union" else 1
    return fields


def _default(text: str, code: str, members: Mapping[str, int]) -> Default:
    if not text:
        return False if code == "?" else 0
    if text in members:
        return members[text]
    if code == "?":
        return ("false", "true").index(text) == 1
    return float(text) if code in ("f", "d") else int(text)
