"""A session's power is the priority of its work, if the device supports priorities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.session.models import tanh_chain
from vkmnn.runtime import device as devices
from vkmnn.runtime import drivers
from vkmnn.runtime.drivers.vulkan import device as vulkan_device
from vkmnn.runtime.drivers.vulkan.api import NULL, ffi, lib
from vkmnn.runtime.drivers.vulkan.features import query
from vkmnn.runtime.drivers.vulkan_driver import VulkanDriver

pytestmark = pytest.mark.skipif(not devices.enumerate_devices("vulkan"), reason="no Vulkan device")

LOW, HIGH = 128, 512  # VK_QUEUE_GLOBAL_PRIORITY_LOW_KHR, VK_QUEUE_GLOBAL_PRIORITY_HIGH_KHR


class Recorder:
    """Vulkan, except for the arguments of creating devices; some priorities are not granted."""

    def __init__(self, refused: int) -> None:
        self.asked: list[int | None] = []
        self.refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def vkCreateDevice(self, physical: Any, info: Any, allocator: Any, out: Any) -> int:  # noqa: N802
        queue = info.pQueueCreateInfos
        priority = None
        if queue.pNext != NULL:
            chained = ffi.cast("VkDeviceQueueGlobalPriorityCreateInfoKHR *", queue.pNext)
            priority = int(chained.globalPriority)
        self.asked.append(priority)
        if priority == self.refused:
            return int(lib.VK_ERROR_NOT_PERMITTED_KHR)
        queue.pNext = NULL  # the device at hand may not know it
        return int(lib.vkCreateDevice(physical, info, allocator, out))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Let devices have the feature, whether or not they have the extension."""

    def with_priorities(*arguments: Any) -> Any:
        found = query(*arguments)
        if found is not None:
            features = found.info.features | {"queue_priority"}
            found.info = replace(found.info, features=features)
        return found

    made = Recorder(refused=HIGH)
    monkeypatch.setattr("vkmnn.runtime.drivers.vulkan_driver.query", with_priorities)
    monkeypatch.setattr(vulkan_device, "lib", made)
    monkeypatch.setattr(drivers, "_loaded", {"vulkan": VulkanDriver()})
    monkeypatch.setattr(devices, "_devices", {})
    yield made
    for device in list(devices._devices.values()):
        device.close()


def run(power: Any) -> Any:
    """Run a session; return its device."""
    net = vkmnn.Interpreter(tanh_chain(["N"]))
    session = net.create_session({"power": power, "tuning": "off", "driver": "vulkan"})
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    (result,) = session.core.run({"x": x}).values()  # type: ignore[union-attr]
    np.testing.assert_allclose(result, np.tanh(-x), rtol=1e-5)
    return session.core._main.device  # type: ignore[union-attr]


def test_every_priority_is_a_device_of_its_own(recorder: Recorder) -> None:
    low, normal = run("low"), run("normal")
    assert low is not normal
    assert run("low") is low
    assert recorder.asked == [LOW, None]


def test_a_priority_that_is_not_granted(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    run("high")
    assert recorder.asked == [HIGH, None]
    assert "a high priority is not granted" in caplog.text


def test_without_the_feature_all_share_a_device(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKMNN_DISABLE_FEATURES", "queue_priority")
    assert run("low") is run("normal")
    assert recorder.asked == [None]


def test_a_driver_need_not_know_of_priorities(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Simple(VulkanDriver):
        def open(self, info: Any, *, validation: bool, disabled: frozenset[str]) -> Any:  # type: ignore[override]
            return super().open(info, validation=validation, disabled=disabled)

    monkeypatch.setattr(drivers, "_loaded", {"vulkan": Simple()})
    run("normal")
    assert recorder.asked == [None]


@pytest.mark.validation
def test_a_device_that_has_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of those that the tests run on, SwiftShader, has, though it grants none."""
    monkeypatch.setattr(devices, "_devices", {})
    device = devices.open_device(driver="vulkan", validation=True, priority="low")
    try:
        if "queue_priority" not in device.info.features:
            pytest.skip("the device has none")
        assert devices.open_device(driver="vulkan", validation=True) is not device
        assert run("low").info.uuid == device.info.uuid
    finally:
        for opened in list(devices._devices.values()):
            opened.close()
