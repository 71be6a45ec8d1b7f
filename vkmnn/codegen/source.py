"""The generator as a library: template text, a template file or a folder in, SPIR-V out.

Nothing here needs jinja2 or a compiler until something is compiled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.codegen.places import BUILTIN_FOLDER, TEMPLATE_SUFFIX
from vkmnn.errors import ShaderError

if TYPE_CHECKING:
    from vkmnn.codegen.build import Built

_INCLUDES = "include"
_NO_AXES: Mapping[str, str | int] = {}
_LONGEST_NAME = 100  # it becomes part of names of files


@dataclass(frozen=True, slots=True)
class CompiledSource:
    """One variant, compiled.

    Attributes:
        name: the name of the variant.
        glsl: the rendered text.
        spirv: the module.
        entry: the variant's entry of manifest.json: bindings, specialization constants, ...
        params: name, type, count, offset and default of each push constant.
    """

    name: str
    glsl: str
    spirv: bytes
    entry: dict[str, Any]
    params: list[dict[str, Any]]


def compile_folder(
    folder: str | Path, *, only: Iterable[str] = (), glslang: str | Path | None = None
) -> Built:
    """Build the templates of a folder, as `python -m vkmnn.codegen` does; writes to its cache only.

    Args:
        folder: templates, includes and macro.json.
        only: names of the templates to build (`"scale"`); empty for all.
        glslang: the compiler; None for the default of the command.

    Returns:
        Manifest entries (`variants`) and modules (`spirv`) by variant name;
        `vkmnn.shaders.shaders_from_build` makes shaders of them.

    Raises:
        ShaderError: a template is wrong, with file, line and the line's text (all that is wrong,
            when it is more than one thing); or jinja2 or a compiler is missing.
    """
    try:
        from vkmnn.codegen.build import BuildFailedError, build
        from vkmnn.codegen.cache import Cache
        from vkmnn.codegen.compilers import find_compiler
    except ModuleNotFoundError as error:
        if error.name != "jinja2":
            raise
        raise ShaderError(
            "shaders cannot be compiled: jinja2 is not installed",
            hint="pip install 'vkmnn[codegen]'",
        ) from None
    compiler = find_compiler(glslang)
    folder = Path(folder)
    try:
        return build(folder, compiler, cache=Cache.of(folder.parent), only=frozenset(only))
    except BuildFailedError as error:
        if len(error.failures) == 1:
            raise error.failures[0] from None
        raise


def compile_source(
    source: str | Path,
    axes: Mapping[str, str | int] = _NO_AXES,
    *,
    requires: Iterable[str] = (),
    name: str = "shader",
    glslang: str | Path | None = None,
) -> CompiledSource:
    """Compile one variant of a template.

    Args:
        source: the text of a template, or a template file: a Path, or a string that ends with
            `.comp.j2`, which may also be the name of a built-in template. A file may use the folder
            `include` next to it, and if macro.json next to it lists the file, its statements on
            features and optimisation apply.
        axes: a value for each axis of the template.
        requires: features that the variant needs, as in macro.json.
        name: the name of the template, if `source` is its text.
        glslang: the compiler; None for the default of `python -m vkmnn.codegen`.

    Raises:
        ShaderError: as `compile_folder`; or there is no such file or variant.
    """
    for axis, value in axes.items():
        if not isinstance(value, (str, int)):
            raise ShaderError(f"axis {axis} is {value!r}", hint="axis values are words or integers")
    if not name.isidentifier() or len(name) > _LONGEST_NAME:
        raise ShaderError(
            f"a template cannot be called {name[:_LONGEST_NAME]!r}",
            hint=f"use an identifier of up to {_LONGEST_NAME} characters",
        )
    file = _file_of(source)
    with tempfile.TemporaryDirectory(prefix="vkmnn-source-") as temporary:
        folder = Path(temporary)
        entry: dict[str, Any] = {"requires": sorted(requires)}
        if file is None:
            (folder / f"{name}{TEMPLATE_SUFFIX}").write_text(
                str(source), encoding="utf-8", newline="\n"
            )
        else:
            name = file.name.removesuffix(TEMPLATE_SUFFIX)
            entry = _policy(file, axes, entry["requires"])
            shutil.copy(file, folder / file.name)
            if (file.parent / _INCLUDES).is_dir():
                shutil.copytree(file.parent / _INCLUDES, folder / _INCLUDES)
        entry["axes"] = {axis: [value] for axis, value in axes.items()}
        macro = json.dumps({f"{name}{TEMPLATE_SUFFIX}": entry})
        (folder / "macro.json").write_text(macro, encoding="utf-8")
        built = compile_folder(folder, glslang=glslang)
        from vkmnn.codegen.render import Renderer
        from vkmnn.codegen.variants import expand, load_entries

        (variant,) = expand(load_entries(folder))
        glsl = Renderer(folder).render(variant).text
    return CompiledSource(
        variant.name,
        glsl,
        built.spirv[variant.name],
        built.variants[variant.name],
        built.templates[name]["params"],
    )


_OTHER_FILES = re.compile(r"[^\n]*\.(comp|glsl|spv|spirv|slang|hlsl|wgsl|cl|cu|metal)")
_PLAIN = (
    'a template declares its tensors: tensor_in("x"), tensor_out("y"), and vkmnn writes the '
    "version, the bindings and the push constants; `vkmnn.shader` has an example"
)


def _check_source(source: object) -> None:
    """Refuse a source that is neither a template's text nor its file.

    Raises:
        ShaderError: names it, and the possible ones.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        spirv = bytes(source[:4]) in (b"\x03\x02\x23\x07", b"\x07\x23\x02\x03")
        raise ShaderError(
            "the source is SPIR-V, which vkmnn.shader does not take"
            if spirv
            else "the source is bytes, not text",
            hint=f"pass the text of a template; {_PLAIN}" if spirv else "decode it first",
        )
    if not isinstance(source, str | os.PathLike):
        raise ShaderError(
            f"the source is text or a path, not {type(source).__name__}",
            hint="pass the text of a template, or the path of a .comp.j2 file",
        )
    text = str(source)
    if _OTHER_FILES.fullmatch(text):
        what = "is not a template" if Path(text).is_file() else "does not exist"
        raise ShaderError(
            f"the file '{text}' {what}", hint=f"templates are called …{TEMPLATE_SUFFIX}; {_PLAIN}"
        )
    if isinstance(source, str) and re.match(r"\s*#version\b", source):
        raise ShaderError(
            "the source is plain GLSL: templates have no #version",
            hint=f"remove the line, and the layout(...) of buffers; {_PLAIN}",
        )


def _file_of(source: str | Path) -> Path | None:
    """Return the template file, None if the template is a string."""
    _check_source(source)
    if isinstance(source, str) and ("\n" in source or not source.endswith(TEMPLATE_SUFFIX)):
        return None

    for path in (Path(source), BUILTIN_FOLDER / source):
        if path.is_file():
            if not path.name.endswith(TEMPLATE_SUFFIX):
                raise ShaderError(
                    f"{path} is not called …{TEMPLATE_SUFFIX}", hint="rename the template"
                )
            return path.resolve()
    raise ShaderError(
        f"there is no template {source}",
        hint="source text has more than one line; a file must exist",
    )


def _policy(file: Path, axes: Mapping[str, str | int], requires: list[str]) -> dict[str, Any]:
    """Return the entry of macro.json next to a file for the variant with these axis values."""
    from vkmnn.codegen.places import MACRO_FILE
    from vkmnn.codegen.variants import expand, load_entries

    macro = file.parent / MACRO_FILE
    if not macro.is_file() or file.name not in json.loads(macro.read_text(encoding="utf-8")):
        return {"requires": requires}
    only = frozenset([file.name.removesuffix(TEMPLATE_SUFFIX)])
    variants = expand(load_entries(file.parent, only))
    for variant in variants:
        if variant.axes == dict(axes):
            return {
                "requires": sorted({*variant.requires, *requires}),
                "optimize": variant.optimize,
            }
    names = [variant.name for variant in variants]
    raise ShaderError(
        f"{file.name} has no variant with the axis values {dict(axes)}",
        hint=f"variants: {', '.join(names[:6])}{' …' if len(names) > 6 else ''}",
    )
