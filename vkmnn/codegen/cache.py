"""Content-addressed cache: one file per key, safe to delete at any time.

Two kinds of entries: the SPIR-V of a rendered text, and what a build found out about a whole
template, so that an unchanged template is not even rendered.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from vkmnn.cache_files import cache_dir, read_file, write_file
from vkmnn.codegen.compilers import Compiled
from vkmnn.codegen.features import Target

_log = logging.getLogger(__name__)

# Raise it when the same GLSL and flags would give another result.
GENERATOR_VERSION = 1

_MAX_BYTES = 64 << 20


def cache_folder() -> Path:
    """Return the codegen folder inside the cache folder."""
    return cache_dir() / "codegen"


def cache_key(glsl: str, compiler: str, target: Target, optimize: str) -> str:
    """Return the SHA-256 over everything that decides the SPIR-V."""
    return digest(str(GENERATOR_VERSION), compiler, str(target), optimize, glsl)


def digest(*parts: str) -> str:
    """Return the SHA-256 over texts, kept apart."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Cache:
    """A folder of entries `<key>`: a JSON line (how it was made, digest), then the SPIR-V.

    A folder that cannot be read or written costs time, not results. Why is logged, once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned = False

    def get(self, key: str) -> Compiled | None:
        """Return the entry, or None when there is none or it is damaged."""
        try:
            head, _, spirv = self._read(key).partition(b"\n")
            meta = json.loads(head)
            if meta["sha256"] != hashlib.sha256(spirv).hexdigest():
                return None
            return Compiled(spirv, meta["optimized"], meta["note"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def put(self, key: str, compiled: Compiled) -> None:
        """Store an entry."""
        sha256 = hashlib.sha256(compiled.spirv).hexdigest()
        meta = {"optimized": compiled.optimized, "note": compiled.note, "sha256": sha256}
        head = json.dumps(meta, sort_keys=True).encode()
        self._write(key, head + b"\n" + compiled.spirv)

    def get_record(self, key: str) -> dict[str, Any] | None:
        """Return what `put_record` stored, or None when there is nothing or it is damaged."""
        try:
            head, _, text = self._read(key).decode("utf-8").partition("\n")
            record = json.loads(text) if head == digest(text) else None
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def put_record(self, key: str, record: dict[str, Any]) -> None:
        """Store a record of plain JSON values."""
        text = json.dumps(record)
        self._write(key, f"{digest(text)}\n{text}".encode())

    def _read(self, key: str) -> bytes:
        try:
            return read_file(self.folder / key, _MAX_BYTES)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._warn("read", error)
            raise

    def _write(self, key: str, data: bytes) -> None:
        try:
            write_file(self.folder / key, data)
        except OSError as error:
            self._warn("written", error)

    def _warn(self, what: str, error: OSError) -> None:
        if not self._warned:
            _log.warning("compiled shaders: cache %s cannot be %s: %s", self.folder, what, error)
        self._warned = True

    def files(self) -> list[Path]:
        """Return the files of all entries, sorted."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.is_file())

    def prune(self, keep: set[str]) -> int:
        """Delete every entry that is not in `keep`; return how many went."""
        gone = 0
        for path in self.files():
            if path.name not in keep:
                path.unlink(missing_ok=True)
                gone += 1
        return gone
