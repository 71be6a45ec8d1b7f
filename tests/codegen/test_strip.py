"""Shipped modules have no names, and are otherwise the same."""

from __future__ import annotations

from array import array
from dataclasses import replace

from tests.codegen.conftest import Project
from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.features import target_for
from vkmnn.codegen.reflect import reflect
from vkmnn.codegen.render import Renderer
from vkmnn.codegen.rounding import rounds_to_nearest
from vkmnn.codegen.strip import without_names
from vkmnn.codegen.variants import expand, load_entries
from vkmnn.shaders.library import BUILTIN


def opcodes(code: bytes) -> list[int]:
    words, at, found = array("I", code), 5, []
    while at < len(words):
        found.append(words[at] & 0xFFFF)
        at += words[at] >> 16
    assert at == len(words)
    return found


def test_committed_modules_have_no_names() -> None:
    for shader in BUILTIN.all()[::40]:
        code = shader.spirv()
        assert not {3, 4, 5, 6, 8} & set(opcodes(code))
        assert without_names(code) == code


def test_all_but_the_names_is_kept(project: Project, compiler: Compiler) -> None:
    for variant in expand(load_entries(project.glsl)):
        rendered = Renderer(project.glsl).render(variant)
        named = compiler.compile(
            rendered.text, target_for(variant.requires), variant.optimize
        ).spirv
        stripped = project.build().spirv[variant.name]
        assert stripped == rounds_to_nearest(without_names(named))
        assert opcodes(without_names(named)) == [
            code for code in opcodes(named) if code not in (3, 4, 5, 6)
        ]
        before, after = reflect(named), reflect(stripped)
        assert after.local_size == before.local_size
        assert after.capabilities == before.capabilities
        unnamed = [replace(binding, name="") for binding in before.bindings]
        assert [replace(binding, name="") for binding in after.bindings] == unnamed
