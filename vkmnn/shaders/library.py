"""Loads the built-in shaders: `manifest.json` once, each SPIR-V file on first use."""

from __future__ import annotations

import difflib
import functools
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vkmnn.errors import ShaderError
from vkmnn.runtime.shader import BindingType, Shader, ShaderBinding, SpecConstant

_FOLDER = Path(__file__).resolve().parent


@functools.cache
def _manifest() -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((_FOLDER / "manifest.json").read_text(encoding="utf-8"))
    return manifest


@functools.cache
def _spirv(name: str) -> bytes:
    return (_FOLDER / "spirv" / f"{name}.spv").read_bytes()


@functools.cache
def load_shader(name: str) -> Shader:
    """Return the variant called `name` (`"unary_relu_f32_ssbo"`).

    Raises:
        ShaderError: there is no such variant; the hint names the nearest one.
    """
    variants = _manifest()["variants"]
    if name not in variants:
        near = difflib.get_close_matches(name, variants, n=3)
        raise ShaderError(
            f"there is no shader variant '{name}'",
            hint=f"did you mean {' or '.join(near)}?" if near else "`python -m vkmnn.codegen list`",
        )
    return shader_from_entry(name, variants[name], functools.partial(_spirv, name))


def shader_from_entry(name: str, entry: Mapping[str, Any], spirv: Callable[[], bytes]) -> Shader:
    """Return the `Shader` that a manifest entry describes.

    Also for variants built at run time: `vkmnn.codegen.build.build` returns their entries and
    SPIR-V by name.
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
        digest=entry["spirv_sha256"],
        subgroup_size=entry["subgroup_size"],
    )


def all_shaders() -> tuple[Shader, ...]:
    """Return every variant, sorted by name."""
    return tuple(load_shader(name) for name in sorted(_manifest()["variants"]))


def find_shader(template: str, axes: Mapping[str, str | int]) -> Shader:
    """Return the variant of `template` with these axis values.

    Raises:
        ShaderError: a value is unknown, or the combination is excluded; says what exists.
    """
    name = "_".join([template, *(str(value).lower() for value in axes.values())])
    entry = _manifest()["variants"].get(name)
    if entry and entry["template"] == template and entry["axes"] == dict(axes):
        return load_shader(name)
    known = _manifest()["templates"][template]["axes"]
    for axis, value in axes.items():
        if value not in known[axis]:
            raise ShaderError(
                f"shader '{template}': {axis}={value!r} does not exist",
                hint=f"{axis} is one of: {', '.join(map(str, known[axis]))}",
            )
    raise ShaderError(
        f"shader '{template}': the combination {_text(axes)} is not built",
        hint=_alternatives(template, axes),
    )


def _text(axes: Mapping[str, str | int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in axes.items())


def _alternatives(template: str, axes: Mapping[str, str | int]) -> str:
    """Say for each axis which values go with the others as given."""
    built = [
        entry["axes"] for entry in _manifest()["variants"].values() if entry["template"] == template
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


_Value = int | float | tuple[int, ...] | tuple[float, ...]


def pack_params(
    owner: str, layout: struct.Struct, fields: tuple[tuple[str, _Value, int | None], ...]
) -> bytes:
    """Pack a parameter block; fields are (name, value, length of an array or None).

    Raises:
        ShaderError: an array of the wrong length, or a number out of range.
    """
    flat: list[int | float] = []
    for name, value, count in fields:
        if count is None:
            if isinstance(value, tuple):
                raise ShaderError(f"{owner}.{name} is one number, not a tuple")
            flat.append(value)
            continue
        if not isinstance(value, tuple) or len(value) != count:
            raise ShaderError(f"{owner}.{name} must be a tuple of {count} numbers, not {value!r}")
        flat.extend(value)
    try:
        return layout.pack(*flat)
    except (struct.error, OverflowError) as error:
        shown = ", ".join(f"{name}={value!r}" for name, value, _ in fields)
        raise ShaderError(f"{owner}({shown}): {error}") from None
