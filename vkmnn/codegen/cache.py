"""Results of earlier builds, by content; safe to delete at any time.

Three kinds of entries: the SPIR-V of a variant, under its digest in the lock; the results for a
whole template, so that an unchanged template is not even rendered; and the declarations of the
lock's variants, for the run time.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vkmnn.codegen.compiler import Module
from vkmnn.shader_files.store import Store, store_folder, store_folders

# Raise it when the same GLSL and flags would give another module or another entry.
GENERATOR_VERSION = 2


def cache_folder() -> Path:
    """Return the folder of shaders compiled outside of checkouts."""
    return store_folder()


def source_digest(entry: dict[str, Any], optimize: str) -> str:
    """Return the digest of all that decides a module: rendered source, declarations and options.

    Args:
        entry: the variant's declarations (`vkmnn.codegen.manifest.declared_entry`), with the digest
            of the rendered text.
        optimize: the optimisation policy.
    """
    facts = {key: value for key, value in entry.items() if key not in ("template", "axes")}
    return digest(str(GENERATOR_VERSION), json.dumps(facts, sort_keys=True), optimize)[:32]


def digest(*parts: str) -> str:
    """Return the SHA-256 over separate texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Cache(Store):
    """Compiled modules and records of templates."""

    @classmethod
    def of(cls, shaders: Path) -> Cache:
        """Return the cache of a folder that holds glsl/."""
        return cls(*store_folders(shaders))

    def module(self, key: str, compiler: str | None = None) -> Module | None:
        """Return a compiled module; None if there is none, or only one by another compiler."""
        found = self.get(key)
        if found is None:
            return None
        known, spirv = found
        try:
            if compiler not in (None, known["compiler"]):
                return None
            return Module(spirv, known["optimized"], known["note"], tuple(known["capabilities"]))
        except (KeyError, TypeError):
            return None

    def put_module(self, key: str, module: Module, compiler: str) -> None:
        """Store a compiled module."""
        known = {
            "compiler": compiler,
            "optimized": module.optimized,
            "note": module.note,
            "capabilities": list(module.capabilities),
        }
        self.put(key, known, module.spirv)

    def record(self, key: str) -> dict[str, Any] | None:
        """Return what `put_record` stored, or None if it is missing or damaged."""
        found = self.get(key)
        try:
            record = json.loads(found[1]) if found else None
        except ValueError:
            return None
        return record if isinstance(record, dict) else None

    def put_record(self, key: str, record: dict[str, Any]) -> None:
        """Store a record of plain JSON values."""
        self.put(key, {}, json.dumps(record).encode())
