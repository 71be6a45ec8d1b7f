"""Lost devices are freed by the next thread that can, but not while another thread uses them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from vkmnn.errors import DeviceLostError
from vkmnn.runtime import Device
from vkmnn.runtime import device as device_module
from vkmnn.runtime.device import retire_unwanted
from vkmnn.runtime.pipeline import Pipeline
from vkmnn.runtime.pipeline_cache import PipelineCacheFile
from vkmnn.runtime.warm_up import WarmUp

VulkanDevice = pytest.importorskip("vkmnn.runtime.drivers.vulkan.device").VulkanDevice


def test_nobody_frees_a_lost_device_that_a_thread_has_just_entered(
    own_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is stopped exactly between checking the gate and closing it."""
    visit = own_device.gate.visit()
    look = own_device.driver_device.live_objects

    def looks() -> dict[str, int]:
        visit.__enter__()
        return look()

    own_device.mark_lost("for the test")
    monkeypatch.setattr(own_device.driver_device, "live_objects", looks)
    own_device.retire()
    assert not own_device.closed
    visit.__exit__(None, None, None)
    own_device.retire()
    assert own_device.closed


def test_nobody_frees_a_device_that_is_lost_while_it_is_opened(
    own_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread looks for lost devices while the cache is loading."""
    alive: list[bool] = []

    def lost(self: Any, data: bytes) -> None:
        assert self._on_lost is not None
        self._on_lost("for the test")
        thread = threading.Thread(target=retire_unwanted)
        thread.start()
        thread.join()
        alive.append(bool(self.handle))
        raise DeviceLostError("for the test")

    monkeypatch.setattr(VulkanDevice, "load_cache", lost)
    monkeypatch.setattr(PipelineCacheFile, "load", lambda _: b"data")
    with pytest.raises(DeviceLostError):
        own_device.open_again()
    assert alive == [True]
    retire_unwanted()
    assert not [one for one in device_module._unwanted if one.lost == "for the test"]


def test_what_nobody_waits_for_does_not_begin_on_a_closed_device(
    own_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[object] = []
    monkeypatch.setattr(own_device, "warm_up", warmed.append)
    done: Future[Pipeline] = Future()
    done.set_result(object())  # type: ignore[arg-type]
    own_device.gate.shut(0)
    WarmUp(own_device, [done], awaited=False).close()
    assert not warmed
