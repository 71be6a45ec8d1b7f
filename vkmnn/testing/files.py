"""Reading and writing the files of a run."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be written at the end of a run; create its folder.

    Raises:
        InvalidInputError: it cannot.
    """
    if path.is_dir():
        raise InvalidInputError(f"{option} {path}: this is a folder", hint="name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InvalidInputError(
            f"{option} {path}: cannot be written: {error.strerror}",
            hint="choose a folder that you may write to",
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)


def read_json(path: Path, schema: int, what: str) -> dict[str, Any]:
    """Return the object in one of our JSON files.

    Raises:
        InvalidInputError: the file cannot be read, or is of another kind or schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInputError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise InvalidInputError(f"{path} does not hold {what} of this version of vkmnn")
    return data
