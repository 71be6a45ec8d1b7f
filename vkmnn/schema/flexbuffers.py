"""FlexBuffers, self-describing values; every offset is checked.

The root is the value before the last two bytes, which hold its type and its width.
"""

from __future__ import annotations

import struct
from typing import Any

from vkmnn.errors import ModelError

_DEEPEST = 8
_MOST = 1 << 16
_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING = 0, 1, 2, 3, 4, 5
_FIRST_INDIRECT, _LAST_INDIRECT = 6, 8
_MAP, _VECTOR = 9, 10
_TYPED, _TYPED_END, _FIXED, _FIXED_END = 11, 15, 16, 24
_BLOB, _BOOL, _BOOLS = 25, 26, 36
_FORMATS = {_INT: "bhiq", _UINT: "BHIQ", _BOOL: "BHIQ", _FLOAT: " efd"}


def read_flexbuffer(data: bytes) -> Any:
    """Return the content of a FlexBuffer: numbers, strings, bytes, lists, and dicts.

    Raises:
        ModelError: the buffer is damaged, or nests too deeply.
    """
    if len(data) < 3:
        raise _damaged(f"it has {len(data)} bytes")
    width, packed = data[-1], data[-2]
    if width not in (1, 2, 4, 8):
        raise _damaged(f"its root has a width of {width} bytes")
    return _Reader(data).value(len(data) - 2 - width, width, packed, 0)


def _damaged(reason: str) -> ModelError:
    return ModelError(f"its options, a FlexBuffer, are damaged: {reason}")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = _MOST

    def number(self, at: int, width: int, kind: int) -> Any:
        if at < 0 or at + width > len(self.data):
            raise _damaged(f"{width} bytes at {at} lie outside its {len(self.data)} bytes")
        form = _FORMATS[kind][width.bit_length() - 1]
        if form == " ":
            raise _damaged("it has a float of one byte")
        return struct.unpack_from(f"<{form}", self.data, at)[0]

    def follow(self, at: int, width: int) -> int:
        place = at - int(self.number(at, width, _UINT))
        if not 0 <= place < at:
            raise _damaged(f"the offset at {at} leads outside")
        return place

    def value(self, at: int, width: int, packed: int, depth: int) -> Any:
        self.left -= 1
        if depth > _DEEPEST or self.left < 0:
            raise _damaged("its parts contain each other")
        kind, inner = packed >> 2, 1 << (packed & 3)
        if kind == _NULL:
            return None
        if kind in _FORMATS:
            found = self.number(at, width, kind)
            return bool(found) if kind == _BOOL else found
        to = self.follow(at, width)
        if _FIRST_INDIRECT <= kind <= _LAST_INDIRECT:
            return self.number(to, inner, kind - _FIRST_INDIRECT + _INT)
        if kind == _KEY:
            return self.key(to)
        if kind in (_STRING, _BLOB):
            raw = self.bytes(to, int(self.number(to - inner, inner, _UINT)))
            return raw if kind == _BLOB else raw.decode("utf-8", "replace")
        if kind == _MAP:
            return self.map(to, inner, depth)
        return self.items(to, inner, kind, depth)

    def bytes(self, at: int, size: int) -> bytes:
        if at + size > len(self.data):
            raise _damaged(f"{size} bytes at {at} lie outside its {len(self.data)} bytes")
        self.left -= size // 16
        return self.data[at : at + size]

    def key(self, at: int) -> str:
        end = self.data.find(b"\0", at)
        if end < 0:
            raise _damaged(f"the key at {at} has no end")
        return self.bytes(at, end - at).decode("utf-8", "replace")

    def items(self, at: int, width: int, kind: int, depth: int) -> list[Any]:
        if _FIXED <= kind < _FIXED_END + 1:
            count = (kind - _FIXED) // 3 + 2
            kind = (kind - _FIXED) % 3 + _INT
        elif kind in (_VECTOR, _BOOLS) or _TYPED <= kind <= _TYPED_END:
            count = int(self.number(at - width, width, _UINT))
            kind = {_VECTOR: -1, _BOOLS: _BOOL}.get(kind, kind - _TYPED + _INT)
        else:
            raise _damaged(f"it has a value of type {kind}")
        if count > self.left or at + count * width > len(self.data):
            raise _damaged(f"{count} items at {at} lie outside its {len(self.data)} bytes")
        types = self.bytes(at + count * width, count) if kind < 0 else bytes([kind << 2]) * count
        return [self.value(at + n * width, width, types[n], depth + 1) for n in range(count)]

    def map(self, at: int, width: int, depth: int) -> dict[str, Any]:
        keys = self.follow(at - 3 * width, width)
        keys_width = int(self.number(at - 2 * width, width, _UINT))
        if keys_width not in (1, 2, 4, 8):
            raise _damaged(f"its keys have a width of {keys_width} bytes")
        names = self.items(keys, keys_width, _KEY - _INT + _TYPED, depth)
        values = self.items(at, width, _VECTOR, depth)
        if len(names) != len(values):
            raise _damaged(f"a map has {len(names)} keys and {len(values)} values")
        return dict(zip(map(str, names), values, strict=True))
