"""VkDevice with its queue, and a registry of all objects created from it."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vkmnn.base.mapped_files import MappedFile
from vkmnn.errors import DeviceLostError
from vkmnn.runtime.device_info import Priority
from vkmnn.runtime.drivers.base import DriverDevice
from vkmnn.runtime.drivers.vulkan.api import NULL, check, ffi, lib, names, result_error, struct
from vkmnn.runtime.drivers.vulkan.command import COMMAND_BUFFERS, Parts, VulkanRecorder
from vkmnn.runtime.drivers.vulkan.features import PhysicalDevice
from vkmnn.runtime.drivers.vulkan.image import VulkanImage
from vkmnn.runtime.drivers.vulkan.imported import imported
from vkmnn.runtime.drivers.vulkan.instance import Instance
from vkmnn.runtime.drivers.vulkan.memory import VulkanBuffer
from vkmnn.runtime.drivers.vulkan.pipeline import PipelineFactory, VulkanPipeline
from vkmnn.runtime.memory import MemoryKind
from vkmnn.runtime.shader import Shader

log = logging.getLogger(__name__)

RELEASE_WAIT_NS = 2_000_000_000
"""Seconds to wait for commands that are to be freed; after that, they are freed once idle."""
_LOOK_UP_EVERY = 256
_COPIERS = 2
"""Number of threads that may copy with existing command pools."""


class _Owned(NamedTuple):
    """An object of the device, and how it is freed."""

    kind: str
    nbytes: int
    finalizer: weakref.finalize[..., Any]
    release: Callable[..., object]
    args: tuple[Any, ...]


_LAYOUT_S = 60.0
"""Access of an image's layout transition: other commands may run before it."""


class VulkanDevice(DriverDevice):
    """A VkDevice with one compute queue; it keeps `instance` alive."""

    def __init__(
        self,
        instance: Instance,
        physical: PhysicalDevice,
        disabled: frozenset[str],
        priority: Priority = "normal",
    ) -> None:
        self.instance = instance
        self.validation = instance.validation
        self.messages = instance.messages
        self.info = physical.info
        self.queue_family = physical.queue_family
        self.timestamp_bits = physical.timestamp_bits
        self.heap_claims: dict[int, tuple[int, int]] = {}
        """Address of a VkDeviceMemory -> (heap, bytes)."""
        self.queue_lock = threading.RLock()
        self._on_lost: Callable[[str], None] | None = None
        self._live: dict[int, _Owned] = {}
        self._numbers = itertools.count()
        self._deferred: deque[tuple[int, Callable[..., object], tuple[Any, ...]]] = deque()
        self._release_lock = threading.Lock()
        self._releasing = False
        self.release_wait_ns = RELEASE_WAIT_NS
        self._process = os.getpid()
        self._parts = [Parts(self) for _ in range(_COPIERS)]
        self.handle = NULL
        cell = ffi.new("VkDevice *")
        try:
            _create_device(physical, disabled, priority, cell)
            self.handle = cell[0]
            queue = ffi.new("VkQueue *")
            lib.vkGetDeviceQueue(self.handle, self.queue_family, 0, queue)
            self.queue = queue[0]
            self.pipelines = PipelineFactory(self)
        except BaseException:
            self.handle = cell[0]
            self.destroy(hung=False)
            raise

    def own(
        self,
        owner: object,
        kind: str,
        release: Callable[..., object],
        *args: Any,
        nbytes: int = 0,
    ) -> weakref.finalize[..., Any]:
        """Register `release(*args)`, which runs on request, or when `owner` or the device ends.

        It may run again after an interruption; when it returns False, the device still uses the
        objects, and it runs again later.
        """
        number = next(self._numbers)
        if number % _LOOK_UP_EVERY == 0:
            self._defer_lost()
        self.release_deferred()
        finalizer = weakref.finalize(owner, self._finalize, number, release, args)
        finalizer.atexit = False  # the device is closed at exit, after handlers that may use it
        # One store, no lock: a lock could be acquired twice when a collection runs a finalizer.
        self._live[number] = _Owned(kind, nbytes, finalizer, release, args)
        return finalizer

    def release(self, finalizer: weakref.finalize[..., Any]) -> None:
        """Release the object of a finalizer that `own` returned. Idempotent."""
        finalizer()
        self.release_deferred()

    def release_deferred(self) -> None:
        """Release what `_finalize` has deferred.

        Nothing is released while commands run that could not be waited for: they may use any of it.
        """
        while self._deferred and not self._releasing:
            with self._release_lock:
                self._releasing = True
                try:
                    if not self._release_all():
                        return
                finally:
                    self._releasing = False

    def _defer_lost(self) -> None:
        """Defer objects whose finalizer was interrupted by Ctrl-C."""
        waiting = {number for number, _release, _args in list(self._deferred)}
        # Copied at once: tuples of items may start the garbage collector, and so finalizers.
        for number, owned in self._live.copy().items():
            if not owned.finalizer.alive and number not in waiting:
                self._deferred.append((number, owned.release, owned.args))

    def _release_all(self) -> bool:
        """Release objects in order, until none is left or one is still in use."""
        while self._deferred:
            number, release, args = self._deferred[0]
            if release(*args) is False:
                return False
            self._live.pop(number, None)
            self._deferred.popleft()
        return True

    def _finalize(self, number: int, release: Callable[..., object], args: tuple[Any, ...]) -> None:
        # A forked child shares the parent's device: destroying things there breaks the parent.
        if not self.handle or os.getpid() != self._process:
            return
        self._deferred.append((number, release, args))
        # The validation layer calls back into Python, where a collection may run any finalizer. The
        # layer holds its locks then: a Vulkan call would wait for them for ever.
        if not self.validation:
            self.release_deferred()

    def stop_waiting(self) -> None:
        self.release_wait_ns = 0

    def check(self, result: int, call: str) -> None:
        """Raise the typed error of a failed call and report a lost device."""
        if result < 0:
            error = result_error(result, call)
            if isinstance(error, DeviceLostError) and self._on_lost:
                self._on_lost(error.message)
            raise error

    def allocate(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        self.release_deferred()
        return VulkanBuffer(self, nbytes, kind)

    def import_file(self, file: MappedFile) -> VulkanBuffer | None:
        self.release_deferred()
        return imported(self, file)

    def allocate_image(self, width: int, height: int, texel_format: str) -> VulkanImage:
        self.release_deferred()
        image = VulkanImage(self, width, height, texel_format)
        recorder = self.recorder(False)
        recorder.open_image(image)
        commands = recorder.finish([image])
        try:
            commands.submit()
            if not commands.wait(_LAYOUT_S):
                raise DeviceLostError(
                    f"{self.info.name} did not finish the layout transition of an image"
                )
        finally:
            commands.destroy()
        return image

    def create_pipeline(
        self, shader: Shader, code: bytes, spec: Mapping[str, int | float | bool]
    ) -> VulkanPipeline:
        return self.pipelines.create(shader, code, spec)

    def recorder(self, timestamps: bool) -> VulkanRecorder:
        return VulkanRecorder(self, timestamps)

    def copier(self) -> VulkanRecorder:
        parts = next((each for each in self._parts if each.taken.acquire(blocking=False)), None)
        return VulkanRecorder(self, timestamps=False, parts=parts)

    def wait_idle(self) -> None:
        with self.queue_lock:
            self.check(lib.vkDeviceWaitIdle(self.handle), "vkDeviceWaitIdle")

    def load_cache(self, data: bytes) -> None:
        self.pipelines.load_cache(data)

    def cache_data(self) -> bytes:
        return self.pipelines.cache_data()

    def live_objects(self) -> dict[str, int]:
        self._defer_lost()
        self.release_deferred()
        counts: Counter[str] = Counter()
        for owned in list(self._live.values()):
            counts[owned.kind] += 1
            counts["bytes"] += owned.nbytes
        return dict(counts)

    def lost_callback(self, callback: Callable[[str], None]) -> None:
        self._on_lost = callback

    def destroy(self, *, hung: bool) -> bool:
        if not self.handle or os.getpid() != self._process:
            return True
        if hung:
            self.stop_waiting()
        with self._release_lock:
            self._releasing = True
            try:
                return self._destroy()
            finally:
                self._releasing = False

    def _destroy(self) -> bool:
        live = sorted(self._live.items(), reverse=True)
        for _number, owned in live:
            if owned.kind == COMMAND_BUFFERS:
                owned.finalizer()
        handle = self.handle
        gone = self._release_all() or self._release_all()  # the wait may have failed just this time
        if gone:
            for _number, owned in live:
                owned.finalizer()
            self._defer_lost()
            self._release_all()
            for parts in self._parts:
                parts.handles.destroy()
            self.handle = NULL
            lib.vkDestroyDevice(handle, NULL)
        else:
            # Destroying objects in use by the device is undefined; the operating system cleans up.
            log.error("%s is still working: the system will free its objects", self.info.name)
            self.handle = NULL
            for _number, owned in live:
                owned.finalizer.detach()
            self._deferred.clear()
        self._live.clear()
        return gone


_PRIORITIES = {
    "low": lib.VK_QUEUE_GLOBAL_PRIORITY_LOW_KHR,
    "high": lib.VK_QUEUE_GLOBAL_PRIORITY_HIGH_KHR,
}
# The second one is SwiftShader's answer.
_NOT_GRANTED = {lib.VK_ERROR_NOT_PERMITTED_KHR, lib.VK_ERROR_INITIALIZATION_FAILED}


def _create_device(
    physical: PhysicalDevice, disabled: frozenset[str], priority: Priority, out: Any
) -> None:
    """Create the device; with the default priority if the system does not grant the other."""
    result = _try_create(physical, disabled, _PRIORITIES.get(priority), out)
    if result in _NOT_GRANTED and priority in _PRIORITIES:
        name = physical.info.name
        log.warning("%s: a %s priority is not granted to this process", name, priority)
        result = _try_create(physical, disabled, None, out)
    if result < 0:
        out[0] = NULL
    check(result, "vkCreateDevice")


def _try_create(
    physical: PhysicalDevice, disabled: frozenset[str], global_priority: int | None, out: Any
) -> int:
    chain = physical.enable(disabled)
    priority = ffi.new("float[]", [1.0])
    among_all = NULL
    if global_priority is not None:
        among_all = struct(
            "VkDeviceQueueGlobalPriorityCreateInfoKHR",
            lib.VK_STRUCTURE_TYPE_DEVICE_QUEUE_GLOBAL_PRIORITY_CREATE_INFO_KHR,
            globalPriority=global_priority,
        )
    queue = struct(
        "VkDeviceQueueCreateInfo",
        lib.VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        pNext=among_all,
        queueFamilyIndex=physical.queue_family,
        queueCount=1,
        pQueuePriorities=priority,
    )
    extension_array, _keep = names(chain.extensions)
    info = struct(
        "VkDeviceCreateInfo",
        lib.VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        pNext=chain.head,
        queueCreateInfoCount=1,
        pQueueCreateInfos=queue,
        enabledExtensionCount=len(chain.extensions),
        ppEnabledExtensionNames=extension_array,
    )
    return int(lib.vkCreateDevice(physical.handle, info, NULL, out))
