"""The built-in shaders: `kernels` for typed access, `load_shader` and `all_shaders` by name."""

from __future__ import annotations

from vkmnn.shaders.library import (
    BUILTIN,
    ShaderLibrary,
    shader_from_entry,
    shaders_from_build,
)

__all__ = [
    "ShaderLibrary",
    "all_shaders",
    "load_shader",
    "shader_from_entry",
    "shaders_from_build",
]

load_shader = BUILTIN.load
all_shaders = BUILTIN.all
