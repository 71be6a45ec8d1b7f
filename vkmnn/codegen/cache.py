"""Content-addressed cache: one file per key, safe to delete at any time.

Two kinds of entries: the SPIR-V of a rendered text, and what a build found out about a whole
template, so that an unchanged template is not even rendered.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from vkmnn.codegen.compilers import Compiled
from vkmnn.codegen.features import Target

# Raise it when the same GLSL and flags would give another result.
GENERATOR_VERSION = 1

ENVIRONMENT_VARIABLE = "VKMNN_CACHE_DIR"


def cache_folder() -> Path:
    """Return the codegen folder inside `VKMNN_CACHE_DIR`, else inside the user's cache folder."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser() / "codegen"
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "vkmnn" / "codegen"


def cache_key(glsl: str, compiler: str, target: Target, optimize: str) -> str:
    """Return the SHA-256 over everything that decides the SPIR-V."""
    return digest(str(GENERATOR_VERSION), compiler, str(target), optimize, glsl)


def digest(*parts: str) -> str:
    """Return the SHA-256 over texts, kept apart."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old or the new file, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class Cache:
    """A folder of entries `<key>`: a JSON line (how it was made, digest), then the SPIR-V."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Compiled | None:
        """Return the entry, or None when there is none or it is damaged."""
        try:
            head, _, spirv = (self.folder / key).read_bytes().partition(b"\n")
            meta = json.loads(head)
            if meta["sha256"] != hashlib.sha256(spirv).hexdigest():
                return None
            return Compiled(spirv, meta["optimized"], meta["note"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, compiled: Compiled) -> None:
        """Store an entry."""
        sha256 = hashlib.sha256(compiled.spirv).hexdigest()
        meta = {"optimized": compiled.optimized, "note": compiled.note, "sha256": sha256}
        head = json.dumps(meta, sort_keys=True).encode()
        write_atomic(self.folder / key, head + b"\n" + compiled.spirv)

    def get_record(self, key: str) -> dict[str, Any] | None:
        """Return what `put_record` stored, or None when there is nothing or it is damaged."""
        try:
            head, _, text = (self.folder / key).read_text(encoding="utf-8").partition("\n")
            record = json.loads(text) if head == digest(text) else None
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def put_record(self, key: str, record: dict[str, Any]) -> None:
        """Store a record of plain JSON values."""
        text = json.dumps(record)
        write_atomic(self.folder / key, f"{digest(text)}\n{text}".encode())

    def prune(self, keep: set[str]) -> int:
        """Delete every entry that is not in `keep`; return how many went."""
        gone = 0
        for path in sorted(self.folder.iterdir()):
            if path.name not in keep and path.is_file():
                path.unlink(missing_ok=True)
                gone += 1
        return gone
