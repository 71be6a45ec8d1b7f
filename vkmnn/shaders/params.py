"""Push constants: one class for each template with parameters, built from its lock entry."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vkmnn.errors import ShaderError
from vkmnn.shader_files.lock import PARAM

_CODES = {"uint": "I", "int": "i", "float": "f"}


class Params:
    """Push constants of a shader; `__slots__` names the fields in the order of the block."""

    __slots__: tuple[str, ...] = ()
    _layout: ClassVar[struct.Struct] = struct.Struct("<")
    _counts: ClassVar[tuple[int, ...]] = ()
    _defaults: ClassVar[Mapping[str, int | float]] = {}
    _has_arrays: ClassVar[bool] = False

    def __init__(self, **values: Any) -> None:
        fields = _FIELDS[type(self)]
        try:
            for name, value in values.items():
                fields[name](self, value)
        except KeyError as error:
            raise TypeError(
                f"{type(self).__name__}() got an unexpected keyword argument {error}"
            ) from None
        if len(values) < len(fields):
            self._fill(values)

    def _fill(self, given: Mapping[str, object]) -> None:
        """Set the fields that are not given to their defaults."""
        missing = [name for name in self.__slots__ if name not in given]
        for name in missing:
            if name not in self._defaults:
                raise TypeError(
                    f"{type(self).__name__}() missing required keyword-only argument: {name!r}"
                )
            _FIELDS[type(self)][name](self, self._defaults[name])

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Params) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = zip(self.__slots__, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"

    def pack(self) -> bytes:
        """Return the block as the shader reads it (std430, little endian).

        Raises:
            ShaderError: an array of the wrong length, or a number out of range.
        """
        values = self._values()
        try:
            return self._layout.pack(*self._flat(values) if self._has_arrays else values)
        except (struct.error, TypeError, OverflowError) as error:
            raise self._refusal(error) from None

    def _flat(self, values: Sequence[object]) -> list[object]:
        flat: list[object] = []
        for value, count in zip(values, self._counts, strict=True):
            if not count:
                flat.append(value)
            elif isinstance(value, tuple) and len(value) == count:
                flat += value
            else:
                raise TypeError
        return flat

    def _refusal(self, error: Exception) -> ShaderError:
        """Raise an error that names the field that could not be packed, with the reason."""
        owner = type(self).__name__
        for name, count, value in zip(self.__slots__, self._counts, self._values(), strict=True):
            if count and not (isinstance(value, tuple) and len(value) == count):
                return ShaderError(
                    f"{owner}.{name} must be a tuple of {count} numbers, not {value!r}"
                )
            if not count and isinstance(value, tuple):
                return ShaderError(f"{owner}.{name} is one number, not a tuple")
        return ShaderError(f"{self!r}: {error}")


_FIELDS: dict[type[Params], dict[str, Any]] = {}
"""Setters of a class's fields: the descriptors of its slots."""


def params_class(name: str, module: str, declared: Sequence[str]) -> type[Params]:
    """Return the class of a parameter block.

    Args:
        name: name of the class.
        module: that the class belongs to.
        declared: the fields as the template declares them: `"n:uint"`, `"steps:uint[3]"`,
            `"alpha:float=1.0"`.
    """
    names, codes, counts = [], ["<"], []
    defaults: dict[str, int | float] = {}
    for text in declared:
        match = PARAM.fullmatch(text)
        assert match is not None, text  # the generator has checked it
        field, kind, count, default = match.groups()
        names.append(field)
        counts.append(int(count or 0))
        codes.append(f"{count or ''}{_CODES[kind]}")
        if default is not None:
            defaults[field] = float(default) if kind == "float" else int(default)
    made = type(
        name,
        (Params,),
        {
            "__slots__": tuple(names),
            "__module__": module,
            "_layout": struct.Struct("".join(codes)),
            "_counts": tuple(counts),
            "_defaults": defaults,
            "_has_arrays": any(counts),
        },
    )
    _FIELDS[made] = {field: getattr(made, field).__set__ for field in names}
    return made
