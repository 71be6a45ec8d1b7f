"""Companion files of a model file: external data, weights, further parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vkmnn.errors import ModelError, ModelFileError

MAX_FILES = 1000
_LARGEST_TABLE = 256 << 20
"""Larger .vkmnn files contain their weights."""

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_CAFFE = {".prototxt": ".caffemodel", ".caffemodel": ".prototxt"}


class Companion(NamedTuple):
    """A companion file: its path relative to the model, and whether it is required."""

    path: str
    needed: bool


def companions(file: Path) -> list[Companion]:
    """Return the companion files of a model file that has been downloaded.

    Raises:
        ModelFileError: it names files outside its folder, or too many.
    """
    suffix = file.suffix.lower()
    found: dict[str, Companion] = {}
    for one in _FINDERS[suffix](file) if suffix in _FINDERS else ():
        _check(one.path, file)
        found[one.path] = one
        if len(found) > MAX_FILES:
            raise ModelFileError(f"'{file.name}' has external data in more than {MAX_FILES} files")
    return list(found.values())


def _check(name: str, file: Path) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or re.search(r"[\\:\0]", name) or not path.name:
        raise ModelFileError(
            f"'{file.name}' has external data in '{name[:200]}', outside its folder",
            hint="the file may be malicious",
        )


def _onnx(file: Path) -> Iterator[Companion]:
    from vkmnn.converter.onnx.external import external_names

    try:
        names = external_names(file)
    except ModelError:  # opening the file reports the error
        return
    for name in names:
        yield Companion(name, True)


def _native(file: Path) -> Iterator[Companion]:
    from vkmnn.converter.native.read import open_buffer

    if file.stat().st_size > _LARGEST_TABLE:
        return
    try:
        *_, name = open_buffer(memoryview(file.read_bytes()))
    except ModelError:
        return
    if name:
        yield Companion(name, True)


def _caffe(file: Path) -> Iterator[Companion]:
    yield Companion(file.with_suffix(_CAFFE[file.suffix.lower()]).name, True)


def _mnn(file: Path) -> Iterator[Companion]:
    yield Companion(f"{file.name}.weight", False)


def _gguf(file: Path) -> Iterator[Companion]:
    """Return the other parts of a split GGUF file."""
    match = _PART.search(file.name)
    if match is not None:
        stem, count = file.name[: match.start()], int(match[2])
        for number in range(1, min(count, MAX_FILES) + 1):
            if number != int(match[1]):
                yield Companion(f"{stem}-{number:05}-of-{match[2]}.gguf", True)


_FINDERS = {
    ".onnx": _onnx,
    ".vkmnn": _native,
    ".prototxt": _caffe,
    ".caffemodel": _caffe,
    ".mnn": _mnn,
    ".gguf": _gguf,
}
