"""Cache files that no other user can have written; access never blocks."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from vkmnn.base.user_folders import cache_folder

_log = logging.getLogger(__name__)

NO_FOLDER = Path(os.devnull) / "vkmnn"
"""Placeholder for a missing cache folder: it is empty, and nothing is written."""

_OTHERS_WRITE = 0o022
_POLL_S = 0.01
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


def cache_dir() -> Path:
    """`VKMNN_CACHE_DIR`: the folder of caches, by default `vkmnn` in the user's cache folder."""
    text = os.environ.get("VKMNN_CACHE_DIR", "").strip()
    try:
        return Path(text).expanduser() if text else cache_folder()
    except RuntimeError as error:  # users without a home, such as service accounts
        _warn_once(f"caching between processes is off: {error}; set VKMNN_CACHE_DIR to a folder")
        return NO_FOLDER


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file that only its owner (this user or root) can change.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, exceeds `max_bytes`, is not a regular file, or is not trusted.
    """
    if NO_FOLDER in path.parents:
        raise FileNotFoundError(path)
    _check_owner(path.parent.stat(), path.parent)
    # Opening a pipe, or reading a device, would block.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        _check_owner(status, path)
        if status.st_size > max_bytes:
            raise OSError(f"it is larger than {max_bytes} bytes")
        return file.read(max_bytes)


def write_file(path: Path, data: bytes) -> None:
    """Write a file that only the user can read; readers see either the old or the new file.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    if NO_FOLDER in path.parents:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def own_folder(path: Path) -> None:
    """Create a private folder, or check that an existing one is private.

    Raises:
        OSError: it cannot be created, or is not trusted.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(path.stat(), path)


@contextlib.contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """Admit one process (and one thread) at a time to the block; `path` is the lock file.

    On a file system without locks, everyone is admitted. A process that dies in the block releases
    the lock.

    Args:
        path: the lock file, created if missing, in a folder of the user's own.
        wait_s: maximum time to wait, in seconds.

    Raises:
        TimeoutError: others do not leave the block in time.
        OSError: the file cannot be made, or its folder is not to be trusted.
    """
    if NO_FOLDER in path.parents:
        yield
        return
    own_folder(path.parent)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags, 0o600)
    try:
        end = time.monotonic() + wait_s
        while not _try_lock(handle):
            if time.monotonic() > end:
                raise TimeoutError(f"{path} has been locked for {wait_s:g} s")
            time.sleep(_POLL_S)
        try:
            yield
        finally:
            _unlock(handle)
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        os.lseek(handle, 0, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True

    def _unlock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                if isinstance(error, BlockingIOError):
                    return False
                raise
        return True

    def _unlock(handle: int) -> None:
        # Closing is not enough: a process forked meanwhile holds the file too.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)


def check_owner(path: Path) -> None:
    """Refuse a file or folder that another user could have written.

    Raises:
        OSError: it is one, or does not exist.
    """
    _check_owner(path.stat(), path)


def _check_owner(status: os.stat_result, path: Path) -> None:
    """Reject files that another user could have written (on Windows, user folders are private)."""
    if not hasattr(os, "getuid"):
        return
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & _OTHERS_WRITE:
        raise OSError(f"{path} belongs to another user, or others may write it")


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)
