from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator

import pytest

from vkmnn.errors import InvalidInputError
from vkmnn.runtime import Buffer, BufferRange, Device, DeviceInfo, MemoryKind, Shader, linear_groups
from vkmnn.runtime.drivers.base import (
    COMPUTE,
    COMPUTE_READ,
    HOST_READ,
    TRANSFER,
    TRANSFER_WRITE,
)

STRIDE = 256
PARAMS = struct.pack("If", 16, 1.0)


@pytest.fixture
def memory(device: Device) -> Iterator[Buffer]:
    with device.allocate(16 * STRIDE, MemoryKind.DEVICE) as buffer:
        yield buffer


@pytest.fixture
def barriers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (source, destination) scopes of the barriers that reach the driver."""
    from vkmnn.runtime.drivers.vulkan.command import VulkanRecorder

    seen: list[tuple[int, int]] = []
    plain = VulkanRecorder.barrier

    def spy(self: VulkanRecorder, src: int, dst: int) -> None:
        seen.append((src, dst))
        plain(self, src, dst)

    monkeypatch.setattr(VulkanRecorder, "barrier", spy)
    return seen


def places(memory: Buffer, *numbers: int) -> list[BufferRange]:
    return [BufferRange(memory, STRIDE * number, 64) for number in numbers]


def test_barriers_ask_for_no_more_than_needed(
    device: Device, memory: Buffer, scale: Shader, barriers: list[tuple[int, int]]
) -> None:
    recorder = device.recorder()
    pipeline = device.pipeline(scale)

    def step(source: int, target: int) -> None:
        recorder.dispatch(pipeline, places(memory, source, target), PARAMS, (2, 1, 1))

    recorder.fill(places(memory, 0)[0])
    step(0, 1)  # reads what a transfer wrote
    step(1, 2)  # read after write
    step(3, 1)  # write after read: the write before it was read, so visibility to reads is enough
    step(3, 1)  # write after write
    recorder.copy(*places(memory, 4, 5))  # the first transfer after barriers for compute alone
    commands = recorder.finish()
    assert barriers == [
        (TRANSFER_WRITE, COMPUTE),
        (COMPUTE, COMPUTE_READ),
        (COMPUTE, COMPUTE_READ),
        (COMPUTE, COMPUTE),
        (COMPUTE | TRANSFER_WRITE, COMPUTE | TRANSFER),
        (COMPUTE | TRANSFER, COMPUTE | TRANSFER | HOST_READ),
    ]
    assert recorder.barrier_count == 5
    commands.destroy()


def test_a_write_after_reads_alone_is_an_execution_barrier(
    device: Device,
    memory: Buffer,
    make_shader: Callable[..., Shader],
    barriers: list[tuple[int, int]],
) -> None:
    reader = make_shader(
        "reader",
        """
        layout(binding = 0) readonly buffer X { float x[]; };
        void main() { if (x[0] > 1e30) return; }
        """,
        "x:r:f32",
    )
    writer = make_shader(
        "writer",
        """
        layout(binding = 0) writeonly buffer X { float x[]; };
        void main() { x[0] = 1.0; }
        """,
        "x:w:f32",
    )
    recorder = device.recorder()
    recorder.dispatch(device.pipeline(reader), places(memory, 0))
    recorder.dispatch(device.pipeline(writer), places(memory, 0))
    recorder.finish().destroy()
    assert barriers[0] == (COMPUTE_READ, COMPUTE_READ)
    assert len(barriers) == 2


def test_weights_cost_a_barrier_only_when_they_are_written(
    device: Device, memory: Buffer, scale: Shader
) -> None:
    pipeline = device.pipeline(scale)
    with device.allocate(4 * STRIDE, MemoryKind.WEIGHTS) as weights:
        recorder = device.recorder()

        def step(source: BufferRange, target: BufferRange) -> int:
            recorder.dispatch(pipeline, [source, target], PARAMS, (2, 1, 1))
            return recorder.barrier_count

        a, b, c = places(weights, 0, 1, 2)
        x, y, z = places(memory, 0, 1, 2)
        assert step(a, x) == 0
        assert step(b, y) == 0
        assert step(z, c) == 1  # the weights were read: this one waits
        assert step(a, places(memory, 3)[0]) == 1
        assert step(c, places(memory, 4)[0]) == 2  # written, then read
        assert step(z, b) == 2
        recorder.finish().destroy()


def test_limits_of_a_dispatch(
    device: Device, memory: Buffer, scale: Shader, texel_add: Shader
) -> None:
    pipeline = device.pipeline(scale)
    limits = device.info.limits
    good = places(memory, 0, 1)
    recorder = device.recorder()

    def refuse(match: str, ranges: list[BufferRange] = good, **changes: object) -> None:
        arguments = {"params": PARAMS, "groups": (2, 1, 1), "label": "conv1"} | changes
        with pytest.raises(InvalidInputError, match=match) as caught:
            recorder.dispatch(arguments.pop("pipeline", pipeline), ranges, **arguments)
        assert caught.value.op == "conv1"

    refuse("binds 2 ranges, not 1", good[:1])
    refuse("binds 2 ranges, not 3", [*good, *good[:1]])
    refuse("takes 8 bytes of parameters, not 4", params=bytes(4))
    for axis in range(3):
        groups = [1, 1, 1]
        groups[axis] = limits.max_workgroup_count[axis] + 1
        refuse("workgroups break the limit", groups=tuple(groups))
        groups[axis] = -1
        refuse("workgroups break the limit", groups=tuple(groups))
    refuse("offset 4 is not a multiple of", [BufferRange(memory, 4, 64), good[1]])
    refuse(
        "'y' of scale: bytes 3840 to 4104 are outside", [good[0], BufferRange(memory, 3840, 264)]
    )
    refuse("outside a buffer", [BufferRange(memory, -STRIDE, 64), good[1]])
    refuse("outside a buffer", [BufferRange(memory, 0, -4), good[1]])
    texels = {"pipeline": device.pipeline(texel_add), "params": bytes(4)}
    refuse(
        "not a whole number of texels of 16 bytes", [BufferRange(memory, 0, 24), good[1]], **texels
    )
    assert recorder.dispatch_count == 0
    recorder.finish().destroy()
    refuse("finished already")
    for call in (recorder.finish, lambda: recorder.fill(good[0]), lambda: recorder.copy(*good)):
        with pytest.raises(InvalidInputError, match="finished already"):
            call()


def test_ranges_larger_than_the_device_can_bind(
    device: Device, memory: Buffer, scale: Shader, texel_add: Shader
) -> None:
    limits = dataclasses.replace(
        device.info.limits, max_storage_buffer_range=128, max_texel_buffer_elements=8
    )
    from vkmnn.runtime.pipeline import Pipeline

    big = [BufferRange(memory, 0, 144), BufferRange(memory, STRIDE, 144)]
    recorder = device.recorder()
    for shader, params in ((scale, PARAMS), (texel_add, bytes(4))):
        made = device.pipeline(shader)
        small = Pipeline(shader, {}, made.driver_pipeline, limits)
        recorder.dispatch(made, big, params)
        with pytest.raises(InvalidInputError, match="144 bytes exceed the device's limit of 128"):
            recorder.dispatch(small, big, params)
    recorder.finish().destroy()


def test_limits_of_copy_and_fill(device: Device, memory: Buffer) -> None:
    recorder = device.recorder()
    a = BufferRange(memory, 0, 64)
    with pytest.raises(InvalidInputError, match="cannot copy 64 bytes to 32 bytes"):
        recorder.copy(a, BufferRange(memory, 512, 32))
    with pytest.raises(InvalidInputError, match="overlaps its target"):
        recorder.copy(a, BufferRange(memory, 60, 64))
    with pytest.raises(InvalidInputError, match="outside a buffer"):
        recorder.copy(a, BufferRange(memory, memory.nbytes - 60, 64))
    with pytest.raises(InvalidInputError, match="multiples of 4"):
        recorder.fill(BufferRange(memory, 2, 4))
    with pytest.raises(InvalidInputError, match="multiples of 4"):
        recorder.fill(BufferRange(memory, 0, 5))
    with pytest.raises(InvalidInputError, match="outside a buffer"):
        recorder.fill(BufferRange(memory, memory.nbytes, 4))
    recorder.finish().destroy()


@pytest.mark.parametrize("local", [1, 7, 64])
@pytest.mark.parametrize("groups", [0, 1, 65535, 65536, 65537, 131071, 10**7])
def test_linear_groups_cover_the_count(
    make_info: Callable[..., DeviceInfo], local: int, groups: int
) -> None:
    limits = make_info().limits
    for count in {max(groups * local - 1, 0), groups * local, groups * local + 1}:
        x, y, z = linear_groups(count, local, limits)
        assert x <= 65535
        assert z == 1
        assert x * y * local >= count
        assert (x * y - y) * local < max(count, 1)
    with pytest.raises(InvalidInputError, match="exceed"):
        linear_groups(65536 * 65536 * local, local, limits)
