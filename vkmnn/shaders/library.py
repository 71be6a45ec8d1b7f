"""Folders of built shaders: `manifest.json` is read once, each SPIR-V module on first use.

The built-in shaders are one such folder; those of a plug-in package are another.
"""

from __future__ import annotations

import functools
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

from vkmnn.errors import ShaderError
from vkmnn.runtime.shader import BindingType, Shader, ShaderBinding, SpecConstant
from vkmnn.shaders.archive import ARCHIVE_FILE, Archive

MANIFEST_SCHEMA = 1
"""Form of manifest.json that is understood here."""

_SCHEMA = re.compile(r'"schema": (\d+)')
_HINT = "a package of shaders holds manifest.json and spirv/*.spv beside its kernels.py"


class ShaderLibrary:
    """The shaders that `python -m vkmnn.codegen --shaders FOLDER` has written.

    Running them needs manifest.json and spirv/, neither the templates nor a compiler. The
    `kernels.py` of the folder binds itself to it. May be shared by threads.

    Args:
        folder: holds manifest.json and spirv/.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        self._shaders: dict[str, Shader] = {}
        self._found: dict[tuple[object, ...], Shader] = {}
        self._entries: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"ShaderLibrary({str(self.folder)!r})"

    @classmethod
    def beside(cls, file: str) -> ShaderLibrary:
        """Return the library of the folder that a module's `__file__` is in, one per folder."""
        return _library(Path(file).resolve().parent)

    def load(self, name: str) -> Shader:
        """Return the variant called `name` (`"unary_map_f32_buffer"`); the same object every time.

        Raises:
            ShaderError: there is no such variant; the hint names the nearest one. Or the folder
                has no manifest, or one of another version of vkmnn.
        """
        shader = self._shaders.get(name)
        if shader is None:
            entry = self._entry(name)
            if entry is None:
                import difflib

                near = difflib.get_close_matches(name, self._manifest["variants"], n=3)
                raise ShaderError(
                    f"there is no shader variant '{name}' in {self.folder}",
                    hint=f"did you mean {' or '.join(near)}?"
                    if near
                    else "`python -m vkmnn.codegen list`",
                )
            made = shader_from_entry(name, entry, functools.partial(self._spirv, name))
            shader = self._shaders.setdefault(name, made)
        return shader

    def all(self) -> tuple[Shader, ...]:
        """Return every variant, sorted by name."""
        return tuple(self.load(name) for name in sorted(self._manifest["variants"]))

    def variants(self) -> list[tuple[str, str, dict[str, str | int]]]:
        """Return (name, template, axis values) of every variant, sorted by name."""
        entries = self._manifest["variants"]
        return [
            (name, entries[name]["template"], entries[name]["axes"]) for name in sorted(entries)
        ]

    def find(self, template: str, axes: Mapping[str, str | int]) -> Shader:
        """Return the variant of `template` with these axis values.

        Raises:
            ShaderError: a value is unknown, or the combination is excluded; says what exists.
        """
        key = (template, *axes.items(), *map(type, axes.values()))  # True is not 1 here
        shader = self._found.get(key)
        if shader is None:
            shader = self._found[key] = self._find(template, axes)
        return shader

    def _find(self, template: str, axes: Mapping[str, str | int]) -> Shader:
        name = "_".join([template, *(str(value).lower() for value in axes.values())])
        entry = self._entry(name)
        if entry and entry["template"] == template and entry["axes"] == dict(axes):
            return self.load(name)
        known = self._manifest["templates"][template]["axes"]
        for axis, value in axes.items():
            if value not in known[axis]:
                raise ShaderError(
                    f"shader '{template}': {axis}={value!r} does not exist",
                    hint=f"{axis} is one of: {', '.join(map(str, known[axis]))}",
                )
        raise ShaderError(
            f"shader '{template}': the combination {_text(axes)} is not built",
            hint=self._alternatives(template, axes),
        )

    def _alternatives(self, template: str, axes: Mapping[str, str | int]) -> str:
        """Say for each axis which values go with the others as given."""
        built = [
            entry["axes"]
            for entry in self._manifest["variants"].values()
            if entry["template"] == template
        ]
        lines = []
        for axis in axes:
            rest = {other: value for other, value in axes.items() if other != axis}
            values = [
                str(found[axis])
                for found in built
                if all(found[other] == value for other, value in rest.items())
            ]
            if values:
                lines.append(f"with {_text(rest)}, {axis} is one of: {', '.join(sorted(values))}")
        return "; ".join(lines) or "see report.md for the variants that exist"

    # --- files -----------------------------------------------------------------------------------

    @functools.cached_property
    def _source(self) -> tuple[str, int]:
        """The manifest, and where its variants begin."""
        path = self.folder / "manifest.json"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ShaderError(f"cannot read {path}: {error.strerror}", hint=_HINT) from None
        schema = _SCHEMA.search(text, 0, 1000)
        if schema is None or int(schema.group(1)) != MANIFEST_SCHEMA:
            raise ShaderError(
                f"{path} is of another version of vkmnn",
                hint="build it again: `python -m vkmnn.codegen --shaders FOLDER`",
            )
        return text, max(text.find('\n  "variants": {'), 0)

    @functools.cached_property
    def _manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads(self._source[0])
        return manifest

    def _entry(self, name: str) -> dict[str, Any] | None:
        """Return the manifest entry of a variant, None when there is none."""
        entry = self._entries.get(name) or self._read_entry(name)
        if entry is not None:
            self._entries[name] = entry
        return entry

    def _read_entry(self, name: str) -> dict[str, Any] | None:
        """Find the manifest entry of a variant.

        Parsing one entry of some hundreds takes a hundredth of the time of parsing them all, and
        the generator writes each at the start of a line, in the order of their names.
        """
        text, variants = self._source
        head = f'\n    "{name}": '
        place = -1
        if "_manifest" not in self.__dict__:
            place = text.find(head, _before(text, variants, name))
        if place < 0:
            found: dict[str, Any] | None = self._manifest["variants"].get(name)
            return found
        entry: dict[str, Any] = _DECODER.raw_decode(text, place + len(head))[0]
        return entry

    def _spirv(self, name: str) -> bytes:
        path = self.folder / "spirv" / f"{name}.spv"
        try:
            return path.read_bytes()
        except OSError as error:
            packed = self._unpacked(name)
            if packed is None:
                raise ShaderError(f"cannot read {path}: {error.strerror}", hint=_HINT) from None
            return packed

    def _unpacked(self, name: str) -> bytes | None:
        """Return a module of a folder that came in a wheel, None where there is no archive."""
        archive = self._archive
        if archive is None:
            return None
        try:
            return archive.read(name)
        except (KeyError, OSError, ValueError, zlib.error, BadZipFile, struct.error) as error:
            raise ShaderError(
                f"cannot read '{name}' from {self.folder / ARCHIVE_FILE}: {error}",
                hint="the installed files are damaged: install the package again",
            ) from None

    @functools.cached_property
    def _archive(self) -> Archive | None:
        path = self.folder / ARCHIVE_FILE
        return Archive(path) if path.is_file() else None


_DECODER = json.JSONDecoder()
_ENTRY = '\n    "'


def _before(text: str, variants: int, name: str) -> int:
    """Return a place in a manifest before the entry of a variant, and not far from it."""
    low, high = variants, len(text)
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


_NEAR = 20_000
"""Characters that are searched in no time; entries take two thousand."""


@functools.cache
def _library(folder: Path) -> ShaderLibrary:
    return ShaderLibrary(folder)


class BuiltShaders(Protocol):
    """What `vkmnn.codegen.compile_folder` returns: manifest entries and modules by variant."""

    @property
    def variants(self) -> Mapping[str, Any]: ...

    @property
    def spirv(self) -> Mapping[str, bytes]: ...


def shaders_from_build(built: BuiltShaders) -> dict[str, Shader]:
    """Return the shaders that were built at run time, by variant name."""
    return {
        name: shader_from_entry(name, entry, functools.partial(built.spirv.__getitem__, name))
        for name, entry in built.variants.items()
    }


def shader_from_entry(name: str, entry: Mapping[str, Any], spirv: Callable[[], bytes]) -> Shader:
    """Return the `Shader` that a manifest entry describes; `spirv` is called when it is needed."""
    return Shader(
        name=name,
        bindings=tuple(
            ShaderBinding(
                binding["name"],
                binding["index"],
                BindingType(binding["type"]),
                binding["access"],
                binding["format"],
            )
            for binding in entry["bindings"]
        ),
        push_constant_size=entry["push_constant_size"],
        spec_constants=tuple(
            SpecConstant(spec["name"], spec["id"], spec["type"], spec["default"])
            for spec in entry["spec_constants"]
        ),
        requires=frozenset(entry["requires"]),
        local_size=tuple(entry["local_size"]),
        spirv=spirv,
        digest=entry["spirv_sha256"],
        subgroup_size=entry["subgroup_size"],
    )


def _text(axes: Mapping[str, str | int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in axes.items())


BUILTIN = ShaderLibrary.beside(__file__)
"""The shaders of vkmnn itself."""
