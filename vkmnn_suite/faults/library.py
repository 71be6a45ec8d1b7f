"""A fake of the raw Vulkan library: lets one call fail, and counts objects below vkmnn."""

from __future__ import annotations

import enum
import importlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

_LOST, _TIMEOUT = -4, 2


class Fault(enum.Enum):
    """The effect of a call that fails; `value` is a VkResult if the fault returns one."""

    DEVICE_MEMORY = -2
    HOST_MEMORY = -1
    INITIALIZATION = -3
    FRAGMENTED_POOL = -12
    FRAGMENTATION = -1000161000
    UNKNOWN = -13
    LOST_ONCE = _LOST
    LOST = "all later calls to the device report that it is lost"
    TIMEOUT = _TIMEOUT
    HANG = "no wait for the device ends any more"
    INTERRUPT = "Ctrl-C comes out of the call, which was made"
    NUMPY = "an allocation of numpy fails, not a call"

    @property
    def result(self) -> int:
        """The VkResult."""
        return {Fault.LOST: _LOST, Fault.HANG: _TIMEOUT}.get(self) or int(self.value)

    @property
    def loses(self) -> bool:
        """Whether the device is to be given up afterwards."""
        return self in (Fault.LOST, Fault.LOST_ONCE, Fault.HANG)


class Library:
    """Stands for `vulkan._vulkan.lib`. Made by `install`, before vkmnn loads its driver.

    `fired` names the call that was hit, None before. `calls` counts those that may be hit.
    """

    def __init__(self, real: Any, ffi: Any) -> None:
        self._real = real
        self._ffi = ffi
        self._lock = threading.RLock()
        self._fault: Fault | None = None
        self._at = 0
        self._lost: set[int] = set()
        self._hung: set[int] = set()
        self._parents: dict[int, int] = {}  # queue or command buffer -> device
        self.calls = 0
        self.fired: str | None = None
        self.live: dict[tuple[str, int], int] = {}  # (type, handle) -> device
        self.orphans: list[str] = []

    def arm(self, fault: Fault | None, at: int = 0) -> None:
        """Let call number `at` from now on fail; none if there is no fault."""
        with self._lock:
            self._fault, self._at = fault, at
            self._lost.clear()
            self._hung.clear()
            self.calls = 0
            self.fired = None

    def counts(self) -> Counter[str]:
        """Count the objects that exist, by type."""
        with self._lock:
            return Counter(kind for kind, _ in self.live)

    def __getattr__(self, name: str) -> Any:
        """Return a constant, or a function that can fail."""
        found = getattr(self._real, name)
        if callable(found):
            found = self._wrap(name, found)
        setattr(self, name, found)
        return found

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        kind = self._ffi.typeof(real)
        answers = kind.result.cname == "enum VkResult"
        waits = name in ("vkWaitForFences", "vkGetFenceStatus")

        def call(*args: Any) -> Any:
            device = self._device(args)
            if answers or self._fault is Fault.INTERRUPT:
                hit = self._hit(name, device, answers, waits)
                if hit is Fault.INTERRUPT:
                    self._called(name, real, args, device)
                    raise KeyboardInterrupt
                if hit is not None:
                    return hit.result
            return self._called(name, real, args, device)

        return call

    def _hit(self, name: str, device: int, answers: bool, waits: bool) -> Fault | None:
        """Count a call, and return the fault that it is to have."""
        with self._lock:
            fault = self._fault
            if fault is None:
                return None
            if device in self._lost and answers:
                return Fault.LOST
            if device in self._hung and waits:
                return Fault.HANG
            main = threading.current_thread() is threading.main_thread()
            if fault is Fault.NUMPY or (fault is Fault.INTERRUPT and not main):
                return None
            if fault in (Fault.TIMEOUT, Fault.HANG) and name != "vkWaitForFences":
                return None
            self.calls += 1
            if self.calls != self._at:
                return None
            self.fired = name
            if fault in (Fault.LOST, Fault.LOST_ONCE) and device:
                # Nothing may be freed that the real device still uses.
                self._real.vkDeviceWaitIdle(self._ffi.cast("VkDevice", device))
            if fault is Fault.LOST and device:
                self._lost.add(device)
            if fault is Fault.HANG:
                self._hung.add(device)
            return fault

    def _called(
        self, name: str, real: Callable[..., Any], args: tuple[Any, ...], device: int
    ) -> Any:
        """Call, and update the records."""
        if name.startswith(("vkDestroy", "vkFree")):
            # A returned handle may be reused at once by another thread.
            self._note(name, args, None, device)
            return real(*args)
        result = real(*args)
        self._note(name, args, result, device)
        return result

    def _device(self, args: tuple[Any, ...]) -> int:
        """Return the address of the device that a call belongs to, 0 if it belongs to none."""
        first = args[0] if args else None
        if not isinstance(first, self._ffi.CData):
            return 0
        number = int(self._ffi.cast("uintptr_t", first))
        # First: it may lie where a command buffer of another device lay, which nothing forgets.
        if ("VkDevice", number) in self.live:
            return number
        return self._parents.get(number, 0)

    def _note(self, name: str, args: tuple[Any, ...], result: Any, device: int) -> None:
        """Record the objects that exist."""
        if name == "vkGetDeviceQueue":
            self._belongs(args[3][0], device)
        elif name == "vkAllocateCommandBuffers" and result == 0:
            self._belongs(args[2][0], device)
        elif name == "vkAllocateMemory":
            self._made("VkDeviceMemory", args, result, device)
        elif name.startswith("vkCreate"):
            singular = {"vkCreateComputePipelines": "VkPipeline"}
            self._made(singular.get(name, f"Vk{name[8:]}"), args, result, device)
        elif name == "vkFreeMemory":
            self._gone("VkDeviceMemory", args[1])
        elif name == "vkDestroyDevice":
            self._destroyed(self._number(args[0]))
        elif name == "vkDestroyInstance":
            self._gone("VkInstance", args[0])
        elif name.startswith("vkDestroy"):
            self._gone(f"Vk{name[9:]}", args[1])

    def _belongs(self, handle: Any, device: int) -> None:
        with self._lock:  # another thread may be looking for those of a device
            self._parents[self._number(handle)] = device

    def _made(self, kind: str, args: tuple[Any, ...], result: Any, device: int) -> None:
        if result == 0:
            with self._lock:
                self.live[kind, self._number(args[-1][0])] = device

    def _gone(self, kind: str, handle: Any) -> None:
        with self._lock:
            if self.live.pop((kind, self._number(handle)), None) is None:
                self.orphans.append(f"{kind} destroyed twice")

    def _destroyed(self, device: int) -> None:
        with self._lock:
            self.live.pop(("VkDevice", device), None)
            for key in [key for key, parent in self.live.items() if parent == device]:
                self.orphans.append(f"{key[0]} outlived its device")
                del self.live[key]
            self._lost.discard(device)
            for number in [n for n, parent in self._parents.items() if parent == device]:
                del self._parents[number]

    def _number(self, handle: Any) -> int:
        return int(self._ffi.cast("uintptr_t", handle))


def install() -> Library:
    """Replace the library with the fake; vkmnn's driver must not have been loaded yet."""
    module: Any = importlib.import_module("vulkan._vulkan")
    library = Library(module.lib, module.ffi)
    module.lib = library
    return library
