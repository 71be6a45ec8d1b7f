"""A run that an exception ends early costs its results, and no other run's."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tests.driver.conftest import Places, scaling
from tests.vulkan_calls import count_vulkan
from vkmnn.errors import DeviceLostError, OutOfDeviceMemoryError
from vkmnn.runtime import BufferRange, CommandBuffer, Device, MemoryKind, Shader

STEPS = [(0, 1), (1, 0)]


class Fault:
    """Stands for one method of a driver's commands; its first call fails."""

    def __init__(self, real: Callable[..., object], error: BaseException, *, late: bool) -> None:
        self._real = real
        self._error: BaseException | None = error
        self._late = late

    def __call__(self, *args: object) -> object:
        error, self._error = self._error, None
        if error and not self._late:
            raise error
        result = self._real(*args)
        if error:
            raise error
        return result


def rerun(commands: CommandBuffer, places: Places, value: float) -> list[float]:
    commands.settle()  # the step back to the first range would overwrite what follows
    places.write(0, np.full(16, value, np.float32))
    commands.run()
    return places.read(0).tolist()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("method", ["submit", "wait"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OutOfDeviceMemoryError("for once")])
def test_the_next_run_works(
    own_device: Device,
    scale: Shader,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    late: bool,
    error: BaseException,
) -> None:
    if method == "submit" and late and not isinstance(error, KeyboardInterrupt):
        pytest.skip("a submission that fails has submitted nothing")
    places = Places(own_device, 2, 64, MemoryKind.UPLOAD)
    commands = scaling(own_device, scale, places, STEPS)
    assert rerun(commands, places, 1.0) == [4.0] * 16
    driver_commands = commands._commands
    fault = Fault(getattr(driver_commands, method), error, late=late)
    monkeypatch.setattr(driver_commands, method, fault)
    with pytest.raises(type(error)):
        commands.run()
    for value in (2.0, 3.0):
        assert rerun(commands, places, value) == [4 * value] * 16
    commands.destroy()
    assert own_device.lost is None


@pytest.mark.skipif(sys.platform == "win32", reason="raises a signal in the process itself")
def test_storms_of_ctrl_c_leave_the_commands_usable(
    own_device: Device, scale: Shader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An interrupted finalizer is reported to this hook, and pytest's is interrupted in turn.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    places = Places(own_device, 2, 64, MemoryKind.UPLOAD)
    commands = scaling(own_device, scale, places, STEPS)
    over = threading.Event()
    armed = False
    interrupts = 0

    def interrupt(*_: object) -> None:
        # One exception per round: none is raised between two rounds, where nothing catches it.
        nonlocal armed, interrupts
        if armed:
            armed = False
            interrupts += 1
            raise KeyboardInterrupt

    def storm() -> None:
        pause = np.random.default_rng(0)
        while not over.wait(pause.uniform(0.0002, 0.003)):
            signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=storm)
    old = signal.signal(signal.SIGINT, interrupt)
    try:
        thread.start()
        end = time.monotonic() + 30.0
        while interrupts < 400 and time.monotonic() < end:
            try:
                armed = True
                while armed:  # what interrupts a finalizer or a callback of gc comes to nobody
                    commands.run()
            except KeyboardInterrupt:
                pass
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, old)
    assert interrupts > 10
    assert rerun(commands, places, 5.0) == [20.0] * 16
    assert own_device.lost is None


def busy(device: Device, spin: Shader, groups: int, *, timestamps: bool = False) -> CommandBuffer:
    """Return commands that take about a hundredth of a second per group."""
    recorder = device.recorder(timestamps=timestamps)
    memory = device.allocate(1 << 14, MemoryKind.DEVICE)
    pipeline = device.pipeline(spin)
    recorder.dispatch(pipeline, [BufferRange(memory, 0, 1 << 14)], groups=(groups, 1, 1))
    return recorder.finish()


def test_the_limit_holds_where_times_are_recorded(own_device: Device, spin: Shader) -> None:
    if "timestamps" not in own_device.info.features:
        pytest.skip("no timestamps")
    commands = busy(own_device, spin, 200, timestamps=True)
    start = time.monotonic()
    with pytest.raises(DeviceLostError, match="did not finish within"):
        commands.run(0.01)
    waited = time.monotonic() - start
    own_device.driver_device.wait_idle()
    assert waited < (time.monotonic() - start) / 2  # any device, however fast or busy


def test_long_runs_are_not_polled(
    own_device: Device, spin: Shader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking for the end takes a core; after a run that took long, the next one sleeps at once."""
    if own_device.info.driver == "kompute":
        pytest.skip("the driver waits in every submission")
    commands = busy(own_device, spin, 20)  # even if this thread is kept waiting meanwhile
    driver_commands = commands._commands
    driver_commands._poll_s = 0.002  # type: ignore[union-attr]  # 0 on a device that is the CPU
    commands.run()
    assert driver_commands._is_long  # type: ignore[union-attr]
    calls: Counter[str] = Counter()
    count_vulkan(calls, monkeypatch)
    commands.run()
    assert calls["vkGetFenceStatus"] <= 1
    commands.destroy()


def test_what_still_runs_is_freed_when_it_is_done(own_device: Device, spin: Shader) -> None:
    """Nothing that the device may use is freed, nobody waits for long, and nothing remains."""
    if own_device.info.driver == "kompute":
        pytest.skip("the driver waits in every submission")
    driver_device = own_device.driver_device
    own_device.driver_device.release_wait_ns = 1_000_000  # type: ignore[attr-defined]
    before = own_device.stats()
    commands = busy(own_device, spin, 200)
    commands.submit()
    start = time.monotonic()
    commands.destroy()
    del commands
    waited = time.monotonic() - start
    assert own_device.stats()["buffers"] == before.get("buffers", 0) + 1
    driver_device.wait_idle()
    assert waited < (time.monotonic() - start) / 2
    after = own_device.stats()
    assert after.get("buffers") == before.get("buffers")
    assert after.get("command_buffers") == before.get("command_buffers")
