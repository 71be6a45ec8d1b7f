"""Nothing leaks, nothing is used after its end, threads and processes do not collide."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.driver.conftest import Places, scaling
from vkmnn.errors import DeviceLostError, InvalidInputError
from vkmnn.runtime import BufferRange, Device, MemoryKind, Shader
from vkmnn.runtime.device import open_device

ROOT = Path(__file__).resolve().parents[2]
STEPS = [(0, 1), (1, 0)]


def test_nothing_leaks(device: Device, scale: Shader) -> None:
    device.pipeline(scale)
    with device.allocate(4, MemoryKind.DEVICE) as memory:
        memory.write(0, np.zeros(1, np.float32))  # makes what a device keeps for staging
        memory.read(0, 4)
    gc.collect()
    before = device.stats()
    for round_ in range(3):
        places = Places(device, 2, 64, MemoryKind.DEVICE)
        commands = scaling(device, scale, places, STEPS)
        commands.run()
        recorder = device.recorder()
        recorder.fill(places.at(0))
        assert device.stats()["command_buffers"] == before.get("command_buffers", 0) + 2
        if round_ == 0:  # in the right order
            recorder.finish().destroy()
            commands.destroy()
            commands.destroy()
            for buffer in places.buffers * 2:
                buffer.destroy()
            del buffer
        elif round_ == 1:  # by reference counting, the recorder not finished
            del recorder, commands, places
        else:  # the memory first
            count = len(places.buffers)
            del places, recorder
            assert device.stats()["buffers"] == before.get("buffers", 0) + count
            del commands
        assert device.stats() == before


def test_pipelines_that_nothing_uses_are_built_again(
    device: Device, scale: Shader, driver: str
) -> None:
    if driver == "kompute":
        pytest.skip("kp makes pipelines of its own for every recording")
    places = Places(device, 2, 64, MemoryKind.DEVICE)
    commands = scaling(device, scale, places, [(0, 1)])
    count, live = device.counts["pipelines"], device.stats()["pipelines"]
    device.trim()
    device.pipeline(scale)
    assert device.counts["pipelines"] == count
    assert device.stats()["pipelines"] <= live
    commands.run()
    commands.destroy()
    del commands
    device.trim()
    gc.collect()
    assert device.stats().get("pipelines", 0) < live
    scaling(device, scale, places, [(0, 1)]).run()
    assert device.counts["pipelines"] == count + 1


def test_destroyed_things_are_refused(device: Device, scale: Shader) -> None:
    places = Places(device, 2, 64, MemoryKind.DEVICE)
    commands = scaling(device, scale, places, STEPS)
    recorder = device.recorder()
    for buffer in places.buffers:
        buffer.destroy()
    for call in (
        commands.run,
        lambda: recorder.fill(places.at(0)),
        lambda: places.read(0),
        lambda: places.write(0, np.zeros(1, np.float32)),
    ):
        with pytest.raises(InvalidInputError, match="has been destroyed"):
            call()
    commands.destroy()
    with pytest.raises(InvalidInputError, match="has been destroyed"):
        commands.run()


def test_a_closed_device_is_refused_and_can_be_opened_again(
    own_device: Device, driver: str, scale: Shader
) -> None:
    places = Places(own_device, 2, 64, MemoryKind.UPLOAD)
    commands = scaling(own_device, scale, places, STEPS)
    commands.run()
    own_device.close()
    own_device.close()
    assert own_device.closed
    assert own_device.stats() == {}
    for call in (
        commands.run,
        own_device.recorder,
        own_device.wait_idle,
        lambda: own_device.allocate(1, MemoryKind.DEVICE),
        lambda: own_device.pipeline(scale),
    ):
        with pytest.raises(InvalidInputError, match="has been closed"):
            call()
    commands.destroy()
    for buffer in places.buffers:
        buffer.destroy()
    again = open_device(driver=driver, validation=False)
    assert again is not own_device
    again.wait_idle()
    again.close()


def test_buffers_of_another_device_are_refused(own_device: Device, device: Device) -> None:
    if own_device is device:
        pytest.skip("needs the validation layer for a second device")
    with own_device.allocate(64, MemoryKind.DEVICE) as memory:
        recorder = device.recorder()
        with pytest.raises(InvalidInputError, match="belongs to another device"):
            recorder.fill(BufferRange(memory, 0, 4))


def test_submit_and_wait(own_device: Device, scale: Shader) -> None:
    places = Places(own_device, 2, 64, MemoryKind.UPLOAD)
    places.write(0, np.ones(16, np.float32))
    with scaling(own_device, scale, places, STEPS) as commands:
        commands.wait()  # not in flight
        commands.submit()
        with pytest.raises(InvalidInputError, match="in flight"):
            commands.submit()
        commands.wait()
        commands.wait()
    assert places.read(0).tolist() == [4.0] * 16


def test_dropping_commands_in_flight_waits_for_them(own_device: Device, spin: Shader) -> None:
    memory = own_device.allocate(1 << 12, MemoryKind.DEVICE)
    recorder = own_device.recorder()
    recorder.dispatch(
        own_device.pipeline(spin), [BufferRange(memory, 0, 1 << 12)], groups=(8, 1, 1)
    )
    commands = recorder.finish()
    commands.submit()
    del recorder, commands, memory
    assert "buffers" not in own_device.stats()


def test_a_lost_device_is_reported(
    own_device: Device, scale: Shader, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(own_device, 2, 64, MemoryKind.UPLOAD)
    commands = scaling(own_device, scale, places, STEPS)
    assert commands._commands is not None
    if own_device.info.driver == "kompute":

        def step() -> None:
            raise RuntimeError("vk::Queue::submit: ErrorDeviceLost")

        monkeypatch.setattr(commands._commands, "_steps", [step])
    else:
        from vkmnn.runtime.drivers.vulkan.api import lib

        class Library:
            """The Vulkan library after the device was lost."""

            def __getattr__(self, name: str) -> object:
                return (lambda *_: -4) if name == "vkQueueSubmit" else getattr(lib, name)

        monkeypatch.setattr("vkmnn.runtime.drivers.vulkan.command.lib", Library())
    with pytest.raises(DeviceLostError, match="one of: 0 to 1, 1 to 0"):
        commands.run()
    assert own_device.lost is not None
    with pytest.raises(DeviceLostError, match="rebuild the session"):
        own_device.allocate(1, MemoryKind.DEVICE)


def test_threads_share_a_device(own_device: Device, scale: Shader) -> None:
    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(16).astype(np.float32)
        places = Places(own_device, 2, 64, MemoryKind.UPLOAD)
        with scaling(own_device, scale, places, STEPS) as commands:
            for _ in range(10):
                places.write(0, x)
                commands.run()
                np.testing.assert_array_equal(places.read(0), 4 * x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert own_device.stats()["pipelines"] == 1


def run_python(code: str, driver: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "VKMNN_DRIVER": driver}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


@pytest.mark.parametrize("validation", [False, True])
def test_the_interpreter_ends_cleanly_with_everything_alive(driver: str, validation: bool) -> None:
    """Live buffers, views, commands and encoders when the interpreter ends."""
    result = run_python(
        f"""
from vkmnn.errors import ValidationLayerError
from vkmnn.runtime import *
try:
    device = open_device(validation={validation})
except ValidationLayerError:
    raise SystemExit
memory = device.allocate(4096, MemoryKind.UPLOAD)
view = memory.host
recorder = device.recorder()
recorder.fill(BufferRange(memory, 0, 64), 7)
commands = recorder.finish()
commands.submit()
unfinished = device.recorder()
unfinished.fill(BufferRange(memory, 0, 64), 7)
class Cycle: pass
cycle = Cycle(); cycle.self = cycle; cycle.things = (memory, commands, unfinished)
""",
        driver,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_device_alone(driver: str) -> None:
    result = run_python(
        """
import atexit, os, warnings
import numpy as np
from vkmnn.errors import InvalidInputError
from vkmnn.runtime import *
device = open_device()
memory = device.allocate(4096, MemoryKind.DEVICE)
memory.write(0, np.arange(10, dtype=np.uint8))
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while the driver has threads
child = os.fork()
if child == 0:
    try:
        device.recorder()
    except InvalidInputError as error:
        assert "parent process" in str(error)
    else:
        os._exit(3)
    memory.destroy()
    device.close()
    del memory, device
    atexit._run_exitfuncs()
    os._exit(0)  # the libraries' own exit functions may wait for threads that no child has
assert os.waitpid(child, 0)[1] == 0
recorder = device.recorder()
recorder.fill(BufferRange(memory, 4, 4), 0)
with recorder.finish() as commands:
    commands.run()
assert memory.read(0, 10).tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9]
""",
        driver,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_finalizer_that_is_interrupted_loses_nothing(
    own_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come before a finalizer has told the device what to free."""
    if own_device.info.driver == "kompute":
        pytest.skip("frees in the finalizer itself")
    before = own_device.stats()
    buffer = own_device.allocate(4096, MemoryKind.DEVICE)
    driver_device = own_device.driver_device

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    (finalizer,) = [
        owned.finalizer
        for owned in driver_device._live.values()  # type: ignore[attr-defined]
        if owned.nbytes >= 4096
    ]
    weakref.finalize._registry[finalizer].func = interrupted  # type: ignore[attr-defined]
    del buffer
    gc.collect()
    assert not finalizer.alive
    assert own_device.stats() == before
