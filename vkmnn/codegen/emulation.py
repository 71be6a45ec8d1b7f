"""Subgroups that a device does not have, emulated: shuffles go through shared memory.

For tests only: a kernel for subgroups of 32 then computes the same on a device whose subgroups have
4 or 8 invocations, slowly. All it asks for is what `include/group.glsl.j2` keeps to as well:
shuffles stand in control flow that is uniform in the workgroup, and workgroups are rows along x.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vkmnn.codegen.build import compile_rendered
from vkmnn.codegen.cache import Cache, cache_folder
from vkmnn.codegen.compilers import CompileError, find_compiler
from vkmnn.codegen.crosscheck import cross_check
from vkmnn.codegen.failures import raise_all
from vkmnn.codegen.manifest import variant_entry
from vkmnn.codegen.reflect import reflect
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.codegen.variants import Condition, Variant, expand, load_entries
from vkmnn.errors import ShaderError

# Each exchange becomes two barriers: a driver takes minutes and gigabytes over more of them.
MAX_SHUFFLES = 32

_TYPES = ("float", "vec2", "vec4", "int", "ivec2", "ivec4", "uint", "uvec2", "uvec4")
_EXTENSION = re.compile(r"#extension GL_KHR_shader_subgroup_")
_SIZE = re.compile(r"const uint SUBGROUP_SIZE = \d+u;")
_NAMES = """\
#define gl_SubgroupSize SUBGROUP_SIZE
#define gl_SubgroupID (gl_LocalInvocationIndex / SUBGROUP_SIZE)
#define gl_SubgroupInvocationID (gl_LocalInvocationIndex % SUBGROUP_SIZE)
#define subgroupElect() (gl_SubgroupInvocationID == 0u)
#define subgroupShuffle emulated_shuffle"""
_SHUFFLE = """\
shared {type} emulated_{type}[gl_WorkGroupSize.x];
{type} emulated_shuffle({type} value, uint id)
{{
    barrier();
    emulated_{type}[gl_LocalInvocationIndex] = value;
    barrier();
    return emulated_{type}[gl_SubgroupID * SUBGROUP_SIZE + id];
}}"""


def is_of_subgroups(feature: str) -> bool:
    """Say whether a kernel does without a feature once its subgroups are emulated."""
    return feature.startswith("subgroup_") or feature == "full_subgroups"


def emulate_subgroups(rendered: Rendered) -> Rendered:
    """Return a rendered variant that declares `subgroup_size` with its subgroups emulated."""
    text: list[str] = []
    places: list[tuple[str, int]] = []
    for line, place in zip(rendered.text.splitlines(), rendered.lines, strict=True):
        if _EXTENSION.match(line):
            continue
        lines = [line]
        if _SIZE.fullmatch(line):
            shuffles = (_SHUFFLE.format(type=name) for name in _TYPES)
            lines += "\n".join([_NAMES, *shuffles]).splitlines()
        text += lines
        places += [place] * len(lines)
    declared = replace(rendered.declared, subgroup_size=0)
    return Rendered("\n".join(text) + "\n", tuple(places), declared)


def compile_emulated(folder: Path, template: str, name: str) -> tuple[dict[str, Any], bytes]:
    """Compile a variant with its subgroups emulated, through the cache.

    Args:
        folder: templates, includes and macro.json.
        template: the variant's template.
        name: the variant.

    Returns:
        Its entry as in manifest.json, and the SPIR-V.

    Raises:
        ShaderError: there is no such variant or no compiler, or what the variant does with
            subgroups cannot be emulated.
    """
    compiler = find_compiler(None)
    (found,) = (v for v in expand(load_entries(folder, frozenset([template]))) if v.name == name)
    needs = tuple(sorted(need for need in found.requires if not is_of_subgroups(need)))
    rules = ((Condition(()), found.optimize),)
    entry = replace(found.template, requires=((Condition(()), needs),), optimize=rules)
    variant = Variant(name, entry, found.axes)
    plain = Renderer(folder).render(found)
    shuffles = plain.text.count("subgroupShuffle(")
    if shuffles > MAX_SHUFFLES:
        raise ShaderError(
            f"{name} has {shuffles} shuffles, too many to emulate (at most {MAX_SHUFFLES})",
            template=entry.file,
            line=1,
        )
    rendered = emulate_subgroups(plain)
    try:
        compiled, _, _ = compile_rendered(rendered, variant, compiler, Cache(cache_folder()))
    except CompileError as error:
        raise ShaderError(
            f"the subgroups of {name} cannot be emulated: {error.log_text.strip()}",
            template=entry.file,
            line=1,
        ) from None
    reflection = reflect(compiled.spirv)
    raise_all(cross_check(entry.file, rendered.declared, reflection, variant.requires))
    return variant_entry(variant, rendered, compiled, reflection), compiled.spirv
