"""Shaders that came built: `manifest.json` is read once, each SPIR-V module on first use."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from vkmnn.errors import ShaderError
from vkmnn.shader_files.archive import ARCHIVE_FILE, Archive
from vkmnn.shader_files.lock import MANIFEST_FILE, fingerprint_of

MANIFEST_SCHEMA = 1
"""Form of manifest.json that is understood here."""

_SCHEMA = re.compile(r'"schema": (\d+)')
_LOCK = re.compile(r'"lock": "(\w*)"')
_HEAD = 1000  # characters that contain the two
_HINT = "a package of shaders holds shaders.lock, or manifest.json and spirv.zip, beside kernels.py"


class Packed:
    """The shaders of a folder with manifest.json, and spirv.zip or spirv/. Shared by threads.

    Args:
        folder: a folder written by `python -m vkmnn.codegen pack`, or installed by a wheel.
    """

    on_demand = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fits(self, fingerprint: str) -> bool:
        """Return whether the shaders were built from the lock with this fingerprint."""
        path = self._folder / MANIFEST_FILE
        try:
            with path.open(encoding="utf-8") as file:
                stated = _LOCK.search(file.read(_HEAD))
        except (OSError, ValueError):
            return False
        return stated is not None and stated[1] == fingerprint

    def names(self) -> Iterable[str]:
        variants: dict[str, Any] = self._manifest["variants"]
        return variants.keys()

    def expand(self) -> Iterable[tuple[str, str, dict[str, str | int]]]:
        for name, entry in self._manifest["variants"].items():
            yield name, entry["template"], entry["axes"]

    def axes(self, template: str) -> Mapping[str, list[str | int]]:
        axes: Mapping[str, list[str | int]] = self._manifest["templates"][template]["axes"]
        return axes

    def digest(self, name: str, entry: Mapping[str, Any]) -> str:
        """Return the SHA-256 of a variant's module."""
        digest: str = entry["spirv_sha256"]
        return digest

    @cached_property
    def fingerprint(self) -> str:
        """Names this state of the shaders."""
        stated = _LOCK.search(self._text, 0, _HEAD)
        return stated[1] if stated else fingerprint_of(self._text)

    # --- entries ---------------------------------------------------------------------------------

    @cached_property
    def _text(self) -> str:
        path = self._folder / MANIFEST_FILE
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ShaderError(f"cannot read {path}: {error.strerror}", hint=_HINT) from None
        schema = _SCHEMA.search(text, 0, _HEAD)
        if schema is None or int(schema[1]) != MANIFEST_SCHEMA:
            raise ShaderError(
                f"{path} is of another version of vkmnn",
                hint="build it again: `python -m vkmnn.codegen --shaders FOLDER`",
            )
        return text

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads(self._text)
        return manifest

    @cached_property
    def _entries(self) -> Entries:
        return Entries(self._text)

    def entry(self, name: str) -> dict[str, Any] | None:
        """Return the manifest entry of a variant, None when there is none."""
        entry = self._entries.get(name) if "_manifest" not in self.__dict__ else None
        if entry is None:
            entry = self._manifest["variants"].get(name)
        return entry

    # --- modules ---------------------------------------------------------------------------------

    def module(self, name: str) -> bytes:
        """Return the SPIR-V of a variant."""
        path = self._folder / "spirv" / f"{name}.spv"
        try:
            return path.read_bytes()
        except OSError as error:
            packed = self._unpacked(name)
            if packed is None:
                raise ShaderError(f"cannot read {path}: {error.strerror}", hint=_HINT) from None
            return packed

    def has(self, name: str) -> bool:
        """Return whether a variant is in the archive."""
        return True

    def prepare(self, names: Iterable[str]) -> None:
        """Do nothing: all modules are packed."""

    def _unpacked(self, name: str) -> bytes | None:
        """Return a module of a folder installed from a wheel, None if there is no archive."""
        archive = self._archive
        if archive is None:
            return None
        try:
            return archive.read(name)
        except (KeyError, OSError, ValueError, zlib.error, BadZipFile, struct.error) as error:
            raise ShaderError(
                f"cannot read '{name}' from {self._folder / ARCHIVE_FILE}: {error}",
                hint="the installed files are damaged: install the package again",
            ) from None

    @cached_property
    def _archive(self) -> Archive | None:
        path = self._folder / ARCHIVE_FILE
        return Archive(path) if path.is_file() else None


class Entries:
    """The entries of variants in the text of a manifest, parsed one by one.

    Parsing one of some hundreds takes a hundredth of the time of parsing them all, and the
    generator writes each at the start of a line, in the order of their names.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._start = max(text.find('\n  "variants": {'), 0)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the entry of a variant; None if it is not at its expected position."""
        head = f'\n    "{name}": '
        place = self._text.find(head, self._before(name))
        if place < 0:
            return None
        entry: dict[str, Any] = _DECODER.raw_decode(self._text, place + len(head))[0]
        return entry

    def _before(self, name: str) -> int:
        """Return an offset shortly before the entry of a variant."""
        text, low, high = self._text, self._start, len(self._text)
        while high - low > _NEAR:
            middle = text.rfind(_ENTRY, low, (low + high) // 2)
            if middle < 0:
                break
            start = middle + len(_ENTRY)
            if text[start : text.find('"', start)] <= name:
                low = middle
            else:
                high = middle
        return low


_DECODER = json.JSONDecoder()
_ENTRY = '\n    "'
_NEAR = 20_000
"""Characters per search; entries take two thousand."""
