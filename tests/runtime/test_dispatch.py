from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import pytest

from vkmnn.errors import ValidationLayerError
from vkmnn.runtime import (
    Buffer,
    BufferRange,
    CommandRecorder,
    Device,
    MemoryKind,
    Shader,
    linear_groups,
)

MakeShader = Callable[..., Shader]
SIZES = (1, 7, 8, 9, 257, 4099)
FLOAT = 4
STRIDE = 256  # no device asks for a larger alignment


@pytest.fixture
def memory(device: Device) -> Iterator[Buffer]:
    with device.allocate(1 << 20, MemoryKind.DEVICE) as buffer:
        buffer.write(0, np.full(1 << 18, np.nan, np.float32))
        yield buffer


def numbers(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal(count).astype(np.float32)


def floats(buffer: Buffer, offset: int, count: int) -> np.ndarray:
    return buffer.read(offset, FLOAT * count).view(np.float32)


def params(count: int, factor: float) -> bytes:
    return struct.pack("If", count, factor)


def record_scale(
    recorder: CommandRecorder,
    shader: Shader,
    ranges: Sequence[BufferRange],
    factor: float,
    label: str = "",
) -> None:
    device = recorder.device
    count = ranges[0].nbytes // FLOAT
    groups = linear_groups(count, shader.local_size[0], device.info.limits)
    recorder.dispatch(device.pipeline(shader), ranges, params(count, factor), groups, label)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("offset", [0, 4096])
def test_storage_buffers_at_offsets(
    device: Device, memory: Buffer, scale: Shader, count: int, offset: int
) -> None:
    x = numbers(count)
    memory.write(offset, x)
    recorder = device.recorder()
    target = 1 << 19
    nbytes = FLOAT * count
    ranges = [BufferRange(memory, offset, nbytes), BufferRange(memory, target, nbytes)]
    record_scale(recorder, scale, ranges, 3.0)
    with recorder.finish() as commands:
        for _ in range(2):
            commands.run()
            np.testing.assert_array_equal(floats(memory, target, count), 3 * x)
    assert np.isnan(floats(memory, target + nbytes, 1))
    assert (recorder.dispatch_count, recorder.barrier_count) == (1, 0)


@pytest.mark.parametrize("texels", [1, 5, 8, 1021])
def test_texel_buffers_at_offsets(
    device: Device, memory: Buffer, texel_add: Shader, texels: int
) -> None:
    x = numbers(4 * texels)
    memory.write(512, x)
    nbytes = x.nbytes
    ranges = [BufferRange(memory, 512, nbytes), BufferRange(memory, 1 << 19, nbytes)]
    recorder = device.recorder()
    pipeline = device.pipeline(texel_add)
    recorder.dispatch(pipeline, ranges, struct.pack("I", texels), (-(-texels // 8), 1, 1))
    with recorder.finish() as commands:
        commands.run()
    np.testing.assert_array_equal(floats(memory, 1 << 19, 4 * texels), x + 1)
    assert np.isnan(floats(memory, (1 << 19) + nbytes, 1))


def test_a_texel_view_reads_what_a_storage_buffer_wrote(
    validated: Device, scale: Shader, texel_add: Shader
) -> None:
    x = numbers(4 * 37)
    nbytes = x.nbytes
    with validated.allocate(3 * 1024, MemoryKind.DEVICE) as memory:
        memory.write(0, x)
        ranges = [BufferRange(memory, 1024 * i, nbytes) for i in range(3)]
        recorder = validated.recorder()
        record_scale(recorder, scale, ranges[:2], 2.0)
        recorder.dispatch(
            validated.pipeline(texel_add), ranges[1:], struct.pack("I", 37), (5, 1, 1)
        )
        with recorder.finish() as commands:
            commands.run()
        assert recorder.barrier_count == 1
        np.testing.assert_array_equal(floats(memory, 2048, x.size), 2 * x + 1)


def test_a_grid_of_more_than_65535_workgroups(device: Device, scale: Shader) -> None:
    count = 65535 * scale.local_size[0] + 13
    limits = device.info.limits
    if limits.max_workgroup_count[0] > 65535:
        pytest.skip("the device takes larger grids")
    x = np.arange(count, dtype=np.float32)
    nbytes = x.nbytes
    with device.allocate(2 * nbytes + STRIDE, MemoryKind.DEVICE) as memory:
        memory.write(0, x)
        target = -(-nbytes // STRIDE) * STRIDE
        recorder = device.recorder()
        ranges = [BufferRange(memory, 0, nbytes), BufferRange(memory, target, nbytes)]
        record_scale(recorder, scale, ranges, -1.0)
        with recorder.finish() as commands:
            commands.run()
        np.testing.assert_array_equal(floats(memory, target, count), -x)


def test_zero_groups_and_empty_ranges_are_no_work(
    device: Device, memory: Buffer, scale: Shader
) -> None:
    pipeline = device.pipeline(scale)
    empty = [BufferRange(memory, 0, 0), BufferRange(memory, memory.nbytes, 0)]
    recorder = device.recorder()
    recorder.dispatch(pipeline, empty, params(0, 1.0), (0, 1, 1))
    assert recorder.dispatch_count == 0
    recorder.dispatch(pipeline, empty, params(0, 1.0), (1, 1, 1))
    recorder.dispatch(pipeline, empty, params(0, 1.0), (1, 1, 1))
    assert recorder.dispatch_count == 2
    recorder.fill(BufferRange(memory, 0, 0))
    recorder.copy(*empty)
    with recorder.finish() as commands:
        commands.run()
    with device.recorder().finish() as commands:
        commands.run()


def test_many_descriptor_sets(device: Device, memory: Buffer, scale: Shader) -> None:
    recorder = device.recorder()
    stride, count = STRIDE, 1500
    memory.write(0, np.ones(1, np.float32))
    for i in range(count):
        ranges = [BufferRange(memory, i * stride, 4), BufferRange(memory, (i + 1) * stride, 4)]
        record_scale(recorder, scale, ranges, 2.0 if i < 20 else 1.0)
    with recorder.finish() as commands:
        commands.run()
    assert recorder.barrier_count == count - 1
    assert floats(memory, count * stride, 1) == 2.0**20


# --- barriers under the validation layer ---------------------------------------------------------


@pytest.mark.validation
@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize(
    "order", ["fill fill", "fill scale", "scale fill", "copy scale", "scale copy"]
)
def test_barriers_between_transfers_and_dispatches(
    validated: Device, scale: Shader, order: str, barriers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not barriers:
        monkeypatch.setattr(CommandRecorder, "_barrier", lambda self, dst: None)
    with validated.allocate(1024, MemoryKind.DEVICE) as memory:
        ranges = [BufferRange(memory, 256, 64), BufferRange(memory, 0, 64)]
        recorder = validated.recorder()
        expectation = (
            nullcontext() if barriers else pytest.raises(ValidationLayerError, match="SYNC-HAZARD")
        )
        with expectation:
            for step in order.split():
                if step == "fill":
                    recorder.fill(ranges[1])
                elif step == "copy":
                    recorder.copy(*ranges)
                else:
                    record_scale(recorder, scale, ranges, 2.0)
            with recorder.finish() as commands:
                commands.run()
            assert recorder.barrier_count == 1


@pytest.mark.validation
def test_overlapping_ranges_of_different_size(validated: Device, scale: Shader) -> None:
    with validated.allocate(5 * STRIDE, MemoryKind.DEVICE) as memory:
        memory.write(0, np.arange(5 * STRIDE // 4, dtype=np.float32))
        recorder = validated.recorder()
        # Writes 64 bytes more than one stride; the second dispatch reads those and 64 behind them.
        written = STRIDE + 64
        record_scale(
            recorder,
            scale,
            [BufferRange(memory, 0, written), BufferRange(memory, 2 * STRIDE, written)],
            2,
        )
        record_scale(
            recorder,
            scale,
            [BufferRange(memory, 3 * STRIDE, 128), BufferRange(memory, 4 * STRIDE, 128)],
            3,
        )
        with recorder.finish() as commands:
            commands.run()
        assert recorder.barrier_count == 1
        first = np.arange(STRIDE // 4, STRIDE // 4 + 16) * 2 * 3
        tail = np.arange(3 * STRIDE // 4 + 16, 3 * STRIDE // 4 + 32) * 3
        np.testing.assert_array_equal(floats(memory, 4 * STRIDE, 32), np.concatenate([first, tail]))


@pytest.mark.validation
def test_random_programs_satisfy_the_validation_layer(validated: Device, scale: Shader) -> None:
    random = np.random.default_rng(7)
    places = 10
    nbytes = (places + 4) * STRIDE
    with validated.allocate(nbytes, MemoryKind.DEVICE) as memory:
        for _ in range(20):
            expected = random.standard_normal(nbytes // 4).astype(np.float32)
            memory.write(0, expected)
            recorder = validated.recorder()
            for _ in range(30):
                count = int(random.integers(1, 200))
                source, target = (STRIDE * int(random.integers(0, places)) for _ in range(2))
                action = random.choice(["scale", "copy", "fill"], p=[0.7, 0.15, 0.15])
                overlap = abs(source - target) < FLOAT * count
                if overlap and not (action == "fill" or (action == "scale" and source == target)):
                    continue
                a, b = source // FLOAT, target // FLOAT
                ranges = [BufferRange(memory, at, FLOAT * count) for at in (source, target)]
                if action == "scale":
                    record_scale(recorder, scale, ranges, 0.5)
                    expected[b : b + count] = 0.5 * expected[a : a + count]
                elif action == "copy":
                    recorder.copy(*ranges)
                    expected[b : b + count] = expected[a : a + count]
                else:
                    recorder.fill(ranges[1])
                    expected[b : b + count] = 0
            with recorder.finish() as commands:
                commands.run()
            np.testing.assert_array_equal(floats(memory, 0, nbytes // 4), expected)


@pytest.mark.validation
def test_a_collection_inside_the_layer_does_not_deadlock(
    validated: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run while the layer reports a message, and free things of the device."""

    class Collecting(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            collected.append(gc.collect())
            return super().__contains__(key)

    collected: list[int] = []
    monkeypatch.setattr("vkmnn.runtime.drivers.vulkan.instance.KNOWN_FALSE", Collecting())
    monkeypatch.setattr(CommandRecorder, "_barrier", lambda self, dst: None)
    gc.collect()
    before = validated.stats()
    garbage: list[object] = [validated.allocate(1024, MemoryKind.DEVICE), validated.recorder()]
    with validated.allocate(1024, MemoryKind.DEVICE) as memory:
        recorder = validated.recorder()
        recorder.fill(BufferRange(memory, 0, 64))
        gc.disable()
        garbage.append(garbage)
        del garbage
        with pytest.raises(ValidationLayerError, match="SYNC-HAZARD"):
            recorder.fill(BufferRange(memory, 0, 64))
        gc.enable()
    del recorder
    assert collected
    assert validated.stats() == before
