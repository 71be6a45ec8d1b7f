"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_NAME_BYTES = 100
"""Maximum bytes of the file's name in its temporary name; names are limited to 255 bytes."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces a path once the block has succeeded.

    Until then, and if the block raises, the path is unchanged. A path that is not a regular file,
    such as a pipe or `/dev/stdout`, is written directly. Symbolic links are kept, and their target
    is replaced.

    Args:
        path: the file, in a folder that exists.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_of(target)
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    part = _part_of(target)
    number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def check_writable(path: Path) -> None:
    """Check that `replacing` can start, before computing the content.

    Raises:
        OSError: it could not.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_of(target)
    if mode is not None and not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"'{path}' is a folder")
        return
    part = _part_of(target)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    part.unlink()


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _part_of(target: Path) -> Path:
    """Return the name of the temporary file, in the same folder."""
    stem = os.fsdecode(os.fsencode(target.name)[:_NAME_BYTES])
    return target.with_name(f".{stem}.{secrets.token_hex(4)}")
