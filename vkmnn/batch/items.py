"""Inputs of `vkmnn map`: files, patterns, folders, lists, tar archives, Parquet and JSON lines."""

from __future__ import annotations

import glob
import json
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkmnn.base.extras import need
from vkmnn.base.media import PICTURES, has_suffix
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError

ARRAYS = frozenset({".npy", ".npz"})
_MEDIA = PICTURES | ARRAYS
_PICTURE_KEYS = ("image", "picture", "img", "path", "file", "bytes")
"""Keys of rows that hold a picture or its path, in the order in which they are tried."""
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_DAMAGED = (OSError, ValueError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError)
"""Errors of files that hold several items and are damaged; pyarrow's are ValueErrors."""
_ROWS = 64
"""Rows of a Parquet file that are read at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One input of a job.

    Attributes:
        name: its path, that of its archive and member, or its file and row.
        value: a path, the bytes of a file, a row by name, or the error of reading it.
        suffix: the suffix of the file, for bytes.
        key: its name, with a number from the second item of that name on.
    """

    name: str
    value: Path | bytes | Mapping[str, Any] | InvalidInputError
    suffix: str = ""
    key: str = ""


def expanded(texts: Sequence[str]) -> list[str]:
    """Return the files that inputs name, in order.

    Args:
        texts: paths, patterns, folders (with their subfolders), and `@FILE` for lists with one of
            these a line.

    Raises:
        InvalidInputError: a path does not exist, or a pattern, list or folder stands for nothing.
    """
    return [file for text in texts for file in _expanded(text)]


def _expanded(text: str) -> list[str]:
    path = Path(text)
    if text.startswith("@") and not path.exists():
        lines = _text_of(Path(text[1:])).splitlines()
        found = [file for line in lines if line.strip() for file in _listed(line.strip())]
    elif path.is_dir():
        found = sorted(_walked(path))
    elif path.exists():
        return [text]
    elif glob.has_magic(text):
        matches = glob.glob(text, recursive=True)  # noqa: PTH207 - absolute ones too
        found = sorted(one for one in matches if not Path(one).is_dir())
    else:
        raise InvalidInputError(f"'{text}' does not exist", hint="check the path")
    if not found:
        raise InvalidInputError(f"'{text}' stands for no file", hint="check the path")
    return found


def _walked(folder: Path) -> Iterator[str]:
    """Yield the items and archives in a folder, and subfolders that cannot be read."""
    closed: list[str] = []
    for place, _, names in os.walk(folder, onerror=lambda error: closed.append(error.filename)):
        for name in names:
            if has_suffix(Path(name), _MEDIA) or name.lower().endswith(_ARCHIVES):
                yield str(Path(place, name))
    yield from closed


def _listed(line: str) -> list[str]:
    """Return the files of a line; one that does not exist becomes an item that fails."""
    return _expanded(line) if glob.has_magic(line) or Path(line).is_dir() else [line]


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"'{path}' cannot be read: {error}", hint="give a list: a text file, one path a line"
        ) from error


def items_of(files: Sequence[str], done: frozenset[str] = frozenset()) -> Iterator[Item]:
    """Yield the items of files, except those whose keys are done; members of archives are read."""
    seen: dict[str, int] = {}
    for file in files:
        read = _READERS.get(_suffix(file), _single)
        for name, made in _guarded(file, read):
            name = name.encode("utf-8", "backslashreplace").decode()  # bytes that are no text
            count = seen[name] = seen.get(name, 0) + 1
            key = name if count == 1 else f"{name}#{count}"
            if key not in done:
                item = _read(file, made)
                yield Item(name, item.value, item.suffix, key)


def counted(files: Sequence[str]) -> int:
    """Return the number of items in files; archives are read through once."""
    return sum(
        sum(1 for _ in _guarded(file, _READERS[_suffix(file)])) if _suffix(file) in _READERS else 1
        for file in files
    )


def _suffix(file: str) -> str:
    lower = file.lower()
    if not lower.endswith(_ENDS):
        return ""
    return next(one for one in _READERS if lower.endswith(one))


Entry = tuple[str, Callable[[], Item]]
"""A name, and the function that reads the item."""


def _guarded(file: str, read: Callable[[str], Iterator[Entry]]) -> Iterator[Entry]:
    """Yield what a file holds; where it is damaged, an item that fails comes last."""
    try:
        if read is not _single and Path(file).exists() and not Path(file).is_file():
            raise ValueError("it is no file")
        yield from read(file)
    except _DAMAGED as error:
        failed = _unreadable(file, error)
        yield file, lambda: failed


def _read(file: str, made: Callable[[], Item]) -> Item:
    try:
        return made()
    except _DAMAGED as error:
        return _unreadable(file, error)


def _unreadable(file: str, error: Exception) -> Item:
    reason = f"'{file}' cannot be read further: {error}"
    return Item(file, InvalidInputError(reason, hint="check that the file is whole"))


def _single(file: str) -> Iterator[Entry]:
    yield file, lambda: Item(file, Path(file))


def _members(file: str) -> Iterator[Entry]:
    """Yield the pictures and arrays of a tar archive, such as a shard of WebDataset."""
    with tarfile.open(file, "r:*") as archive:
        for member in archive:
            if not member.isfile() or not has_suffix(member.name, _MEDIA):
                continue

            def read(member: tarfile.TarInfo = member) -> Item:
                stream = archive.extractfile(member)
                data = b"" if stream is None else stream.read()
                if len(data) < member.size:
                    raise tarfile.ReadError("unexpected end of data")
                return Item(file, data, Path(member.name).suffix.lower())

            yield f"{file}/{member.name}", read
        stream = archive.fileobj
        if stream is not None:  # tarfile takes the end of the file for that of the archive
            stream.seek(archive.offset)
            if not stream.read(1):
                raise tarfile.ReadError("the archive ends without a mark, as if cut off")


def _lines(file: str) -> Iterator[Entry]:
    """Yield the lines of a JSON-lines file: objects, or paths."""
    with Path(file).open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue

            def read(line: bytes = line) -> Item:
                try:
                    return Item(file, *_row(json.loads(line)))
                except (ValueError, RecursionError, InvalidInputError) as error:
                    return Item(file, InvalidInputError(f"the line is no item: {error}"))

            yield f"{file}:{number}", read


def _rows(file: str) -> Iterator[Entry]:
    """Yield the rows of a Parquet file."""
    parquet = need("pyarrow.parquet", "reading Parquet", "map")
    number = 0
    with parquet.ParquetFile(file) as table:
        for group in table.iter_batches(batch_size=_ROWS):
            for row in range(group.num_rows):
                number += 1

                def read(group: Any = group, row: int = row) -> Item:
                    try:
                        return Item(file, *_row(group.slice(row, 1).to_pylist()[0]))
                    except InvalidInputError as error:
                        return Item(file, error)

                yield f"{file}:{number}", read


def _row(value: Any) -> tuple[Path | bytes | Mapping[str, Any], str]:
    """Return value and suffix of a row: a picture, its path, or values of inputs by name."""
    if isinstance(value, str):
        return Path(value), ""
    if isinstance(value, bytes):
        return value, ""
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            f"a row is an object or a path, not {type(value).__name__}",
            hint='for example {"image": "a.jpg"}, or {"x": [1, 2, 3]} for an input x',
        )
    for key in _PICTURE_KEYS:
        held = value.get(key)
        if isinstance(held, Mapping):  # as data sets of the hub hold pictures
            held = held.get("bytes") or held.get("path")
        if isinstance(held, str | bytes):
            return _row(held)
    return value, ""


_READERS: Mapping[str, Callable[[str], Iterator[Entry]]] = {
    **dict.fromkeys(_ARCHIVES, _members),
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".parquet": _rows,
}
"""Who reads files that hold several items, by the end of their names."""
_ENDS = tuple(_READERS)
