"""Pipelines and dispatches: constants, parameters, grids, empty ranges, replay."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Callable

import numpy as np
import pytest

from tests.driver.conftest import FLOAT, Places, record_scale
from vkmnn.errors import InvalidInputError, ShaderError
from vkmnn.runtime import BufferRange, Device, MemoryKind, Shader, SpecConstant

MakePlaces = Callable[..., Places]
MakeShader = Callable[..., Shader]


def run(device: Device, shader: Shader, ranges: list[BufferRange], params: bytes = b"") -> None:
    recorder = device.recorder()
    recorder.dispatch(device.pipeline(shader), ranges, params)
    with recorder.finish() as commands:
        commands.run()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 257, 4099])
def test_replay(device: Device, scale: Shader, make_places: MakePlaces, count: int) -> None:
    random = np.random.default_rng(count)
    places = make_places(device, 2, FLOAT * count)
    recorder = device.recorder()
    record_scale(recorder, scale, [places.at(0), places.at(1)], 3.0)
    with recorder.finish() as commands:
        for _ in range(3):
            x = random.standard_normal(count).astype(np.float32)
            places.write(0, x)
            commands.run()
            np.testing.assert_array_equal(places.read(1), 3 * x)
    assert (recorder.dispatch_count, recorder.barrier_count) == (1, 0)


def test_every_dispatch_has_its_own_parameters(
    device: Device, scale: Shader, make_places: MakePlaces
) -> None:
    """Of one pipeline with the same buffers and grid."""
    places = make_places(device, 2, 64)
    places.write(0, np.ones(16, np.float32))
    recorder = device.recorder()
    pipeline = device.pipeline(scale)
    for count, factor in ((16, 2.0), (9, 3.0), (4, 5.0)):
        params = struct.pack("If", count, factor)
        recorder.dispatch(pipeline, [places.at(0), places.at(1)], params, (2, 1, 1))
    with recorder.finish() as commands:
        for _ in range(2):
            commands.run()
            assert places.read(1).tolist() == [5.0] * 4 + [3.0] * 5 + [2.0] * 7


def test_push_constants_keep_their_bits(
    device: Device, make_shader: MakeShader, make_places: MakePlaces
) -> None:
    """NaNs with a payload, denormals and negative zeros are words like others."""
    shader = make_shader(
        "words",
        """
        layout(push_constant) uniform P { uint words[8]; };
        layout(binding = 0) writeonly buffer Y { uint y[]; };
        void main() { y[gl_LocalInvocationID.x] = words[gl_LocalInvocationID.x]; }
        """,
        "y:w:i32",
        push=32,
    )
    words = [0x7FA00001, 1, 0x80000000, 0xFFFFFFFF, 0xFFF00000, 0x7F800001, 0, 0x12345678]
    places = make_places(device, 1, 32)
    run(device, shader, [places.at(0)], struct.pack("8I", *words))
    assert places.read(0).view(np.uint32).tolist() == words


def test_specialization_constants_of_every_type(device: Device, make_shader: MakeShader) -> None:
    shader = make_shader(
        "spec",
        """
        layout(constant_id = 0) const uint u = 1;
        layout(constant_id = 3) const int i = -2;
        layout(constant_id = 5) const float f = 0.5;
        layout(constant_id = 7) const bool b = false;
        layout(binding = 0) writeonly buffer Y { float y[4]; };
        void main() {
            y[0] = float(u);
            y[1] = float(i);
            y[2] = f;
            y[3] = b ? 1.0 : 0.0;
        }
        """,
        "y:w:f32",
        spec=(
            SpecConstant("u", 0, "uint", 1),
            SpecConstant("i", 3, "int", -2),
            SpecConstant("f", 5, "float", 0.5),
            SpecConstant("b", 7, "bool", False),
        ),
        local=(1, 1, 1),
    )

    def result(**spec: float) -> list[float]:
        with device.allocate(16, MemoryKind.READBACK) as out:
            recorder = device.recorder()
            recorder.dispatch(device.pipeline(shader, spec), [BufferRange(out, 0, 16)])
            with recorder.finish() as commands:
                commands.run()
            values: list[float] = out.read(0, 16).view(np.float32).tolist()
            return values

    assert result() == [1, -2, 0.5, 0]
    assert result(u=4_000_000_000, i=-(2**31), f=-1.25, b=True) == [4e9, -(2.0**31), -1.25, 1]
    assert device.pipeline(shader) is device.pipeline(shader, {"f": 0.5, "u": 1})
    for bad, match in (({"w": 1}, "no specialization constant w"), ({"u": -1}, "is not uint")):
        with pytest.raises(InvalidInputError, match=match):
            device.pipeline(shader, bad)


def test_bindings_may_leave_numbers_out(
    device: Device, make_shader: MakeShader, make_places: MakePlaces
) -> None:
    shader = make_shader(
        "gaps",
        """
        layout(binding = 4) readonly buffer X { float x[]; };
        layout(binding = 1) writeonly buffer Y { float y[]; };
        void main() { y[gl_LocalInvocationID.x] = 1.0 + x[gl_LocalInvocationID.x]; }
        """,
        "x:r:f32 y:w:f32",
    )
    x, y = shader.bindings
    bindings = (dataclasses.replace(x, index=4), dataclasses.replace(y, index=1))
    places = make_places(device, 2, 32)
    places.write(0, np.arange(8, dtype=np.float32))
    run(device, dataclasses.replace(shader, bindings=bindings), [places.at(0), places.at(1)])
    assert places.read(1).tolist() == list(range(1, 9))


def test_a_shader_without_bindings_runs(device: Device, make_shader: MakeShader) -> None:
    run(device, make_shader("empty", "void main() {}"), [])


def test_zero_groups_and_empty_ranges_are_no_work(
    device: Device, scale: Shader, make_places: MakePlaces
) -> None:
    places = make_places(device, 2, 64)
    pipeline = device.pipeline(scale)
    empty = [places.at(0, 0), places.at(1, 0)]
    recorder = device.recorder()
    recorder.dispatch(pipeline, [places.at(0), places.at(1)], struct.pack("If", 16, 1.0), (0, 1, 1))
    assert recorder.dispatch_count == 0
    recorder.dispatch(pipeline, empty, struct.pack("If", 0, 1.0), (1, 1, 1))
    recorder.dispatch(pipeline, [places.at(0), places.at(1, 0)], struct.pack("If", 0, 1.0))
    recorder.fill(places.at(0, 0))
    recorder.copy(*empty)
    with recorder.finish() as commands:
        commands.run()
    with device.recorder().finish() as commands:
        commands.run()
    assert np.isnan(places.read(0)).all()
    assert np.isnan(places.read(1)).all()


@pytest.mark.parametrize("groups", [(3, 1, 1), (1, 5, 1), (1, 1, 7), (2, 3, 5)])
def test_grids(
    device: Device,
    make_shader: MakeShader,
    make_places: MakePlaces,
    groups: tuple[int, int, int],
) -> None:
    shader = make_shader(
        "grid",
        """
        layout(binding = 0) buffer Y { uint y[]; };
        void main() {
            uvec3 g = gl_WorkGroupID;
            uint place = g.x + gl_NumWorkGroups.x * (g.y + gl_NumWorkGroups.y * g.z);
            y[place] = g.x + 10 * g.y + 100 * g.z;
        }
        """,
        "y:rw:i32",
        local=(1, 1, 1),
    )
    x, y, z = groups
    places = make_places(device, 1, 4 * x * y * z)
    recorder = device.recorder()
    recorder.dispatch(device.pipeline(shader), [places.at(0)], groups=groups)
    with recorder.finish() as commands:
        commands.run()
    expected = [i + 10 * j + 100 * k for k in range(z) for j in range(y) for i in range(x)]
    assert places.read(0).view(np.uint32).tolist() == expected


def test_warm_up_changes_nothing(device: Device, scale: Shader, make_places: MakePlaces) -> None:
    before = device.stats().get("buffers", 0)
    device.warm_up([device.pipeline(scale)])
    device.warm_up([])
    assert device.stats().get("buffers", 0) == before


# --- refusals ------------------------------------------------------------------------------------


def test_texel_buffers_where_they_are_claimed(device: Device, texel_add: Shader) -> None:
    reason = device.supports(texel_add)
    if "texel_rgba32f" in device.info.features:
        assert reason is None
        return
    assert reason is not None
    assert "lacks texel_rgba32f" in reason
    with pytest.raises(ShaderError, match="lacks texel_rgba32f"):
        device.pipeline(texel_add)


def test_timestamps_where_they_are_claimed(
    device: Device, scale: Shader, make_places: MakePlaces
) -> None:
    if "timestamps" not in device.info.features:
        with pytest.raises(InvalidInputError, match="has no timestamps"):
            device.recorder(timestamps=True)
        return
    places = make_places(device, 2, 64)
    recorder = device.recorder(timestamps=True)
    for step in range(3):
        record_scale(recorder, scale, [places.at(0), places.at(1)], 1.0, f"step {step}")
    with recorder.finish() as commands:
        commands.run()
        timings = commands.timings()
    assert [label for label, _ in timings] == ["step 0", "step 1", "step 2"]
    assert all(0 <= time_us < 1e6 for _, time_us in timings)


def test_a_damaged_shader_is_refused(own_device: Device, scale: Shader) -> None:
    code = b"not SPIR-V" * 4
    shader = dataclasses.replace(scale, name="broken", spirv=lambda: code)
    with pytest.raises(ShaderError, match="digest"):
        own_device.create_pipelines([(scale, {}), (shader, {})])
    digest = hashlib.sha256(code).hexdigest()
    with pytest.raises(ShaderError, match="not a SPIR-V module"):
        own_device.pipeline(dataclasses.replace(shader, digest=digest))


def test_limits_of_a_dispatch(device: Device, scale: Shader, make_places: MakePlaces) -> None:
    places = make_places(device, 2, 64)
    good = [places.at(0), places.at(1)]
    pipeline = device.pipeline(scale)
    params = struct.pack("If", 16, 1.0)
    recorder = device.recorder()
    limit = device.info.limits.max_workgroup_count[1]
    for match, ranges, sent, groups in (
        ("binds 2 ranges, not 1", good[:1], params, (1, 1, 1)),
        ("takes 8 bytes of parameters, not 4", good, params[:4], (1, 1, 1)),
        ("break the limit", good, params, (1, limit + 1, 1)),
        ("outside a buffer", [good[0], places.at(1, 1 << 20)], params, (1, 1, 1)),
    ):
        with pytest.raises(InvalidInputError, match=match):
            recorder.dispatch(pipeline, ranges, sent, groups)
    recorder.finish().destroy()
