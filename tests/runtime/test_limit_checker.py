"""Violations of a profile's device limits are detected when they reach the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.conftest import MakeShader
from vkmnn.errors import DeviceLimitError
from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo
from vkmnn.runtime.device_profiles import load_profile
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.footprint import Footprint, footprint
from vkmnn.runtime.limit_checker import CAPABILITIES, CheckedDevice, check_shader
from vkmnn.runtime.memory import Buffer, BufferRange, MemoryKind
from vkmnn.runtime.shader import Shader, SpecConstant
from vkmnn.shaders import all_shaders
from vkmnn.testing.profile_driver import ProfileDriver

KERNELS = {shader.name: shader for shader in all_shaders()}


@pytest.fixture
def info() -> DeviceInfo:
    (info,) = ProfileDriver(load_profile("geforce-rtx-3060-laptop")).enumerate()
    return info


Open = Callable[..., CheckedDevice]


@pytest.fixture
def open_with(info: DeviceInfo) -> Open:
    """Open a device with some limits changed; it computes nothing."""

    def opened(**changes: Any) -> CheckedDevice:
        changed = replace(info, limits=replace(info.limits, **changes))
        driver = ProfileDriver(load_profile("geforce-rtx-3060-laptop"))
        return CheckedDevice(driver.open(info, validation=False, disabled=frozenset()), changed)

    return opened


def spec_of(shader: Shader) -> dict[str, int | float | bool]:
    return {constant.name: constant.default for constant in shader.spec_constants}


def whole(buffer: DriverBuffer, offset: int, nbytes: int) -> BufferRange:
    return BufferRange(Buffer(None, buffer.nbytes, MemoryKind.DEVICE, buffer), offset, nbytes)  # type: ignore[arg-type]


def test_too_many_and_too_large_buffers(open_with: Open) -> None:
    device = open_with(max_allocation_count=2, max_allocation_bytes=1 << 20)
    first = device.allocate(1000, MemoryKind.DEVICE)
    with pytest.raises(DeviceLimitError, match="max_allocation_bytes"):
        device.allocate(1 << 20, MemoryKind.DEVICE)
    second = device.allocate(1000, MemoryKind.DEVICE)
    with pytest.raises(DeviceLimitError, match="max_allocation_count") as caught:
        device.allocate(1000, MemoryKind.DEVICE)
    assert caught.value.limit == "max_allocation_count"
    first.destroy()
    third = device.allocate(1000, MemoryKind.DEVICE)
    assert (second.nbytes, third.nbytes) == (1000, 1000)


@pytest.mark.parametrize(
    ("limit", "changes", "offset", "nbytes", "groups"),
    [
        ("max_storage_buffer_range", {"max_storage_buffer_range": 1000}, 0, 1004, (1, 1, 1)),
        ("storage_offset_alignment", {"storage_offset_alignment": 256}, 128, 64, (1, 1, 1)),
        ("max_workgroup_count", {"max_workgroup_count": (7, 1, 1)}, 0, 64, (8, 1, 1)),
        ("max_workgroup_count", {"max_workgroup_count": (7, 1, 1)}, 0, 64, (1, 2, 1)),
    ],
)
def test_a_dispatch_that_breaks_a_limit(
    limit: str,
    changes: dict[str, Any],
    offset: int,
    nbytes: int,
    groups: tuple[int, int, int],
    open_with: Open,
    scale: Shader,
) -> None:
    device = open_with(**changes)
    pipeline = device.create_pipeline(scale, scale.spirv(), spec_of(scale))
    buffer = device.allocate(4096, MemoryKind.DEVICE)
    ranges = [whole(buffer, 0, 64)] * (len(scale.bindings) - 1) + [whole(buffer, offset, nbytes)]
    recorder = device.recorder(False)
    with pytest.raises(DeviceLimitError, match=limit):
        recorder.dispatch(pipeline, ranges, bytes(scale.push_constant_size), groups)
    recorder.dispatch(pipeline, [whole(buffer, 0, 64)] * len(ranges), b"", (1, 1, 1))


@pytest.mark.parametrize(
    ("limit", "changes", "offset", "nbytes"),
    [
        ("max_texel_buffer_elements", {"max_texel_buffer_elements": 3}, 0, 64),
        ("texel_offset_alignment", {"texel_offset_alignment": 64}, 32, 32),
    ],
)
def test_texel_buffers(
    limit: str,
    changes: dict[str, Any],
    offset: int,
    nbytes: int,
    open_with: Open,
    texel_add: Shader,
) -> None:
    device = open_with(**changes)
    pipeline = device.create_pipeline(texel_add, texel_add.spirv(), spec_of(texel_add))
    buffer = device.allocate(4096, MemoryKind.DEVICE)
    ranges = [whole(buffer, offset, nbytes)] * len(texel_add.bindings)
    with pytest.raises(DeviceLimitError, match=limit):
        device.recorder(False).dispatch(pipeline, ranges, b"", (1, 1, 1))


SHARED = "conv_shared_32x32_0_f32"
COOPMAT_KERNEL = "matmul_coop_64x64w32x32k1_64_0_0_1"


@pytest.mark.parametrize(
    ("kernel", "limit", "changes"),
    [
        (SHARED, "max_shared_memory", {"max_shared_memory": 4096}),
        (SHARED, "max_workgroup_invocations", {"max_workgroup_invocations": 32}),
        (SHARED, "max_workgroup_size", {"max_workgroup_size": (8, 1, 1)}),
        (SHARED, "max_push_constants", {"max_push_constants": 16}),
        (SHARED, "max_storage_bindings", {"max_storage_bindings": 4}),
        (SHARED, "max_bindings", {"max_bindings": 4}),
        ("arg_reduce_f32_1_texel", "max_texel_bindings", {"max_texel_bindings": 0}),
        (COOPMAT_KERNEL, "subgroup_size_range", {"subgroup_size_range": (64, 64)}),
        (COOPMAT_KERNEL, "subgroup_size_range", {"subgroup_size_range": (8, 16)}),
    ],
)
def test_a_shader_that_breaks_a_limit(
    kernel: str, limit: str, changes: dict[str, Any], open_with: Open
) -> None:
    shader = KERNELS[kernel]
    open_with().create_pipeline(shader, shader.spirv(), spec_of(shader))
    with pytest.raises(DeviceLimitError, match=limit) as caught:
        open_with(**changes).create_pipeline(shader, shader.spirv(), spec_of(shader))
    assert caught.value.limit == limit


@pytest.mark.parametrize(
    "feature", ["cooperative_matrix", "float16", "storage16", "spirv_1_6", "subgroup_size_control"]
)
def test_a_shader_that_uses_what_the_device_lacks(feature: str, info: DeviceInfo) -> None:
    shader = KERNELS[COOPMAT_KERNEL]
    needs = footprint(shader.spirv(), {})
    check_shader(shader, needs, info)
    with pytest.raises(DeviceLimitError) as caught:
        check_shader(shader, needs, replace(info, features=info.features - {feature}))
    assert caught.value.limit == feature


def test_matrices_of_sizes_that_the_device_lacks(info: DeviceInfo) -> None:
    shader = KERNELS[COOPMAT_KERNEL]
    needs = footprint(shader.spirv(), {})
    other = CooperativeMatrixShape(8, 8, 16, "f16", "f16", "f32", "f32", "subgroup", False)
    with pytest.raises(DeviceLimitError, match="cooperative_matrices"):
        check_shader(shader, needs, replace(info, cooperative_matrices=(other,)))


def test_an_unknown_capability(info: DeviceInfo, scale: Shader) -> None:
    with pytest.raises(DeviceLimitError, match="capability 5"):
        check_shader(scale, Footprint((1, 3), capabilities={5}), info)


def test_timestamps_that_the_device_lacks(open_with: Open) -> None:
    device = open_with()
    device.info = replace(device.info, features=device.info.features - {"timestamps"})
    with pytest.raises(DeviceLimitError, match="timestamps"):
        device.recorder(True)


@pytest.fixture(scope="module")
def footprints() -> dict[str, Footprint]:
    found = {}
    for shader in KERNELS.values():
        values = {c.id: int(c.default) for c in shader.spec_constants if c.type != "float"}
        found[shader.name] = footprint(shader.spirv(), values)
    return found


def test_the_modules_say_what_the_manifest_says(footprints: dict[str, Footprint]) -> None:
    for name, needs in footprints.items():
        shader = KERNELS[name]
        assert needs.capabilities <= set(CAPABILITIES), name
        assert needs.push_constants == shader.push_constant_size, name
        assert needs.local_size == shader.local_size, name
        bound = needs.storage_bindings + needs.texel_bindings + needs.sampled_images
        assert bound == len(shader.bindings), name


@pytest.mark.parametrize(("depth", "expected"), [(None, 2), (5, 5), (9, 9)])
def test_shared_memory_follows_specialization(
    depth: int | None, expected: int, make_shader: MakeShader
) -> None:
    """Arrays of vectors, of arrays and of structures; each has its std430 size."""
    shader = make_shader(
        f"shared_{depth}",
        """
        layout(constant_id = 7) const uint DEPTH = 2;
        struct Item { float a; vec3 b; uint c[2]; };
        shared float scalars[DEPTH * gl_WorkGroupSize.x];
        shared vec4 vectors[DEPTH][3];
        shared Item items[DEPTH > 4 ? DEPTH : 1];
        layout(binding = 0) buffer Y { float y[]; };
        void main() {
            uint i = gl_LocalInvocationID.x;
            scalars[i] = y[i];
            vectors[i % DEPTH][i % 3] = vec4(y[i]);
            items[0].a = y[i]; items[0].b = vec3(y[i]); items[0].c[i % 2] = i;
            barrier();
            y[i] = scalars[0] + vectors[0][0].x + items[0].b.z;
        }
        """,
        "y:rw:f32",
        spec=(SpecConstant("DEPTH", 7, "uint", 2),),
    )
    needs = footprint(shader.spirv(), {} if depth is None else {7: depth})
    items = max(1, expected if expected > 4 else 1)
    assert needs.shared_memory == expected * 8 * 4 + expected * 3 * 16 + items * 48
    assert needs.local_size == (8, 1, 1)
