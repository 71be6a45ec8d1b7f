"""The book that the double of Vulkan keeps: whose an object is, whatever addresses are reused."""

# ruff: noqa: N802 - Vulkan's names

from __future__ import annotations

import random
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from vkmnn_suite.faults.library import Fault, Library


class Handle:
    """A pointer."""

    def __init__(self, number: int = 0) -> None:
        self.number = number


class Ffi:
    """What the double asks of cffi."""

    CData = Handle

    def typeof(self, function: Any) -> Any:
        returns = "void" if "Destroy" in function.__name__ else "enum VkResult"
        return SimpleNamespace(result=SimpleNamespace(cname=returns))

    def cast(self, _: str, handle: Handle | int) -> int:
        return handle.number if isinstance(handle, Handle) else handle


class Vulkan:
    """A library whose memory is handed out again at once, the last that was freed first."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.next = 1000
        self._lock = threading.Lock()

    def make(self, out: list[Handle]) -> int:
        with self._lock:
            if not self.free:
                self.next += 1
                self.free.append(self.next)
            out[0] = Handle(self.free.pop())
        return 0

    def drop(self, handle: Handle) -> None:
        with self._lock:
            self.free.append(handle.number)

    def vkCreateDevice(self, _physical: Any, _info: Any, _: Any, out: list[Handle]) -> int:
        return self.make(out)

    def vkAllocateCommandBuffers(self, _device: Handle, _info: Any, out: list[Handle]) -> int:
        return self.make(out)

    def vkCreateDescriptorSetLayout(
        self, _device: Handle, _info: Any, _: Any, out: list[Handle]
    ) -> int:
        return self.make(out)

    def vkDestroyDescriptorSetLayout(self, _device: Handle, handle: Handle, _: Any) -> None:
        self.drop(handle)

    def vkDestroyDevice(self, handle: Handle, _: Any) -> None:
        self.drop(handle)

    def vkDeviceWaitIdle(self, _: Handle) -> int:
        return 0


def _device(library: Library) -> Handle:
    out = [Handle()]
    library.vkCreateDevice(None, None, None, out)
    return out[0]


def _layout(library: Library, device: Handle) -> Handle:
    out = [Handle()]
    library.vkCreateDescriptorSetLayout(device, None, None, out)
    return out[0]


def _run_commands(library: Library, vulkan: Vulkan, device: Handle) -> None:
    """Allocate a command buffer, which is freed with its pool: no call names it."""
    out = [Handle()]
    library.vkAllocateCommandBuffers(device, None, out)
    vulkan.drop(out[0])


@pytest.mark.parametrize("fault", [None, Fault.LOST])
def test_a_device_may_lie_where_a_command_buffer_of_another_lay(fault: Fault | None) -> None:
    vulkan = Vulkan()
    library = Library(vulkan, Ffi())
    first = _device(library)
    _run_commands(library, vulkan, first)
    helper = _device(library)
    layout = _layout(library, helper)
    if fault is not None:
        library.arm(fault, 1)
        assert library.vkDeviceWaitIdle(first) == fault.result
        assert library.vkDeviceWaitIdle(helper) == 0
    library.vkDestroyDevice(first, None)  # the helper goes on, as one does in another thread
    library.vkDestroyDescriptorSetLayout(helper, layout, None)
    library.vkDestroyDevice(helper, None)
    assert library.orphans == []
    assert not library.counts()


def test_devices_come_and_go_in_threads(request: pytest.FixtureRequest) -> None:
    """Thousands of lives, whose addresses overlap in every way."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)  # threads take turns at nearly every call
    vulkan = Vulkan()
    library = Library(vulkan, Ffi())
    failed: list[BaseException] = []

    def live(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(500):
                device = _device(library)
                layouts = []
                for _ in range(4):
                    _run_commands(library, vulkan, device)
                    if chance.random() < 0.5:
                        time.sleep(0)
                    layouts.append(_layout(library, device))
                for layout in layouts:
                    library.vkDestroyDescriptorSetLayout(device, layout, None)
                library.vkDestroyDevice(device, None)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=live, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert library.orphans == []
    assert not library.counts()
