from __future__ import annotations

import dataclasses
import gc
import hashlib
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vkmnn.errors import (
    DeviceLostError,
    InvalidInputError,
    OutOfDeviceMemoryError,
    ShaderError,
)
from vkmnn.runtime import (
    Buffer,
    BufferRange,
    CommandBuffer,
    Device,
    DeviceType,
    MemoryKind,
    Shader,
    SpecConstant,
)
from vkmnn.runtime.device import open_device

MakeShader = Callable[..., Shader]


def record(
    device: Device, shader: Shader, memory: Buffer, *, timestamps: bool = False
) -> CommandBuffer:
    recorder = device.recorder(timestamps=timestamps)
    ranges = [BufferRange(memory, 0, 64), BufferRange(memory, 256, 64)]
    for label, pair in (("first", ranges), ("second", ranges[::-1])):
        recorder.dispatch(
            device.pipeline(shader), pair, struct.pack("If", 16, 2.0), (2, 1, 1), label
        )
    return recorder.finish()


# --- memory ---------------------------------------------------------------------------------------


def test_no_buffer_has_a_size_of_a_power_of_two(device: Device) -> None:
    sizes = [0, 1, 16, 128, *(1 << i for i in range(8, 24)), (1 << 20) - 16, (1 << 20) - 300]
    for nbytes in sizes:
        before = device.stats()["bytes"]
        with device.allocate(nbytes, MemoryKind.DEVICE):
            size = device.stats()["bytes"] - before
            assert size >= nbytes + 16
            assert size & (size - 1)


def test_memory_that_the_host_cannot_see_is_staged(device: Device, scale: Shader) -> None:
    """As on a discrete GPU: the mapping of a buffer is removed."""
    nbytes = (16 << 20) + 40
    data = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    with device.allocate(nbytes + 4, MemoryKind.DEVICE) as buffer:
        buffer.write(0, np.zeros(nbytes + 4, np.uint8))
        mapped = buffer.driver_buffer.host
        assert mapped is not None
        buffer.driver_buffer.host = None
        buffer.write(3, data)
        np.testing.assert_array_equal(buffer.read(3, nbytes), data)
        np.testing.assert_array_equal(mapped[3 : 3 + nbytes], data)
        assert mapped[:3].tolist() == [0, 0, 0]
        assert buffer.read(5, 0).size == 0


def test_memory_that_is_not_coherent(device: Device, scale: Shader) -> None:
    calls: list[str] = []
    with device.allocate(1024, MemoryKind.DEVICE) as memory:
        driver = memory.driver_buffer
        driver.coherent = False
        kind = type(driver)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("flush", "invalidate"):
                plain = getattr(kind, name)

                def spy(
                    self: object, name: str = name, plain: Callable[[object], None] = plain
                ) -> None:
                    calls.append(name)
                    plain(self)

                patch.setattr(kind, name, spy)
            with record(device, scale, memory) as commands:
                memory.write(0, np.ones(16, np.float32))
                assert calls == ["flush"]
                commands.run()
                assert calls == ["flush", "flush", "invalidate"]
                assert memory.read(0, 4).view(np.float32) == 4
                assert calls[3:] == ["invalidate"]


def test_memory_runs_out(own_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkmnn.runtime.drivers.vulkan.api import lib

    own_device.allocate(100, MemoryKind.DEVICE).destroy()
    before = own_device.stats()

    class Library:
        """The Vulkan library on a device without memory."""

        def __getattr__(self, name: str) -> object:
            return (lambda *_: -2) if name == "vkAllocateMemory" else getattr(lib, name)

    monkeypatch.setattr("vkmnn.runtime.drivers.vulkan.handles.lib", Library())
    for kind in MemoryKind:
        with pytest.raises(OutOfDeviceMemoryError, match=f"of {kind.value} memory on"):
            own_device.allocate(100, kind)
    assert own_device.stats() == before


# --- life times -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "name"),
    [
        (-12, "VK_ERROR_FRAGMENTED_POOL"),
        (-1000069000, "VK_ERROR_OUT_OF_POOL_MEMORY"),
        (-1000161000, "VK_ERROR_FRAGMENTATION"),
    ],
)
def test_fragments_are_a_want_of_memory(device: Device, result: int, name: str) -> None:
    from vkmnn.runtime.drivers.vulkan.api import check

    with pytest.raises(OutOfDeviceMemoryError, match=f"vkCall failed: {name}") as caught:
        check(result, "vkCall")
    assert caught.value.vk_result == result


def test_nothing_leaks(device: Device, scale: Shader, texel_add: Shader) -> None:
    device.pipeline(scale)
    device.pipeline(texel_add)
    gc.collect()
    before = device.stats()
    for round_ in range(3):
        memory = device.allocate(1024, MemoryKind.DEVICE)
        commands = record(device, scale, memory, timestamps=True)
        commands.run()
        recorder = device.recorder()
        recorder.dispatch(
            device.pipeline(texel_add),
            [BufferRange(memory, 0, 64), BufferRange(memory, 256, 64)],
            struct.pack("I", 4),
        )
        assert device.stats()["command_buffers"] == before.get("command_buffers", 0) + 2
        if round_ == 0:  # in the right order
            recorder.finish().destroy()
            commands.destroy()
            commands.destroy()
            memory.destroy()
            memory.destroy()
        elif round_ == 1:  # by reference counting, the recorder not finished
            del recorder, commands, memory
        else:  # the memory first
            del memory, recorder
            assert device.stats()["buffers"] == before.get("buffers", 0) + 1
            del commands
        assert device.stats() == before


# --- pipelines ------------------------------------------------------------------------------------


def test_pipelines_are_made_in_parallel_and_once(device: Device, make_shader: MakeShader) -> None:
    shader = make_shader(
        "many",
        """
        layout(constant_id = 0) const uint n = 1;
        layout(binding = 0) writeonly buffer Y { uint y[]; };
        void main() { y[0] = n; }
        """,
        "y:w:i32",
        spec=(SpecConstant("n", 0, "uint", 1),),
    )
    seen: list[tuple[int, int]] = []
    wanted = [(shader, {"n": i % 5}) for i in range(20)]
    before = device.counts["pipelines"]
    made = device.create_pipelines(wanted, lambda done, total: seen.append((done, total)))
    assert seen == [(i, 20) for i in range(1, 21)]
    assert [pipeline.spec["n"] for pipeline in made] == [i % 5 for i in range(20)]
    assert device.counts["pipelines"] == before + 5
    assert device.create_pipelines([]) == []
    assert device.create_pipelines(wanted[:1]) == made[:1]


def test_pipelines_are_made_and_warmed_up_in_the_background(
    device: Device, make_shader: MakeShader
) -> None:
    shader = make_shader(
        "background",
        """
        layout(constant_id = 0) const uint n = 1;
        layout(binding = 0) writeonly buffer Y { uint y[]; };
        void main() { y[0] = n; }
        """,
        "y:w:i32",
        spec=(SpecConstant("n", 0, "uint", 1),),
    )
    on_cpu = device.info.type is DeviceType.CPU
    wanted = [(shader, {"n": i % 3}) for i in range(6)]
    for warm_up in (False, True, True):
        with device.start_pipelines(wanted, warm_up=warm_up) as batch:
            made = batch.result()
        assert [pipeline.spec["n"] for pipeline in made] == [i % 3 for i in range(6)]
        assert all(pipeline.warm == (warm_up and on_cpu) for pipeline in made)


def test_pipelines_that_nobody_waits_for_do_no_harm(
    own_device: Device, scale: Shader, make_shader: MakeShader
) -> None:
    broken = dataclasses.replace(scale, name="broken", spirv=lambda: b"not SPIR-V" * 4)
    with pytest.raises(KeyError), own_device.start_pipelines([(broken, {})] * 3, warm_up=True):
        raise KeyError
    with (
        own_device.start_pipelines([(scale, {}), (broken, {})], warm_up=True) as batch,
        pytest.raises(ShaderError, match="digest"),
    ):
        batch.result()
    own_device.wait_idle()
    assert own_device.create_pipelines([(scale, {})])


def test_a_failing_pipeline_fails_the_lot_and_can_be_tried_again(
    own_device: Device, scale: Shader
) -> None:
    calls = []

    def broken() -> bytes:
        calls.append(1)
        return b"not SPIR-V" * 4

    shader = dataclasses.replace(scale, name="broken", spirv=broken)
    for _ in range(2):
        with pytest.raises(ShaderError, match="digest"):
            own_device.create_pipelines([(scale, {}), (shader, {})])
    assert len(calls) == 2
    digest = hashlib.sha256(broken()).hexdigest()
    with pytest.raises(ShaderError, match="not a SPIR-V module"):
        own_device.pipeline(dataclasses.replace(shader, digest=digest))


def test_warm_up_compiles_before_the_first_run(
    device: Device, make_shader: MakeShader, scale: Shader
) -> None:
    if device.info.type is not DeviceType.CPU:
        pytest.skip("only CPU devices compile at the first dispatch")
    shaders = [
        make_shader(
            f"warm{i}",
            f"""
            layout(binding = 0, rgba32f) uniform imageBuffer y;
            void main() {{ imageStore(y, 0, vec4({time.time_ns()}.0 + {i}.0)); }}
            """,
            "y:rw:rgba32f",
        )
        for i in range(2)
    ]
    pipelines = [device.pipeline(shader) for shader in (*shaders, scale, scale)]
    device.warm_up(pipelines)
    device.warm_up([])


# --- running --------------------------------------------------------------------------------------


def test_timings(device: Device, scale: Shader) -> None:
    if "timestamps" not in device.info.features:
        pytest.skip("no timestamps")
    with device.allocate(1024, MemoryKind.DEVICE) as memory:
        memory.write(0, np.zeros(256, np.float32))
        recorder = device.recorder(timestamps=True)
        ranges = [BufferRange(memory, 0, 64), BufferRange(memory, 256, 64)]
        for i in range(300):  # more than one pool of queries
            recorder.dispatch(
                device.pipeline(scale), ranges, struct.pack("If", 16, 1.0), (2, 1, 1), f"step {i}"
            )
        recorder.copy(*ranges)
        recorder.fill(ranges[0])
        with recorder.finish() as commands:
            with pytest.raises(InvalidInputError, match="no timings"):
                commands.timings()
            for _ in range(2):
                commands.run()
            timings = commands.timings()
        assert [label for label, _ in timings] == [f"step {i}" for i in range(300)] + [
            "copy",
            "fill",
        ]
        assert all(0 <= time_us < 1e6 for _, time_us in timings)
        assert sum(time_us for _, time_us in timings) > 0
        with record(device, scale, memory) as commands:
            commands.run()
            with pytest.raises(InvalidInputError, match="no timings"):
                commands.timings()


def test_labels_default_to_the_shader(device: Device, scale: Shader) -> None:
    with device.allocate(1024, MemoryKind.DEVICE) as memory:
        recorder = device.recorder()
        ranges = [BufferRange(memory, 0, 64), BufferRange(memory, 256, 64)]
        recorder.dispatch(device.pipeline(scale), ranges, bytes(8))
        with recorder.finish() as commands:
            assert commands.labels == ("scale",)


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_run_that_takes_too_long_loses_the_device(
    own_device: Device, scale: Shader, spin: Shader, timestamps: bool
) -> None:
    memory = own_device.allocate(1 << 16, MemoryKind.DEVICE)
    memory.write(0, np.zeros(1 << 14, np.float32))
    recorder = own_device.recorder(timestamps=timestamps)
    quick, slow = own_device.create_pipelines([(scale, {}), (spin, {})])
    own_device.warm_up([quick, slow])
    ranges = [BufferRange(memory, 0, 64), BufferRange(memory, 256, 64)]
    recorder.dispatch(quick, ranges, struct.pack("If", 16, 1.0), label="quick")
    recorder.dispatch(slow, [BufferRange(memory, 0, 1 << 16)], groups=(512, 1, 1), label="slow")
    commands = recorder.finish()
    commands.submit()
    with pytest.raises(InvalidInputError, match="in flight"):
        commands.submit()
    start = time.perf_counter()
    with pytest.raises(DeviceLostError, match=r"did not finish within 0\.2 s") as caught:
        commands.wait(0.2)
    assert time.perf_counter() - start < 60  # a loaded machine is slow
    assert "slow" in str(caught.value)
    assert own_device.lost is not None
    with pytest.raises(DeviceLostError, match="is lost"):
        own_device.recorder()
    with pytest.raises(DeviceLostError, match="is lost"):
        commands.run()
    fresh = open_device("auto", validation=False)
    assert fresh is not own_device
    fresh.close()
    # Software devices share their threads: let this one finish before the next test.
    assert commands._commands is not None
    assert commands._commands.wait(120)


def test_threads_share_a_device(own_device: Device, scale: Shader, texel_add: Shader) -> None:
    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(16).astype(np.float32)
        with own_device.allocate(1024, MemoryKind.DEVICE) as memory:
            with record(own_device, scale, memory) as commands:
                for _ in range(20):
                    memory.write(0, x)
                    commands.run()
                    np.testing.assert_array_equal(memory.read(0, 64).view(np.float32), 4 * x)
            own_device.pipeline(texel_add)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert own_device.stats()["pipelines"] == 2


def test_threads_may_share_a_command_buffer(own_device: Device, scale: Shader) -> None:
    with own_device.allocate(1024, MemoryKind.DEVICE) as memory:
        memory.write(0, np.ones(16, np.float32))
        with record(own_device, scale, memory) as commands:
            threads = [threading.Thread(target=commands.run) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert memory.read(0, 4).view(np.float32) == 4.0**10
