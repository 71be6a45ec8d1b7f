"""A driver without a device, for planning networks for a device profile.

Everything above the driver behaves as on the profile's device: kernels are chosen by its features
and limits, which no real device lowers further. Runs return zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkmnn.errors import OutOfDeviceMemoryError
from vkmnn.runtime.device_info import DeviceInfo, DeviceType, MemoryFlag, Priority
from vkmnn.runtime.device_profiles import DeviceProfile
from vkmnn.runtime.drivers.base import (
    EMPTY_RANGE_BYTES,
    Driver,
    DriverCommands,
    DriverDevice,
    DriverPipeline,
    DriverRecorder,
)
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.runtime.shader import Shader

_GRANULE = 256
_HOST_KINDS = (MemoryKind.UPLOAD, MemoryKind.READBACK)


class ProfileDriver(Driver):
    """Offers the one device of a profile, as its own driver describes it."""

    name = "vulkan"

    def __init__(self, profile: DeviceProfile) -> None:
        self._info = DeviceInfo(
            index=0,
            name=profile.device,
            vendor_id=profile.vendor_id,
            vendor=f"0x{profile.vendor_id:04X}",
            device_id=0,
            driver_name=profile.driver,
            driver_version="",
            api_version=profile.api_version,
            type=profile.type,
            uuid=f"profile-{profile.name}",
            driver_uuid="",
            memory_bytes=profile.memory_bytes,
            subgroup_size=profile.subgroup_size,
            features=profile.features,
            limits=profile.limits,
            cooperative_matrices=profile.cooperative_matrices,
            multiprocessors=profile.multiprocessors,
            memory_types=profile.memory_types,
            device_profile=profile.name,
        )

    def enumerate(self) -> list[DeviceInfo]:
        return [self._info]

    def open(
        self,
        info: DeviceInfo,
        *,
        validation: bool,
        disabled: frozenset[str],
        priority: Priority = "normal",
    ) -> PlanningDevice:
        return PlanningDevice(info)


class PlanningDevice(DriverDevice):
    """A device of heaps alone."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.validation = False
        self.messages = []
        self._live: dict[int, tuple[int, int]] = {}
        self.shaders: Counter[str] = Counter()
        """Name of a shader -> number of recorded dispatches."""

    def allocate(self, nbytes: int, kind: MemoryKind) -> PlanningBuffer:
        size = max(-(-nbytes // _GRANULE), 1) * _GRANULE + EMPTY_RANGE_BYTES
        used: Counter[int] = Counter()
        for heap, taken in self._live.values():
            used[heap] += taken
        unified = self.info.type in (DeviceType.CPU, DeviceType.INTEGRATED)
        wanted = MemoryFlag.HOST_VISIBLE if kind in _HOST_KINDS else MemoryFlag.DEVICE_LOCAL
        for item in self.info.memory_types:
            if item.flags & wanted and used[item.heap] + size <= item.heap_bytes:
                visible = kind in _HOST_KINDS or (unified and item.flags & MemoryFlag.HOST_VISIBLE)
                buffer = PlanningBuffer(self._live, nbytes, bool(visible))
                self._live[id(buffer)] = item.heap, size
                return buffer
        raise OutOfDeviceMemoryError(f"no heap of {self.info.name} holds {size} more bytes")

    def create_pipeline(
        self, shader: Shader, code: bytes, spec: Mapping[str, int | float | bool]
    ) -> PlanningPipeline:
        return PlanningPipeline(shader)

    def recorder(self, timestamps: bool) -> PlanningRecorder:
        return PlanningRecorder(self.shaders)

    def wait_idle(self) -> None:
        """Return: no work is ever in flight."""

    def load_cache(self, data: bytes) -> None:
        """Ignore it."""

    def cache_data(self) -> bytes:
        return b""

    def live_objects(self) -> dict[str, int]:
        return {"buffers": len(self._live), "bytes": sum(size for _, size in self._live.values())}

    def lost_callback(self, callback: Callable[[str], None]) -> None:
        """Ignore the callback: a device that executes nothing is never lost."""

    def destroy(self, *, hung: bool) -> bool:
        self._live.clear()
        return True


class PlanningBuffer(DriverBuffer):
    """Host bytes if the device's would be visible, else none."""

    __slots__ = ("_live",)

    def __init__(self, live: dict[int, tuple[int, int]], nbytes: int, visible: bool) -> None:
        self.nbytes = nbytes
        self.empty_offset = max(-(-nbytes // _GRANULE), 1) * _GRANULE
        self.host = np.zeros(nbytes, np.uint8) if visible else None
        self.coherent = True
        self._live = live

    def flush(self) -> None:
        """Return: the memory is coherent."""

    def invalidate(self) -> None:
        """Return: the memory is coherent."""

    def destroy(self) -> None:
        self.host = None
        self._live.pop(id(self), None)

    def __del__(self) -> None:
        """Free the bytes of the heap as a driver's buffer does when its last reference is gone."""
        self._live.pop(id(self), None)


class PlanningPipeline(DriverPipeline):
    """A shader that will not run."""

    __slots__ = ("shader",)

    def __init__(self, shader: Shader) -> None:
        self.shader = shader

    def destroy(self) -> None:
        """Return: there is nothing to free."""


class PlanningRecorder(DriverRecorder):
    """Counts dispatches by shader."""

    def __init__(self, shaders: Counter[str]) -> None:
        self._shaders = shaders
        self._timestamps = 0

    def dispatch(
        self,
        pipeline: PlanningPipeline,  # type: ignore[override]  # its own, as every driver's
        ranges: Sequence[BufferRange],
        params: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        self._shaders[pipeline.shader.name] += 1

    def copy(self, src: BufferRange, dst: BufferRange) -> None:
        """Copy nothing."""

    def fill(self, dst: BufferRange, value: int) -> None:
        """Fill nothing."""

    def barrier(self, src: int, dst: int) -> None:
        """Return: no work is in flight."""

    def timestamp(self) -> None:
        self._timestamps += 1

    def finish(self, buffers: Sequence[DriverBuffer]) -> PlanningCommands:
        return PlanningCommands(self._timestamps)


class PlanningCommands(DriverCommands):
    """Commands that finish when they are submitted."""

    def __init__(self, timestamps: int) -> None:
        self._timestamps = timestamps

    def submit(self) -> None:
        """Return: done."""

    def wait(self, timeout_s: float) -> bool:
        return True

    def timestamps_ns(self) -> list[float | None]:
        return [0.0] * self._timestamps

    def destroy(self) -> None:
        """Return: there is nothing to free."""
