"""The safetensors format: a length, a header in JSON, then the data of all tensors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from vkmnn.converter.language.blocks import BF16, F16, F32, F64, U8
from vkmnn.converter.language.folder_experts import with_experts
from vkmnn.converter.language.stored import LARGEST, StoredTensor, version_of
from vkmnn.errors import ModelFileError

INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000
_TYPES = {one.name: one for one in (F16, BF16, F32, F64, U8)}
_WIDTHS = {"BOOL": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2,
           "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8, "C64": 8}  # fmt: skip
"""Bytes of elements of unsupported types."""


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a file, those of bytes among them, and the types of unsupported ones.

    Raises:
        ModelFileError: it is missing, damaged, or something else.
    """
    try:
        with path.open("rb") as file:
            size, _ = version = version_of(file)
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise _damaged(path, f"its header has {length} bytes, the file {size}")
            text = file.read(length)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{path}' cannot be read: {error}", hint="check the path and its permissions"
        ) from error
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not an object")
    found: dict[str, StoredTensor] = {}
    others: dict[str, str] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, span = _entry(path, name, entry)
        begin, end = span
        width = _WIDTHS.get(dtype) or (_TYPES[dtype].nbytes if dtype in _TYPES else None)
        if width is not None and prod(shape) * width != end - begin:
            raise _damaged(path, f"tensor '{name[:200]}' has {end - begin} bytes")
        if not 0 <= begin <= end <= size - 8 - length:
            raise _damaged(path, f"tensor '{name[:200]}' ends past the end of the file")
        spans.append(span)
        if dtype in _TYPES:
            found[name] = StoredTensor(
                path, name, _TYPES[dtype], shape, 8 + length + begin, version
            )
            found[name].check(size)
        else:
            others[name] = dtype
    spans.sort()
    if any(before[1] > after[0] for before, after in itertools.pairwise(spans)):
        raise _damaged(path, "tensors overlap")
    return found, others


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        name.encode()
        whole = [*shape, begin, end]
        if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > 8:
            raise TypeError("no tensor")
        if any(type(one) is not int or not 0 <= one < LARGEST for one in whole):
            raise TypeError("a number is out of its range")
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(path, f"its entry for '{name[:200]!a}' is not valid: {error}") from error
    return dtype, tuple(shape), (begin, end)


def read_folder(folder: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of all safetensors files of a folder, and the types of unsupported ones.

    Raises:
        ModelFileError: a file is missing or damaged.
    """
    names = files_of(folder)
    found: dict[str, StoredTensor] = {}
    others: dict[str, str] = {}
    for name in names:
        tensors, rest = read_header(folder / name)
        found |= tensors
        others |= rest
    found, unread = with_experts(found)
    return found, others | unread


def files_of(folder: Path) -> list[str]:
    """Return the names of the files with a folder's weights; empty if it has none.

    Raises:
        ModelFileError: the index is damaged.
    """
    index = folder / INDEX
    if index.is_file():
        return _sharded(index)
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"]
    parts = sorted(path.name for path in folder.glob("model-*-of-*.safetensors"))
    return parts or sorted(path.name for path in folder.glob("*.safetensors"))[:1]


def _sharded(index: Path) -> list[str]:
    try:
        if index.stat().st_size > _MAX_HEADER:
            raise _damaged(index, "it is too large")
        whole = json.loads(index.read_bytes())
        places: Mapping[str, str] = whole["weight_map"]
        names: list[Any] = sorted(set(places.values()))
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(index, f"{type(error).__name__}: {error}") from error
    for name in names:
        if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name:
            raise _damaged(index, f"{str(name)[:200]!a} is not a file in the folder")
    return names


def _damaged(path: Path, what: str) -> ModelFileError:
    return ModelFileError(
        f"'{path}' is damaged: {what}",
        hint="the download did not finish, or it is not a file of safetensors",
    )
