"""An opened device: a kp manager, with its own VkInstance and VkDevice."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.errors import DeviceError, DeviceLostError, DeviceNotFoundError
from vkmnn.runtime.drivers.base import DriverDevice
from vkmnn.runtime.drivers.kompute.command import KomputeRecorder
from vkmnn.runtime.drivers.kompute.memory import KomputeBuffer
from vkmnn.runtime.drivers.kompute.package import check_build, translated
from vkmnn.runtime.drivers.kompute.pipeline import KomputePipeline
from vkmnn.runtime.drivers.kompute.validation import validated_manager

if TYPE_CHECKING:
    from vkmnn.runtime.device_info import DeviceInfo
    from vkmnn.runtime.memory import MemoryKind
    from vkmnn.runtime.shader import Shader

_RELEASE_ORDER = ("command_buffers", "pipelines", "buffers")


class KomputeDevice(DriverDevice):
    """A kp manager and all objects created from it.

    kp holds Python's global lock in every call and waits in every run, so no lock is needed here.
    """

    def __init__(self, kp: Any, info: DeviceInfo, *, validation: bool) -> None:
        self.kp = kp
        self.info = info
        self.validation = validation
        self.messages: list[str] = []
        self._log = None
        try:
            if validation:
                self.manager, self._log = validated_manager(kp, info.index)
            else:
                self.manager = kp.Manager(info.index)
        except RuntimeError as error:
            raise translated(error, f"opening {info.name} with Kompute") from error
        found = self.manager.get_device_properties()["device_name"]
        if found != info.name:
            raise DeviceNotFoundError(
                f"Kompute's device {info.index} is {found}, not {info.name}",
                hint="let VK_DRIVER_FILES name the one driver to use",
            )
        check_build(kp, self.manager)
        self._live: dict[int, tuple[str, int, weakref.finalize[..., Any]]] = {}
        self._numbers = itertools.count()
        self._process = os.getpid()
        self._on_lost: Callable[[str], None] | None = None
        self.spare_tensor = self.manager.tensor_t(np.zeros(64, np.uint32), kp.TensorTypes.host)
        """Bound where kp requires a tensor and the shader has none."""

    def own(
        self, owner: object, kind: str, things: list[Any], *, nbytes: int = 0
    ) -> weakref.finalize[..., Any]:
        """Destroy kp's `things` once: when released, or when `owner` dies."""
        number = next(self._numbers)
        finalizer = weakref.finalize(owner, self._destroy_things, number, things)
        finalizer.atexit = False  # the device is closed at exit, after handlers that may use it
        self._live[number] = (kind, nbytes, finalizer)
        return finalizer

    def release(self, finalizer: weakref.finalize[..., Any]) -> None:
        """Destroy the object of a finalizer that `own` returned. Idempotent."""
        finalizer()

    def _destroy_things(self, number: int, things: list[Any]) -> None:
        if os.getpid() != self._process:
            return  # a forked child shares the parent's device
        self._live.pop(number, None)
        for thing in things:
            thing.destroy()
        things.clear()

    def evaluate(self, sequence: Any) -> None:
        """Run a recorded sequence and wait for it."""
        try:
            sequence.eval()
        except RuntimeError as error:
            raise self.failure(error, "running commands") from error

    def failure(self, error: RuntimeError, doing: str) -> DeviceError:
        """Convert an exception of kp to a typed error, and report a lost device."""
        known = translated(error, doing)
        if isinstance(known, DeviceLostError) and self._on_lost:
            self._on_lost(known.message)
        return known

    def collect_messages(self) -> None:
        """Collect the messages of the validation layer, in validation mode."""
        if self._log is not None:
            self.messages += self._log.new_messages()

    def allocate(self, nbytes: int, kind: MemoryKind) -> KomputeBuffer:
        buffer = KomputeBuffer(self, nbytes, kind)
        self.collect_messages()
        return buffer

    def create_pipeline(
        self, shader: Shader, code: bytes, spec: Mapping[str, int | float | bool]
    ) -> KomputePipeline:
        return KomputePipeline(self, shader, code, spec)

    def recorder(self, timestamps: bool) -> KomputeRecorder:
        return KomputeRecorder(self)

    def wait_idle(self) -> None:
        self.collect_messages()  # every run has been waited for

    def load_cache(self, data: bytes) -> None:
        """Ignore the cache: kp gives every pipeline an empty one."""

    def cache_data(self) -> bytes:
        return b""

    def live_objects(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for kind, nbytes, _finalizer in list(self._live.values()):
            counts[kind] += 1
            counts["bytes"] += nbytes
        return dict(counts)

    def buffer_sizes(self) -> list[int]:
        """Return the bytes of every buffer not yet destroyed."""
        return [nbytes for kind, nbytes, _ in list(self._live.values()) if kind == "buffers"]

    def lost_callback(self, callback: Callable[[str], None]) -> None:
        self._on_lost = callback

    def destroy(self, *, hung: bool) -> bool:
        if self.manager is None or os.getpid() != self._process:
            return True
        for kind in _RELEASE_ORDER:
            for owned, _nbytes, finalizer in list(self._live.values()):
                if owned == kind:
                    finalizer()
        self.spare_tensor.destroy()
        self.manager.destroy()
        self.manager = None
        return True
