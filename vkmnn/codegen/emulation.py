"""Subgroups and cooperative matrices that a device does not have, emulated.

For tests only: a kernel for subgroups of 32 then computes the same on a device whose subgroups have
4 or 8 invocations, slowly. Shuffles go through shared memory. They require what
`include/group.glsl.j2` observes as well: control flow that is uniform in the workgroup, and
workgroups that are rows along x. Matrices are those of `include/coop.glsl.j2`: the operands of a
product, float16 or signed bytes, are read from memory when they are multiplied, not when
they are loaded, so they need no storage; each invocation holds and computes four columns of their
sums, in two rows, or in one, which it computes twice.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vkmnn.codegen.build import compile_variant
from vkmnn.codegen.cache import Cache, source_digest
from vkmnn.codegen.compiler import CompileError
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.manifest import compiled_entry, declared_entry
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.codegen.variants import Condition, Variant, expand, load_entries
from vkmnn.errors import ShaderError

# Each exchange becomes two barriers: compiling more of them takes a driver minutes and gigabytes.
MAX_SHUFFLES = 32

_TYPES = ("float", "vec2", "vec4", "int", "ivec2", "ivec4", "uint", "uvec2", "uvec4")
_EXTENSION = re.compile(
    r"#extension GL_(KHR_(shader_subgroup|cooperative_matrix|memory_scope_semantics)|"
    r"EXT_shader_explicit_arithmetic_types_(float16|int8))"
)
_SIZE = re.compile(r"const uint SUBGROUP_SIZE = \d+u;")
_NAMES = """\
#define gl_SubgroupSize SUBGROUP_SIZE
#define gl_SubgroupID (gl_LocalInvocationIndex / SUBGROUP_SIZE)
#define gl_SubgroupInvocationID (gl_LocalInvocationIndex % SUBGROUP_SIZE)
#define subgroupElect() (gl_SubgroupInvocationID == 0u)
#define subgroupBarrier() memoryBarrier(), barrier()
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

_SHUFFLED = re.compile(r"\bsubgroupShuffle\((?:(\w+),)?")

# Cooperative matrices: the type of a variable, and its uses.
_MATRIX = re.compile(r"coopmat<\w+, gl_ScopeSubgroup, \d+, \d+, gl_MatrixUse(\w+)>")
_OPERAND = re.compile(r"coopmat<\w+, gl_ScopeSubgroup, \d+, (\d+), gl_MatrixUseA>")
_SUMS = re.compile(r"coopmat<\w+, gl_ScopeSubgroup, (\d+), (\d+), gl_MatrixUseAccumulator>")
_DECLARED = re.compile(rf"{_MATRIX.pattern} (\w+)")
_FILLED = re.compile(r"(coopmat<[^>]*Accumulator>)\(([^()]*)\)")
_ACCESSED = re.compile(r"coopMat(?:Load|Store)\((\w+), (\w+), .*Layout(\w+)Major\)")
_SHARED = re.compile(r"shared (uvec[24]) (\w+)\[")
# Right operands that lie in memory, matrix by matrix, instead of shared memory.
_BLOCKS = "b_data"
_BLOCK_LOADS = re.compile(rf"coopMatLoad\(\w+, {_BLOCKS}, .*ColumnMajor\)")
_BLOCKS_DECLARED = re.compile(r"#define b_load\(")
_RIGHT_ROWS = re.compile(r"coopMatLoad(?=\(right, .*LayoutRowMajor\))")
_TYPES_OF_USES = {"A": "EmulatedOperand", "B": "EmulatedOperand", "Accumulator": "EmulatedSums"}
_LAYOUTS = {"A": {"Row"}, "B": {"Column"}, "Accumulator": {"Row"}}
_COLUMN = """\
        column = emulated_column(b, first + {number}u, k);
        sums.first.{lane} += emulated_dot(row0, column);
        sums.second.{lane} += emulated_dot(row1, column);"""
_COLUMNS = "\n".join(_COLUMN.format(number=i, lane=lane) for i, lane in enumerate("xyzw"))
# Products of the elements of a row and a column in a cell of shared memory, summed.
_DOT_OF_HALVES = """\
float emulated_dot(uvec4 a, uvec4 b)
{
    vec2 sum = unpackHalf2x16(a.x) * unpackHalf2x16(b.x);
    sum += unpackHalf2x16(a.y) * unpackHalf2x16(b.y);
    sum += unpackHalf2x16(a.z) * unpackHalf2x16(b.z);
    sum += unpackHalf2x16(a.w) * unpackHalf2x16(b.w);
    return sum.x + sum.y;
}
"""
_DOT_OF_BYTES = """\
int emulated_dot(uint a, uint b)
{
    ivec4 products = ivec4(a) << ivec4(24, 16, 8, 0) >> 24;
    products *= ivec4(b) << ivec4(24, 16, 8, 0) >> 24;
    return products.x + products.y + products.z + products.w;
}
int emulated_dot(uvec2 a, uvec2 b)
{
    return emulated_dot(a.x, b.x) + emulated_dot(a.y, b.y);
}
int emulated_dot(uvec4 a, uvec4 b)
{
    return emulated_dot(a.xy, b.xy) + emulated_dot(a.zw, b.zw);
}
"""
# Only halves may lie in rows; those of a column are then collected one by one.
_COLUMN_OF_ROWS = """\
    if (b.rows)
    {
        uvec4 halves = uvec4(0u);
        [[dont_unroll]] for (uint row = 0u; row < 8u; ++row)
        {
            uvec4 across = MEMORY[b.at + (8u * k + row) * b.stride + column / 8u];
            uint bits = across[column / 2u % 4u] >> 16u * (column & 1u) & 0xffffu;
            halves[row / 2u] |= bits << 16u * (row & 1u);
        }
        return halves;
    }
"""
_STORED = """\
    MEMORY[at] = first;
    MEMORY[at + (TALL - 1u) * stride] = second;"""
_STORED_IN_HALVES = """\
    MEMORY[at] = first.xy;
    MEMORY[at + 1u] = first.zw;
    MEMORY[at + (TALL - 1u) * stride] = second.xy;
    MEMORY[at + (TALL - 1u) * stride + 1u] = second.zw;"""
_MATRICES = f"""\
struct EmulatedOperand
{{
    uint at;
    uint stride;
    bool rows;
}};
struct EmulatedSums
{{
    SUMS first;
    SUMS second;
}};
#define coopMatLoad(matrix, memory, place, stride, layout) \\
    matrix = EmulatedOperand(place, stride, false)
#define coopMatLoadRows(matrix, memory, place, stride, layout) \\
    matrix = EmulatedOperand(place, stride, true)
#define coopMatStore(matrix, memory, place, stride, layout) emulated_store(matrix, place, stride)
void emulated_store(EmulatedSums sums, uint place, uint stride)
{{
    uint lane = gl_SubgroupInvocationID;
    uint at = place + lane / ACROSS * TALL * stride + lane % ACROSS * CELLS;
    uvec4 first = UINTS(sums.first);
    uvec4 second = UINTS(sums.second);
STORED
}}
CELL emulated_column(EmulatedOperand b, uint column, uint k)
{{
COLLECTEDreturn BLOCKS[b.at + column * b.stride + k];
}}
DOTEmulatedSums coopMatMulAdd(EmulatedOperand a, EmulatedOperand b, EmulatedSums sums)
{{
    uint lane = gl_SubgroupInvocationID;
    uint left = a.at + lane / ACROSS * TALL * a.stride;
    uint first = lane % ACROSS * 4u;
    [[dont_unroll]] for (uint k = 0u; k < VECTORS; ++k)
    {{
        CELL row0 = MEMORY[left + k];
        CELL row1 = MEMORY[left + (TALL - 1u) * a.stride + k];
        CELL column;
{_COLUMNS}
    }}
    return sums;
}}"""
# Requirements of cooperative matrices: emulated ones are structures of floats.
_OF_MATRICES = frozenset(
    {"cooperative_matrix", "float16", "int8", "vulkan_memory_model", "spirv_1_6", "maintenance4"}
)


def is_emulated(feature: str) -> bool:
    """Return whether a kernel does without a feature once subgroups and matrices are emulated."""
    return feature.startswith("subgroup_") or feature in {"full_subgroups", *_OF_MATRICES}


def emulate(rendered: Rendered) -> Rendered:
    """Return a rendered variant that declares `subgroup_size` with its subgroups emulated.

    Raises:
        ShaderError: it uses matrices in another way than `include/coop.glsl.j2`.
    """
    _check_coopmat(rendered)
    text: list[str] = []
    places: list[tuple[str, int]] = []
    shuffled = _types_shuffled(rendered.text)
    matrices = "coopmat<" in rendered.text
    # Functions that read memory come after what declares it.
    ready = _BLOCKS_DECLARED if _BLOCK_LOADS.search(rendered.text) else _SHARED
    for line, place in zip(rendered.text.splitlines(), rendered.lines, strict=True):
        if _EXTENSION.match(line):
            continue
        lines = [line]
        if _SIZE.fullmatch(line):
            functions = (_SHUFFLE.format(type=name) for name in shuffled)
            lines += "\n".join([_NAMES, *functions]).splitlines()
        elif matrices and ready.match(line):
            lines += _coopmat(rendered, *_SHARED.findall(rendered.text)[0]).splitlines()
        elif matrices:
            filled = _RIGHT_ROWS.sub("coopMatLoadRows", _FILLED.sub(_fill, line))
            lines = [_MATRIX.sub(lambda found: _TYPES_OF_USES[found.group(1)], filled)]
        text += lines
        places += [place] * len(lines)
    declared = replace(rendered.declared, subgroup_size=0)
    return Rendered("\n".join(text) + "\n", tuple(places), declared)


def _types_shuffled(text: str) -> list[str]:
    """Return the types of what invocations may exchange; each takes shared memory."""
    names = set(_SHUFFLED.findall(text))
    types = {name: re.findall(rf"\b({'|'.join(_TYPES)}) {name}\b", text) for name in names}
    if not all(types.values()):  # an expression, or declared in another way
        return [*_TYPES]
    return sorted({each for found in types.values() for each in found})


def _fill(found: re.Match[str]) -> str:
    """Return the code that fills sums with a number."""
    matrix, number = found.groups()
    vector = "ivec4" if matrix.startswith("coopmat<int,") else "vec4"
    return f"{matrix}({vector}({number}), {vector}({number}))"


def _coopmat(rendered: Rendered, cell: str, memory: str) -> str:
    """Return the replacement for matrices of a variant's sizes and elements."""
    rows, columns = map(int, _SUMS.findall(rendered.text)[0])
    of_bytes = "coopmat<int8_t," in rendered.text
    k = int(_OPERAND.findall(rendered.text)[0])
    each = (16 if of_bytes else 8) // (2 if cell == "uvec2" else 1)
    tall, rest = divmod(rows * columns, 4 * rendered.declared.subgroup_size)
    if tall not in (1, 2) or rest or k % each:
        raise ShaderError(
            f"matrices of {rows}x{columns}x{k} in subgroups of {rendered.declared.subgroup_size} "
            "cannot be emulated: an invocation holds four or eight sums"
        )
    whole = cell == "uvec4"
    names = {
        "STORED": _STORED if whole else _STORED_IN_HALVES,
        "DOT": _DOT_OF_BYTES if of_bytes else _DOT_OF_HALVES,
        "COLLECTED": _COLUMN_OF_ROWS if whole and not of_bytes else "",
        "MEMORY": memory,
        "BLOCKS": _BLOCKS if _BLOCK_LOADS.search(rendered.text) else memory,
        "TALL": f"{tall}u",
        "ACROSS": f"{columns // 4}u",
        "VECTORS": f"{k // each}u",
        "SUMS": "ivec4" if of_bytes else "vec4",
        "UINTS": "uvec4" if of_bytes else "floatBitsToUint",
        "CELLS": "1u" if whole else "2u",
        "CELL": cell,
    }
    text = _MATRICES
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def _check_coopmat(rendered: Rendered) -> None:
    """Refuse layouts that are not emulated, and memory but one shared array and right operands."""
    uses = dict(found[::-1] for found in _DECLARED.findall(rendered.text))
    cells = {name: cell for cell, name in _SHARED.findall(rendered.text)}
    halves = "uvec4" in cells.values() and "coopmat<int8_t," not in rendered.text
    layouts = _LAYOUTS | ({"right": {"Column", "Row"}} if halves else {})
    for number, line in enumerate(rendered.text.splitlines()):
        for matrix, array, layout in _ACCESSED.findall(line):
            allowed = layouts.get(matrix, layouts[uses[matrix]])
            blocks = uses[matrix] == "B" and array == _BLOCKS
            if not (blocks or set(cells) == {array}) or layout not in allowed:
                file, place = rendered.lines[number]
                raise ShaderError(f"'{line.strip()}' cannot be emulated", template=file, line=place)


def compile_emulated(folder: Path, template: str, name: str) -> tuple[dict[str, Any], bytes]:
    """Compile a variant with its subgroups and matrices emulated, through the cache.

    Args:
        folder: templates, includes and macro.json.
        template: the variant's template.
        name: the variant.

    Returns:
        Its entry as in manifest.json, and the SPIR-V.

    Raises:
        ShaderError: there is no such variant or no compiler, or what the variant does with
            subgroups or matrices cannot be emulated.
    """
    compiler = find_compiler(None)
    (found,) = (v for v in expand(load_entries(folder, frozenset([template]))) if v.name == name)
    needs = tuple(sorted(need for need in found.requires if not is_emulated(need)))
    rules = ((Condition(()), found.optimize),)
    entry = replace(found.template, requires=((Condition(()), needs),), optimize=rules)
    variant = Variant(name, entry, found.axes)
    plain = Renderer(folder).render(found, emulated=True)
    shuffles = plain.text.count("subgroupShuffle(")
    if shuffles > MAX_SHUFFLES:
        raise ShaderError(
            f"{name} has {shuffles} shuffles, too many to emulate (at most {MAX_SHUFFLES})",
            template=entry.file,
            line=1,
        )
    rendered = emulate(plain)
    declared = {need for need in rendered.declared.needs if not is_emulated(need)}
    requires = variant.requires | declared
    described = declared_entry(variant, requires, rendered)
    digest = source_digest(described, variant.optimize)
    cache = Cache.of(folder.parent)
    module = cache.module(digest, compiler.identity)
    if module is None:
        try:
            module = compile_variant(variant, rendered, requires, compiler)
        except CompileError as error:
            raise ShaderError(
                f"{name} cannot be emulated: {error.log_text.strip()}",
                template=entry.file,
                line=1,
            ) from None
        cache.put_module(digest, module, compiler.identity)
    return compiled_entry(described, module), module.spirv
