"""Attributes of ops as values of the model file, and back, by the declarations of their classes.

An op needs no code of its own: its attributes are a frozen dataclass of numbers, strings, bytes,
choices, records and tuples of them, which are checked against the declaration when they are read.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union

import numpy as np

from vkmnn.errors import ConversionError, ModelError
from vkmnn.ir import OpAttrs
from vkmnn.schema.bindings import each, integers, text, texts
from vkmnn.schema.vkmnn_generated import Kind, Value

_KINDS = {number: name for name, number in vars(Kind).items() if name.isupper()}
_DEEPEST = 16
_INT64 = range(-(1 << 63), 1 << 63)


class UnstorableError(ConversionError):
    """A value of a type that the model file does not have."""


def encode(value: Any) -> dict[str, Any]:
    """Return a value as the fields of a `Value` table.

    Raises:
        UnstorableError: it is of a type that the file does not have.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return {}
    if isinstance(value, enum.Enum):
        return {"kind": Kind.CHOICE, "text": value.name}
    if isinstance(value, bool):
        return {"kind": Kind.BOOL, "integer": int(value)}
    if isinstance(value, int):
        if value not in _INT64:
            raise UnstorableError(f"the integer {value} takes more than 64 bits")
        return {"kind": Kind.INTEGER, "integer": value}
    if isinstance(value, float):
        return {"kind": Kind.REAL, "real": value}
    if isinstance(value, str):
        return {"kind": Kind.TEXT, "text": value}
    if isinstance(value, bytes):
        return {"kind": Kind.BYTES, "data": value}
    if isinstance(value, tuple):
        return _encode_tuple(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return {
            "kind": Kind.RECORD,
            "text": type(value).__name__,
            "names": names,
            "items": [encode(getattr(value, name)) for name in names],
        }
    raise UnstorableError(f"a value of type {type(value).__name__} cannot be stored")


def _encode_tuple(value: tuple[Any, ...]) -> dict[str, Any]:
    if value and all(type(item) is int and item in _INT64 for item in value):
        return {"kind": Kind.INTEGERS, "integers": value}
    if value and all(type(item) is float for item in value):
        return {"kind": Kind.REALS, "reals": value}
    return {"kind": Kind.LIST, "items": [encode(item) for item in value]}


def decode_attrs(table: Value, cls: type[OpAttrs], op: str) -> OpAttrs:
    """Return the attributes of an op of a type.

    Raises:
        ModelError: they contradict the declarations of the class.
    """
    try:
        result = _decode(table, cls, 0)
    except _MismatchError as error:
        raise ModelError(
            f"its attributes in the file do not fit: {error}",
            op=op,
            hint="the file is damaged, or a newer vkmnn or plug-in wrote it; convert it again",
        ) from error
    assert isinstance(result, OpAttrs)
    return result


class _MismatchError(Exception):
    """A value is not of the type that its class declares."""


@cache
def _declared(cls: type) -> Mapping[str, Any]:
    """Return the fields of a dataclass and their types."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _decode(table: Value, hint: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise _MismatchError("values contain each other")
    kind = _KINDS.get(table.Kind(), "?")
    if isinstance(hint, type) and is_dataclass(hint):
        return _decode_record(table, hint, kind, depth)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _decode_tuple(table, typing.get_args(hint), kind, depth)
    if origin in (Union, types.UnionType):
        return _decode_union(table, typing.get_args(hint), kind, depth)
    if isinstance(hint, type) and issubclass(hint, enum.Enum) and kind == "CHOICE":
        name = text(table.Text())
        if name in hint.__members__:
            return hint[name]
        raise _MismatchError(f"{hint.__name__} has no {name!r}")
    if origin is Literal and (value := _plain(table, kind)) in typing.get_args(hint):
        return value
    if kind in _ALLOWED.get(hint, ()):
        return _plain(table, kind)
    raise _MismatchError(f"{kind} where {getattr(hint, '__name__', hint)} is declared")


_ALLOWED: Mapping[Any, Sequence[str]] = {
    bool: ("BOOL",),
    int: ("INTEGER", "BOOL"),
    float: ("REAL", "INTEGER", "BOOL"),
    str: ("TEXT",),
    bytes: ("BYTES",),
    type(None): ("NONE",),
}
"""Kinds of values accepted for a declared type, as Python's number types nest."""


def _plain(table: Value, kind: str) -> Any:
    if kind == "BOOL":
        return table.Integer() != 0
    if kind == "INTEGER":
        return table.Integer()
    if kind == "REAL":
        return table.Real()
    if kind == "TEXT":
        return text(table.Text())
    if kind == "BYTES":
        return b"" if table.DataIsNone() else table.DataAsNumpy().tobytes()
    return None


def _decode_record(table: Value, cls: type, kind: str, depth: int) -> Any:
    declared = _declared(cls)
    names = texts(table.Names, table.NamesLength())
    items, stored = each(table.Items, table.ItemsLength()), text(table.Text())
    if kind != "RECORD" or stored != cls.__name__ or len(names) != len(items):
        raise _MismatchError(f"{kind} {stored} where {cls.__name__} is declared")
    unknown = [name for name in names if name not in declared]
    if unknown or len(set(names)) != len(names):
        raise _MismatchError(f"{cls.__name__} has no field {unknown[0] if unknown else 'twice'}")
    pairs = zip(names, items, strict=True)
    values = {name: _decode(item, declared[name], depth + 1) for name, item in pairs}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:  # a field without a default is missing
        raise _MismatchError(f"{cls.__name__}: {error}") from error


def _decode_tuple(table: Value, hints: tuple[Any, ...], kind: str, depth: int) -> tuple[Any, ...]:
    variadic = len(hints) == 2 and hints[1] is Ellipsis
    if kind == "INTEGERS" and all(hint in (int, float, Ellipsis) for hint in hints):
        found = tuple(integers(table.IntegersAsNumpy()))
    elif kind == "REALS" and all(hint in (float, Ellipsis) for hint in hints):
        found = () if table.RealsIsNone() else tuple(table.RealsAsNumpy().tolist())
    elif kind == "LIST":
        items = each(table.Items, table.ItemsLength())
        wanted = [hints[0]] * len(items) if variadic else list(hints)
        if len(wanted) != len(items):
            raise _MismatchError(f"{len(items)} values where {len(wanted)} are declared")
        pairs = zip(items, wanted, strict=True)
        return tuple(_decode(item, hint, depth + 1) for item, hint in pairs)
    else:
        raise _MismatchError(f"{kind} where a tuple is declared")
    if not variadic and len(found) != len(hints):
        raise _MismatchError(f"{len(found)} numbers where {len(hints)} are declared")
    return found


def _decode_union(table: Value, hints: tuple[Any, ...], kind: str, depth: int) -> Any:
    for exact in (True, False):
        for hint in hints:
            if exact and kind not in _ALLOWED.get(hint, (kind,))[:1]:
                continue
            try:
                return _decode(table, hint, depth + 1)
            except _MismatchError:
                continue
    raise _MismatchError(f"{kind} is none of the declared types")
