"""Folders of shaders: packed ones, and those of checkouts, which are compiled on demand.

The built-in shaders are one such folder; those of a plug-in package are another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from vkmnn.errors import ShaderError
from vkmnn.runtime.shader import BindingType, Shader, ShaderBinding, SpecConstant
from vkmnn.shader_files.lock import Lock, read_lock, variant_name
from vkmnn.shaders.on_demand import OnDemand
from vkmnn.shaders.packed import Packed


class ShaderLibrary:
    """The shaders of a folder that `python -m vkmnn.codegen --shaders FOLDER` has written.

    Packed ones (manifest.json and spirv.zip, as wheels have them) need neither templates nor a
    compiler; others (shaders.lock and glsl/) are compiled when they are needed. The `kernels.py`
    of the folder binds itself to it. May be shared by threads.

    Args:
        folder: holds the one or the other.
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

    @functools.cached_property
    def lock(self) -> Lock | None:
        """Content of the folder's lock, None without one."""
        return read_lock(self.folder)

    @functools.cached_property
    def _origin(self) -> Packed | OnDemand:
        """Source of entries and modules: the packed ones, unless the lock differs."""
        packed = Packed(self.folder)
        if self.lock is None or packed.fits(self.lock.fingerprint):
            return packed
        return OnDemand(self.folder, self.lock)

    @property
    def fingerprint(self) -> str:
        """Identifies this state of the shaders."""
        return self._origin.fingerprint

    def load(self, name: str) -> Shader:
        """Return the variant called `name` (`"unary_map_f32_buffer"`); the same object every time.

        Raises:
            ShaderError: the variant does not exist; the hint names the nearest one. Or the folder
                has no shaders, or those of another version of vkmnn; or the variant has to be
                rendered, and what that takes is missing.
        """
        shader = self._shaders.get(name)
        if shader is None:
            entry = self._entry(name)
            if entry is None:
                import difflib

                near = difflib.get_close_matches(name, self._origin.names(), n=3)
                raise ShaderError(
                    f"there is no shader variant '{name}' in {self.folder}",
                    hint=f"did you mean {' or '.join(near)}?"
                    if near
                    else "`python -m vkmnn.codegen list`",
                )
            origin = self._origin
            made = shader_from_entry(
                name,
                entry,
                Module(self, name),
                digest=origin.digest(name, entry),
                by_source=origin.on_demand,
            )
            shader = self._shaders.setdefault(name, made)
        return shader

    def all(self) -> tuple[Shader, ...]:
        """Return every variant, sorted by name."""
        if isinstance(self._origin, OnDemand):
            self._origin.describe_all()
        return tuple(self.load(name) for name in sorted(self._origin.names()))

    def variants(self) -> list[tuple[str, str, dict[str, str | int]]]:
        """Return (name, template, axis values) of every variant, sorted by name."""
        return sorted(self._origin.expand(), key=lambda one: one[0])

    def find(self, template: str, axes: Mapping[str, str | int]) -> Shader:
        """Return the variant of `template` with these axis values.

        Raises:
            ShaderError: a value is unknown, or the combination is excluded; the existing ones are
                listed.
        """
        key = (template, *axes.items(), *map(type, axes.values()))  # True is not 1 here
        shader = self._found.get(key)
        if shader is None:
            shader = self._found[key] = self._find(template, axes)
        return shader

    def _find(self, template: str, axes: Mapping[str, str | int]) -> Shader:
        name = variant_name(template, tuple(axes.values()))
        entry = self._entry(name)
        if entry and entry["template"] == template and entry["axes"] == dict(axes):
            return self.load(name)
        known = self._origin.axes(template)
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
        """Return, for each axis, the values that fit the others as given."""
        built = [values for _, owner, values in self._origin.expand() if owner == template]
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
        return (
            "; ".join(lines) or "`python -m vkmnn.codegen list --variants` shows those that exist"
        )

    def _entry(self, name: str) -> dict[str, Any] | None:
        """Return a variant's declarations, None if there is no such variant."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._origin.entry(name)
            if entry is not None:
                self._entries[name] = entry
        return entry

    def module(self, name: str) -> bytes:
        """Return the SPIR-V of a variant."""
        return self._origin.module(name)

    def has(self, name: str) -> bool:
        """Return whether a variant has been compiled."""
        return self._origin.has(name)

    def prepare(self, names: Iterable[str]) -> None:
        """Compile those of the variants that have not been compiled yet, several at a time."""
        self._origin.prepare(names)


class Module:
    """Returns a variant's SPIR-V when it is called, which may compile it."""

    __slots__ = ("library", "name")

    def __init__(self, library: ShaderLibrary, name: str) -> None:
        self.library = library
        self.name = name

    def __call__(self) -> bytes:
        return self.library.module(self.name)


def is_pending(shader: Shader) -> bool:
    """Return whether a shader has yet to be compiled."""
    source = shader.spirv
    return isinstance(source, Module) and not source.library.has(shader.name)


def prepare(shaders: Iterable[Shader]) -> None:
    """Compile missing variants in parallel; does nothing if all are packed."""
    wanted: dict[ShaderLibrary, list[str]] = {}
    for shader in shaders:
        if shader.by_source and isinstance(shader.spirv, Module):
            wanted.setdefault(shader.spirv.library, []).append(shader.name)
    for library, names in wanted.items():
        library.prepare(names)


@functools.cache
def _library(folder: Path) -> ShaderLibrary:
    return ShaderLibrary(folder)


class BuiltShaders(Protocol):
    """Result of `vkmnn.codegen.compile_folder`: manifest entries and modules by variant."""

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


def shader_from_entry(
    name: str,
    entry: Mapping[str, Any],
    spirv: Callable[[], bytes],
    *,
    digest: str | None = None,
    by_source: bool = False,
) -> Shader:
    """Return the `Shader` that a manifest entry describes; `spirv` is called when it is needed.

    Args:
        name: name of the variant.
        entry: its entry.
        spirv: returns the module.
        digest: None for that of the module.
        by_source: whether the digest is that of the source.
    """
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
        digest=entry["spirv_sha256"] if digest is None else digest,
        subgroup_size=entry["subgroup_size"],
        by_source=by_source,
    )


def _text(axes: Mapping[str, str | int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in axes.items())


BUILTIN = ShaderLibrary.beside(__file__)
"""The shaders of vkmnn itself."""
