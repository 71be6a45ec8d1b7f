"""What the parameter blocks of a generated `kernels.py` have in common."""

from __future__ import annotations

import re
import struct

from vkmnn.errors import ShaderError

PACK_ERRORS = (struct.error, TypeError, OverflowError)
"""What packing raises for a value that does not fit its field."""

_CODE = re.compile(r"(\d*)([Iif])")


class Params:
    """Push constants of a shader; `__slots__` names the fields in the order of the block."""

    __slots__: tuple[str, ...] = ()

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
        raise NotImplementedError


def array(values: object, count: int) -> tuple[int | float, ...]:
    """Return `values`; raises TypeError when it is not a tuple of `count`."""
    if isinstance(values, tuple) and len(values) == count:
        return values
    raise TypeError


def params_error(params: Params, layout: struct.Struct, error: Exception) -> ShaderError:
    """Say which field of a block could not be packed, and why."""
    owner = type(params).__name__
    for name, (count, _) in zip(params.__slots__, _CODE.findall(layout.format), strict=True):
        value = getattr(params, name)
        if count and not (isinstance(value, tuple) and len(value) == int(count)):
            return ShaderError(f"{owner}.{name} must be a tuple of {count} numbers, not {value!r}")
        if not count and isinstance(value, tuple):
            return ShaderError(f"{owner}.{name} is one number, not a tuple")
    return ShaderError(f"{params!r}: {error}")
