from __future__ import annotations

import struct

import pytest

from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.features import FEATURES, target_for
from vkmnn.codegen.reflect import (
    ReflectedBinding,
    ReflectedMember,
    ReflectedSpec,
    Reflection,
    reflect,
)
from vkmnn.errors import ShaderError

GLSL = """#version 450
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
layout(local_size_x = 8, local_size_y_id = 1) in;
layout(constant_id = 7) const float SCALE = -1.5;
layout(constant_id = 4) const bool FLIP = true;
layout(constant_id = 5) const int STEP = -3;
layout(set = 0, binding = 0, std430) readonly buffer A_Buffer { f16vec4 a_data[]; };
layout(set = 0, binding = 3, r32i) uniform iimageBuffer b_image;
layout(set = 0, binding = 2, std430) writeonly buffer C_Buffer { int8_t c_data[]; };
layout(set = 0, binding = 4) uniform U { vec4 u; };
layout(set = 1, binding = 0, std430) buffer D_Buffer { uvec2 d_data[]; };
layout(push_constant, std430) uniform P { uint n; float t[5]; int k; } pc;
void main()
{
    uint i = gl_GlobalInvocationID.x * gl_WorkGroupSize.y;
    int v = imageLoad(b_image, int(i)).x + (FLIP ? STEP : 0) + pc.k + int(pc.t[i % 5u]);
    imageStore(b_image, int(i), ivec4(v));
    c_data[i] = int8_t(int(vec4(a_data[i]).x * SCALE * u.x));
    d_data[i] += uvec2(pc.n);
}
"""


def module(compiler: Compiler, optimize: str, features: frozenset[str] = frozenset()) -> bytes:
    return compiler.compile(GLSL, target_for(features), optimize).spirv


@pytest.mark.parametrize("optimize", ["none", "-O"])
@pytest.mark.parametrize("features", [frozenset(), frozenset({"spirv_1_6"})])
def test_reads_everything(compiler: Compiler, optimize: str, features: frozenset[str]) -> None:
    found = reflect(module(compiler, optimize, features))
    assert found.version == ((1, 6) if features else (1, 3))
    assert found.bindings == (
        ReflectedBinding(0, 0, "a", "storage", "r", None, "f16vec4", 8),
        ReflectedBinding(0, 2, "c", "storage", "w", None, "int8_t", 1),
        ReflectedBinding(0, 3, "b", "texel", "rw", "r32i", None, None),
        found.bindings[3],
        ReflectedBinding(1, 0, "d", "storage", "rw", None, "uvec2", 8),
    )
    assert found.bindings[3].type == "uniform buffer"
    assert found.push_constants == (
        ReflectedMember("n", "uint", None, 0),
        ReflectedMember("t", "float", 5, 4),
        ReflectedMember("k", "int", None, 24),
    )
    assert found.spec_constants == (
        found.spec_constants[0],
        ReflectedSpec(4, "FLIP", "bool", True),
        ReflectedSpec(5, "STEP", "int", -3),
        ReflectedSpec(7, "SCALE", "float", -1.5),
    )
    assert found.spec_constants[0].id == 1
    assert found.local_size == (8, 1, 1)
    assert {"Shader", "ImageBuffer", "StorageBuffer16BitAccess", "StorageBuffer8BitAccess"} <= set(
        found.capabilities
    )


@pytest.mark.parametrize("data", [b"", b"abc", b"\0" * 40])
def test_refuses_what_is_not_spirv(data: bytes) -> None:
    with pytest.raises(ShaderError, match="not a SPIR-V module"):
        reflect(data)


def test_refuses_a_truncated_module(compiler: Compiler) -> None:
    spirv = module(compiler, "none")
    end = 5 * 4
    while struct.unpack_from("<I", spirv, end)[0] & 0xFFFF != 15:  # OpEntryPoint: several words
        end += 4 * (struct.unpack_from("<I", spirv, end)[0] >> 16)
    with pytest.raises(ShaderError, match="truncated"):
        reflect(spirv[: end + 8])


def test_reflection_is_plain_data(compiler: Compiler) -> None:
    spirv = module(compiler, "none")
    assert isinstance(reflect(spirv), Reflection)
    assert reflect(spirv) == reflect(spirv)


def test_feature_names_are_the_runtimes() -> None:
    driver = pytest.importorskip("vkmnn.runtime.drivers.vulkan.tables")
    known = {
        *(name for row in driver.FEATURE_STRUCTS for name in row.members.values() if name),
        *driver.CORE_FEATURES.values(),
        *driver.SUBGROUP_OPERATIONS.values(),
        *driver.SPIRV_VERSIONS,
        *(f"texel_{name}" for name in driver.TEXEL_FORMATS),
    }
    assert set(FEATURES) <= known
