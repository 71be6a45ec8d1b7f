"""Files with samples: folders, patterns, pictures, texts, JSON lines and arrays."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkmnn.base.media import PICTURES, has_suffix
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, plural

_ARRAYS = frozenset({".npz", ".npy"})
_LINES = frozenset({".jsonl", ".ndjson"})
_TEXTS = frozenset({".txt"})
_KINDS: Mapping[str, frozenset[str]] = {
    "picture": PICTURES,
    "arrays": _ARRAYS,
    "text": _TEXTS | _LINES,
}
"""Suffixes by kind; of a folder with several kinds, the first kind counts."""
_PICTURE_KEYS = ("image", "picture", "img", "path", "file")
_TEXT_KEYS = ("text", "sentence", "content", "prompt", "document")
_LABEL_KEYS = ("label", "labels", "class")
_LONGEST_TEXT = 1 << 20
"""Bytes of a text file that are read."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One sample in files.

    Attributes:
        kind: "picture", "text" or "arrays".
        value: a path; a text; values by input.
        label: the name or number of its class, if known.
    """

    kind: str
    value: Any
    label: str | int | None = None


def is_arrays(data: str | Path) -> bool:
    """Return whether calibration data is a single file that no other reader takes."""
    path = Path(data)
    known = has_suffix(path, PICTURES | _TEXTS | _LINES)
    return not known and not path.is_dir() and not glob.has_magic(str(data))


def list_entries(data: str | Path, most: int, tell: Callable[[str], object]) -> list[Entry]:
    """Return at most `most` entries of a file, a folder or a pattern, spread over all.

    Args:
        data: a path or a pattern.
        most: the maximum number.
        tell: called with sentences on files that are left out.

    Raises:
        InvalidInputError: there are none, or a file cannot be read.
    """
    root, files = _files(data)
    counts = Counter(_kind(file) for file in files)
    kind = next((one for one in _KINDS if counts[one]), None)
    if kind is None:
        raise InvalidInputError(
            f"'{data}' holds no samples",
            hint="pictures (.jpg, .png), texts (.txt, .jsonl), or arrays (.npz, .npy)",
        )
    chosen = [file for file in files if _kind(file) == kind]
    others = sum(counts.values()) - len(chosen) - counts[""]
    if others:
        tell(f"{plural(others, 'file')} of other kinds in '{data}' are not used as samples")
    if kind == "text":
        found = _texts(chosen)
    else:
        labels = _class_names(root, chosen) if kind == "picture" else [None] * len(chosen)
        found = [Entry(kind, *one) for one in zip(chosen, labels, strict=True)]
    if not found:
        raise InvalidInputError(f"'{data}' holds no samples", hint="its files are empty")
    kept = found[:: -(-len(found) // most)]
    if len(kept) < len(found):
        tell(f"{len(kept)} of {len(found)} samples are used, spread over all; choose with "
             "--samples")  # fmt: skip
    return kept


def _files(data: str | Path) -> tuple[Path, list[Path]]:
    """Return a folder, and the files in it."""
    path = Path(data)
    if path.is_dir():
        inside = (one for one in path.rglob("*") if not one.name.startswith("."))
        return path, sorted(one for one in inside if one.is_file())
    if path.exists():
        return path.parent, [path]
    if glob.has_magic(str(data)):
        matches = glob.glob(str(data), recursive=True)  # noqa: PTH207 - absolute ones too
        return Path(), sorted(Path(one) for one in matches if Path(one).is_file())
    raise InvalidInputError(f"no such file or folder: '{data}'", hint="check the path")


def _kind(file: Path) -> str:
    return next((kind for kind, suffixes in _KINDS.items() if has_suffix(file, suffixes)), "")


def _class_names(root: Path, files: Sequence[Path]) -> list[str | None]:
    """Return the names of the folders in `root`, if these hold all the pictures."""
    parts = [file.relative_to(root).parts if root != Path() else () for file in files]
    if any(len(one) < 2 for one in parts) or len({one[0] for one in parts}) < 2:
        return [None] * len(files)
    return [one[0] for one in parts]


def _texts(files: Sequence[Path]) -> list[Entry]:
    """Return the texts of files: of several text files one each, of one its lines."""
    plain = [file for file in files if has_suffix(file, _TEXTS)]
    made: list[Entry] = []
    for file in files:
        if has_suffix(file, _LINES):
            made += _rows(file)
        elif len(plain) > 1:
            made.append(Entry("text", _read(file)))
        else:
            made += [Entry("text", line) for line in _read(file).splitlines()]
    made = [one for one in made if not isinstance(one.value, str) or one.value.strip()]
    kinds = Counter(one.kind for one in made)
    if len(kinds) > 1:
        raise InvalidInputError(
            f"'{files[0]}' mixes {' and '.join(sorted(kinds))} samples",
            hint="give samples of one kind",
        )
    return made


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_LONGEST_TEXT).decode("utf-8", "replace")
    except OSError as error:
        raise InvalidInputError(f"'{file}' cannot be read: {error.strerror}") from error


def _rows(file: Path) -> Iterator[Entry]:
    """Yield the lines of a JSON-lines file: texts, paths of pictures, objects with these."""
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield _entry(file, number, json.loads(line))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"'{file}' cannot be read: {error}", hint="one JSON value a line"
        ) from error


def _entry(file: Path, number: int, row: Any) -> Entry:
    if isinstance(row, str):
        row = {"image" if has_suffix(row, PICTURES) else "text": row}
    if not isinstance(row, Mapping):
        raise InvalidInputError(
            f"line {number} of '{file}' is no sample", hint='for example {"text": "…"}'
        )
    label = next((row[key] for key in _LABEL_KEYS if key in row), None)
    label = label if isinstance(label, str | int) else None
    for keys, kind in ((_PICTURE_KEYS, "picture"), (_TEXT_KEYS, "text")):
        for key in keys:
            if isinstance(value := row.get(key), str):
                path = file.parent / value
                return Entry(kind, (path if path.exists() else Path(value))
                             if kind == "picture" else value, label)  # fmt: skip
    return Entry("arrays", {k: v for k, v in row.items() if k not in _LABEL_KEYS or v is not label})
