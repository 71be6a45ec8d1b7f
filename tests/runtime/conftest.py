"""Shared fixtures for tests of the runtime: shaders, and devices of the driver `vulkan`.

Tests that apply to every driver are in tests/driver.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator

import pytest

from tests.device_infos import FLOOR
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.features import target_for
from vkmnn.errors import ShaderError, ValidationLayerError
from vkmnn.runtime import (
    BindingType,
    Device,
    DeviceInfo,
    Shader,
    ShaderBinding,
    SpecConstant,
)
from vkmnn.runtime.device import enumerate_devices, open_device

MakeShader = Callable[..., Shader]

_HEAD = """#version 450
layout(local_size_x = {x}, local_size_y = {y}, local_size_z = {z}) in;
"""


@pytest.fixture(scope="session")
def make_info() -> Callable[..., DeviceInfo]:
    """Return a function that describes a device of the feature floor, with changes."""
    return lambda **changes: dataclasses.replace(FLOOR, **changes)


@pytest.fixture(scope="session")
def make_shader() -> MakeShader:
    """Return a function that compiles a GLSL body with the given bindings."""
    try:
        compiler = find_compiler()
    except ShaderError as error:
        pytest.skip(error.message)

    def make(
        name: str,
        body: str,
        bindings: str = "",
        push: int = 0,
        spec: tuple[SpecConstant, ...] = (),
        local: tuple[int, int, int] = (8, 1, 1),
        requires: frozenset[str] = frozenset(),
        subgroup_size: int = 0,
    ) -> Shader:
        """`bindings` reads "a:r:f32 b:rw:rgba32f": name, access, type or image format."""
        x, y, z = local
        glsl = _HEAD.format(x=x, y=y, z=z) + body
        code = compiler.compile(glsl, target_for(frozenset()), "none").spirv
        parsed = []
        for index, text in enumerate(bindings.split()):
            label, access, kind = text.split(":")
            storage = BindingType.TEXEL if "rgba" in kind else BindingType.STORAGE
            parsed.append(ShaderBinding(label, index, storage, access, kind))
        return Shader(
            name=name,
            bindings=tuple(parsed),
            push_constant_size=push,
            spec_constants=spec,
            requires=requires,
            local_size=local,
            spirv=lambda: code,
            digest=hashlib.sha256(code).hexdigest(),
            subgroup_size=subgroup_size,
        )

    return make


@pytest.fixture(scope="session")
def scale(make_shader: MakeShader) -> Shader:
    """y[i] = factor * x[i] for i < count (push constants: uint count, float factor)."""
    return make_shader(
        "scale",
        """
        layout(push_constant) uniform P { uint count; float factor; };
        layout(binding = 0) readonly buffer X { float x[]; };
        layout(binding = 1) writeonly buffer Y { float y[]; };
        void main() {
            uint i = gl_GlobalInvocationID.x
                + gl_GlobalInvocationID.y * gl_NumWorkGroups.x * gl_WorkGroupSize.x;
            if (i < count) y[i] = factor * x[i];
        }
        """,
        "x:r:f32 y:w:f32",
        push=8,
    )


@pytest.fixture(scope="session")
def texel_add(make_shader: MakeShader) -> Shader:
    """y[i] = x[i] + 1 for i < count, four floats an i, both through texel buffers."""
    return make_shader(
        "texel_add",
        """
        layout(push_constant) uniform P { uint count; };
        layout(binding = 0, rgba32f) uniform readonly imageBuffer x;
        layout(binding = 1, rgba32f) uniform writeonly imageBuffer y;
        void main() {
            int i = int(gl_GlobalInvocationID.x);
            if (i < count) imageStore(y, i, imageLoad(x, i) + 1.0);
        }
        """,
        "x:r:rgba32f y:w:rgba32f",
        push=4,
    )


@pytest.fixture(scope="session")
def spin(make_shader: MakeShader) -> Shader:
    """Keeps the device busy for about a second per 100 workgroups."""
    return make_shader(
        "spin",
        """
        layout(binding = 0) buffer Y { float y[]; };
        void main() {
            float v = y[gl_GlobalInvocationID.x];
            for (uint i = 0; i < 60000; i++) v = sin(v) + cos(v * 1.1) + exp(-v * v);
            y[gl_GlobalInvocationID.x] = v;
        }
        """,
        "y:rw:f32",
    )


@pytest.fixture(autouse=True)
def _vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the driver `vulkan`, whatever the environment asks the rest of the suite to run on."""
    monkeypatch.delenv("VKMNN_DRIVER", raising=False)


@pytest.fixture
def device() -> Device:
    """A device, under the validation layer if that is installed."""
    _need_device()
    try:
        return open_device("auto", validation=True)
    except ValidationLayerError:
        return open_device("auto", validation=False)


@pytest.fixture
def validated() -> Device:
    """A device under the validation layer; skips the test if the layer is not installed."""
    _need_device()
    try:
        return open_device("auto", validation=True)
    except ValidationLayerError as error:
        pytest.skip(error.message)


@pytest.fixture
def own_device() -> Iterator[Device]:
    """A device that the test may lose or close."""
    _need_device()
    device = open_device("auto", validation=False)
    device.close()
    device = open_device("auto", validation=False)
    yield device
    device.close()


def _need_device() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
