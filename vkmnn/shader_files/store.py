"""Compiled shaders on disk, by the digest of their source.

A checkout keeps them in its folder `build/shaders`, anything else in the user's cache folder. Files
are written whole and never changed, so that any number of processes may share a folder.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from pathlib import Path
from typing import Any

from vkmnn.base.cache_files import cache_dir, read_file, write_file

_log = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_PROJECT_FILE = "pyproject.toml"
_LEVELS = 3
"""Parent folders searched for the project's file."""


def store_folder() -> Path:
    """Return `VKMNN_SHADER_CACHE`, or the folder of compiled shaders in the cache folder."""
    chosen = os.environ.get("VKMNN_SHADER_CACHE", "").strip()
    return Path(chosen).expanduser() if chosen else cache_dir() / "codegen"


def store_folders(shaders: Path) -> tuple[Path, ...]:
    """Return the folders of compiled shaders; new ones go to the first.

    Args:
        shaders: the folder that holds glsl/.
    """
    shared = store_folder()
    if os.environ.get("VKMNN_SHADER_CACHE", "").strip():
        return (shared,)
    for project in list(shaders.resolve().parents)[:_LEVELS]:
        if (project / _PROJECT_FILE).is_file():
            own = project / "build" / "shaders"
            return (own, shared) if os.access(project, os.W_OK) else (shared, own)
    return (shared,)


def entry_key(name: str, digest: str) -> str:
    """Return the key of one variant's declarations, which a digest alone does not identify."""
    return f"{digest}.{name}"


def entries_key(fingerprint: str) -> str:
    """Return the key of the declarations of all variants of a lock."""
    return f"{fingerprint}.all"


class Store:
    """Folders of files `<key>`: a JSON line (metadata, checksum), then bytes.

    A folder that cannot be read or written costs time, not results. Why is logged, once.

    Args:
        folders: the first is written to; all are read.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self._warned = False

    @property
    def folder(self) -> Path:
        """Folder for new files."""
        return self.folders[0]

    def get(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """Return an entry's metadata and bytes; None if it is missing or damaged."""
        for folder in self.folders:
            try:
                head, _, data = read_file(folder / key, _MAX_BYTES).partition(b"\n")
                known = json.loads(head)
                if known["crc32"] == zlib.crc32(data):
                    return known, data
            except FileNotFoundError:
                continue
            except OSError as error:
                self._warn("read", error)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        return None

    def has(self, key: str) -> bool:
        """Return whether a file of this name exists; it may be damaged."""
        return any((folder / key).is_file() for folder in self.folders)

    def put(self, key: str, known: dict[str, Any], data: bytes) -> None:
        """Store an entry."""
        if not self.folder.is_dir():
            self._make()
        head = json.dumps({**known, "crc32": zlib.crc32(data)}, sort_keys=True)
        try:
            write_file(self.folder / key, head.encode() + b"\n" + data)
        except OSError as error:
            self._warn("written", error)

    def _make(self) -> None:
        """Create the folder, and let git ignore its content."""
        try:
            write_file(self.folder / ".gitignore", b"*\n")
        except OSError as error:
            self._warn("written", error)

    def _warn(self, what: str, error: OSError) -> None:
        if not self._warned:
            _log.warning("compiled shaders: %s cannot be %s: %s", self.folder, what, error)
        self._warned = True

    def files(self) -> list[Path]:
        """Return the files of the entries in the first folder, sorted."""
        if not self.folder.is_dir():
            return []
        paths = (path for path in self.folder.iterdir() if not path.name.startswith("."))
        return sorted(path for path in paths if path.is_file())

    def prune(self, keep: set[str]) -> int:
        """Delete every entry of the first folder that is not in `keep`; return their number."""
        gone = 0
        for path in self.files():
            if path.name not in keep:
                path.unlink(missing_ok=True)
                gone += 1
        return gone
