"""Renders and compiles single variants of a folder for a process that needs them now."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vkmnn.codegen.build import compile_variant, describe, placed_errors
from vkmnn.codegen.cache import Cache, source_digest
from vkmnn.codegen.compiler import CompileError, Compiler
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.failures import raise_all
from vkmnn.codegen.manifest import declared_entry, dump_entries
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.codegen.variants import Variant, expand, load_entries
from vkmnn.errors import ShaderError
from vkmnn.shader_files.lock import Lock
from vkmnn.shader_files.store import entries_key, entry_key


class Generator:
    """The templates of a folder with a lock. May be shared by threads.

    Args:
        folder: holds glsl/.
        lock: the expected content of the folder.
    """

    def __init__(self, folder: Path, lock: Lock) -> None:
        self._folder = folder
        self._templates = folder / "glsl"
        self._lock = lock
        self._cache = Cache.of(folder)
        self._guard = threading.RLock()  # of the renderer, and of what follows
        self._renderer = Renderer(self._templates)
        self._variants: dict[str, Variant] = {}
        self._rendered: dict[str, tuple[Rendered, dict[str, Any]]] = {}
        self._compiler: Compiler | None = None

    def entry(self, name: str) -> dict[str, Any]:
        """Return a variant's declarations, and store them for other processes."""
        with self._guard:
            entry = self._render(name)[1]
        key = entry_key(name, self._lock.variants[name])
        self._cache.put(key, {}, json.dumps(entry).encode())
        return entry

    def describe(self) -> None:
        """Render all variants, and store their declarations.

        Raises:
            ShaderError: the lock is out of date, or a template is broken.
        """
        described = describe(self._templates, cache=self._cache)
        if described.digests != dict(self._lock.variants):
            raise _stale(self._folder, "it has other variants")
        text = dump_entries(described.variants)
        self._cache.put(entries_key(self._lock.fingerprint), {}, text.encode())

    def module(self, name: str) -> bytes:
        """Compile a variant, store it for other processes, and return its SPIR-V."""
        with self._guard:
            compiler = self._find_compiler()
            rendered, entry = self._render(name)
            del self._rendered[name]
            variant = self._variants[name]
        try:
            made = compile_variant(variant, rendered, frozenset(entry["requires"]), compiler)
        except CompileError as error:
            raise_all(list(placed_errors(error, rendered, variant)))
            raise
        self._cache.put_module(self._lock.variants[name], made, compiler.identity)
        return made.spirv

    def compile(self, names: Iterable[str]) -> None:
        """Compile variants, as many at a time as there are processors, and store them."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(self.module, names):
                pass

    def _find_compiler(self) -> Compiler:
        if self._compiler is None:
            self._compiler = find_compiler()
        return self._compiler

    def _render(self, name: str) -> tuple[Rendered, dict[str, Any]]:
        """Return a variant's text and declarations, checked against the lock."""
        found = self._rendered.get(name)
        if found is None:
            variant = self._variant(name)
            rendered = self._renderer.render(variant)
            requires = variant.requires | rendered.declared.needs
            entry = declared_entry(variant, requires, rendered)
            if source_digest(entry, variant.optimize) != self._lock.variants[name]:
                raise _stale(self._folder, f"'{name}' has changed")
            found = self._rendered[name] = rendered, entry
        return found

    def _variant(self, name: str) -> Variant:
        if name not in self._variants:
            # Only templates that the name can belong to: others may be broken just now.
            possible = frozenset(
                one for one in self._lock.templates if f"{name}_".startswith(f"{one}_")
            )
            for variant in expand(load_entries(self._templates, possible)):
                self._variants.setdefault(variant.name, variant)
        if name not in self._variants:
            raise _stale(self._folder, f"'{name}' has changed")
        return self._variants[name]


def _stale(folder: Path, what: str) -> ShaderError:
    return ShaderError(
        f"the templates in {folder} are newer than their lock: {what}",
        hint="write it: `python -m vkmnn.codegen`, for a package with --shaders FOLDER",
    )
