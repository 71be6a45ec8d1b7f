"""Shaders of a checkout: compiled from their templates on first use, then cached.

A variant's declarations are known once it is rendered, and its SPIR-V is compiled when a pipeline
needs it. Both are stored under the variant's digest in the lock (`vkmnn.shader_files.store`), so
that a process that finds them all imports no compiler.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.errors import ShaderError
from vkmnn.shader_files.lock import Lock
from vkmnn.shader_files.store import Store, entries_key, entry_key, store_folders
from vkmnn.shaders.packed import Entries

if TYPE_CHECKING:
    from vkmnn.codegen.on_demand import Generator


class OnDemand:
    """The shaders of a folder with shaders.lock and glsl/. Shared by threads.

    Args:
        folder: holds both.
        lock: its lock.
    """

    on_demand = True

    def __init__(self, folder: Path, lock: Lock) -> None:
        self._folder = folder
        self._lock = lock
        self._store = Store(*store_folders(folder))
        self._guard = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Names this state of the shaders."""
        return self._lock.fingerprint

    def names(self) -> Iterable[str]:
        return self._lock.variants.keys()

    def expand(self) -> Iterable[tuple[str, str, dict[str, str | int]]]:
        return self._lock.expand()

    def axes(self, template: str) -> Mapping[str, list[str | int]]:
        return self._lock.axes(template)

    def digest(self, name: str, entry: Mapping[str, Any]) -> str:
        """Return the digest of a variant's source: its module may not have been compiled yet."""
        return self._lock.variants[name]

    def entry(self, name: str) -> dict[str, Any] | None:
        """Return a variant's declarations, None if there is no such variant.

        Raises:
            ShaderError: it must be rendered, and Jinja is missing, or the lock is out of date.
        """
        digest = self._lock.variants.get(name)
        if digest is None:
            return None
        found = self._described.get(name) if self._described else None
        if found is None:
            stored = self._store.get(entry_key(name, digest))
            found = json.loads(stored[1]) if stored else self._generator.entry(name)
        return found

    def describe_all(self) -> None:
        """Store the declarations of all variants in one file; renders those that are missing."""
        if self._described is None:
            self._generator.describe()
            self.__dict__.pop("_described", None)

    @cached_property
    def _described(self) -> Entries | None:
        """Declarations of all variants, if all have been rendered before."""
        stored = self._store.get(entries_key(self._lock.fingerprint))
        return Entries(stored[1].decode("utf-8")) if stored else None

    def module(self, name: str) -> bytes:
        """Return the SPIR-V of a variant.

        Raises:
            ShaderError: it must be compiled, and a compiler is missing, or the lock is out of
                date.
        """
        stored = self._store.get(self._lock.variants[name])
        return stored[1] if stored else self._generator.module(name)

    def has(self, name: str) -> bool:
        """Return whether a variant has been compiled."""
        return self._store.has(self._lock.variants[name])

    def prepare(self, names: Iterable[str]) -> None:
        """Compile those of the variants that have not been compiled yet, several at a time."""
        missing = [name for name in names if not self.has(name)]
        if missing:
            self._generator.compile(missing)

    @property
    def _generator(self) -> Generator:
        with self._guard:
            return self._made

    @cached_property
    def _made(self) -> Generator:
        try:
            from vkmnn.codegen.on_demand import Generator
        except ModuleNotFoundError as error:
            if error.name not in ("jinja2", "vkmnn.codegen"):
                raise
            raise ShaderError(
                f"shaders in {self._folder} are not compiled, and {error.name} is not installed",
                hint="pip install 'vkmnn[codegen]' installs the compiler; vkmnn's wheels "
                "contain compiled shaders",
            ) from None
        return Generator(self._folder, self._lock)
