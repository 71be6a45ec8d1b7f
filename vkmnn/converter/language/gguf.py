"""GGUF files: keys with values, tensors by name, then their data."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.language.blocks import GGUF_TYPES, OTHER_TYPES
from vkmnn.converter.language.stored import LARGEST, StoredTensor, version_of
from vkmnn.errors import ModelFileError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
            10: "<u8", 11: "<i8", 12: "<f8"}  # fmt: skip
_FLAG, _TEXT, _ARRAY = 7, 8, 9
_MAX_ITEMS = 1 << 22
"""Texts of an array; vocabularies have a quarter of a million."""
_MAX_TEXT = 1 << 24
_MAX_AXES = 4
_SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class Gguf:
    """Content of GGUF files.

    Attributes:
        path: the path of the first file.
        keys: values by key: numbers, texts, lists of texts, arrays of numbers.
        tensors: tensors by name.
        others: the types of tensors that are not read, by name.
    """

    path: Path
    keys: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    others: Mapping[str, str]


def read_gguf(path: Path) -> Gguf:
    """Read keys and tensor offsets of a file, and of its other parts if it is split.

    Raises:
        ModelFileError: a file is missing, damaged, of another version or byte order.
    """
    first = _read_one(path)
    count = first.keys.get("split.count", 1)
    match = _SPLIT.fullmatch(path.name)
    if not isinstance(count, int) or count <= 1:
        return first
    if match is None or int(match["count"]) != count:
        raise ModelFileError(
            f"'{path}' is one of {count} files, but its name does not say so",
            hint="files of a split model are called NAME-00001-of-00003.gguf and so on",
        )
    names = [f"{match['stem']}-{one:05}-of-{count:05}.gguf" for one in range(1, count + 1)]
    parts = [first if name == path.name else _read_one(path.with_name(name)) for name in names]
    tensors: dict[str, StoredTensor] = {}
    others: dict[str, str] = {}
    for part in parts:
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise _damaged(part.path, f"tensor '{min(twice)[:200]}' is in another file, too")
        tensors |= part.tensors
        others |= part.others
    return replace(parts[0], tensors=tensors, others=others)


def _read_one(path: Path) -> Gguf:
    try:
        with path.open("rb") as file:
            return _Reader(path, file, version_of(file)).read()
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{path}' cannot be read: {error}",
            hint="check the path and its permissions; a split model needs all its files",
        ) from error


def _damaged(path: Path, what: str) -> ModelFileError:
    return ModelFileError(
        f"'{path}' is damaged: {what}",
        hint="the download did not finish, or the file was written wrongly",
    )


class _Reader:
    """Reads a file from its start; raises if the file is too short."""

    def __init__(self, path: Path, file: BufferedReader, version: tuple[int, int]) -> None:
        self._path, self._file, self._version = path, file, version
        self._size, self._at = version[0], 0

    def read(self) -> Gguf:
        if self._take(4) != MAGIC:
            raise ModelFileError(f"'{self._path}' is not a GGUF file", hint="check the path")
        version = self._whole(4)
        if version not in _VERSIONS:
            swapped = version & 0xFFFF == 0 and version
            what = "has big-endian numbers" if swapped else f"has version {version}"
            raise ModelFileError(
                f"'{self._path}' {what}; version {' and '.join(map(str, _VERSIONS))} with "
                "little-endian numbers is read",
                hint="convert the model again with a current converter",
            )
        tensors, count = self._whole(8), self._whole(8)
        if tensors * 24 > self._size or count * 12 > self._size:
            raise self._wrong(f"{tensors} tensors and {count} keys do not fit into it")
        keys: dict[str, Any] = {}
        for _ in range(count):
            key = self._text()
            if key in keys:
                raise self._wrong(f"key '{key[:200]}' occurs twice")
            keys[key] = self._value(self._whole(4))
        entries = [self._entry() for _ in range(tensors)]
        step = keys.get("general.alignment", 32)
        if type(step) is not int or not 0 < step <= 1 << 20 or step & (step - 1):
            raise self._wrong(f"general.alignment is {step!r:.60}")
        start = -(-self._at // step) * step
        found: dict[str, StoredTensor] = {}
        others: dict[str, str] = {}
        for name, shape, number, offset in entries:
            if name in found or name in others:
                raise self._wrong(f"tensor '{name[:200]}' occurs twice")
            kind = GGUF_TYPES.get(number)
            if kind is None:
                others[name] = OTHER_TYPES.get(number, f"type {number}")
                continue
            if offset % step:
                raise self._wrong(f"tensor '{name[:200]}' is not aligned")
            found[name] = StoredTensor(self._path, name, kind, shape, start + offset, self._version)
            found[name].check(self._size)
        return Gguf(self._path, keys, found, others)

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        rank = self._whole(4)
        if not 1 <= rank <= _MAX_AXES:
            raise self._wrong(f"tensor '{name[:200]}' has {rank} axes")
        shape = tuple(self._whole(8) for _ in range(rank))[::-1]  # the fastest comes first
        number, offset = self._whole(4), self._whole(8)
        if offset > LARGEST:
            raise self._wrong(f"tensor '{name[:200]}' lies at {offset}")
        return name, shape, number, offset

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._numbers(kind, 1)[0].item()
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise self._wrong(f"a value has the type {kind}")
        inner, count = self._whole(4), self._whole(8)
        if inner in _NUMBERS:
            return self._numbers(inner, count)
        if inner != _TEXT:  # arrays of arrays do not occur
            raise self._wrong(f"an array has elements of the type {inner}")
        if count > min(_MAX_ITEMS, (self._size - self._at) // 8):
            raise self._wrong(f"an array of {count} texts")
        return [self._text() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> Any:
        dtype = np.dtype(_NUMBERS[kind])
        if count > (self._size - self._at) // dtype.itemsize:
            raise self._wrong(f"an array of {count} numbers")
        data = self._take(count * dtype.itemsize)
        if kind == _FLAG:  # any byte except 0 and 1 in an array of bool makes results undefined
            return np.frombuffer(data, np.uint8) != 0
        return np.frombuffer(data, dtype)

    def _text(self) -> str:
        count = self._whole(8)
        if count > _MAX_TEXT:
            raise self._wrong(f"a text of {count} bytes")
        return self._take(count).decode("utf-8", "replace")

    def _whole(self, width: int) -> int:
        return int.from_bytes(self._take(width), "little")

    def _take(self, count: int) -> bytes:
        if count > self._size - self._at:
            raise self._wrong("it ends too early")
        data = self._file.read(count)
        if len(data) != count:
            raise self._wrong("it became shorter while it was read")
        self._at += count
        return data

    def _wrong(self, what: str) -> ModelFileError:
        return _damaged(self._path, what)


def is_gguf(start: bytes) -> bool:
    """Return whether the first bytes of a file are those of a GGUF file."""
    return start[:4] == MAGIC and len(start) >= 8 and struct.unpack("<I", start[4:8])[0] > 0
