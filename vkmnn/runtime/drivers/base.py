"""The interface that every driver implements, independent of any particular one.

`Device`, `Buffer`, `CommandRecorder` and `CommandBuffer` use only these classes. Checks of
arguments, hazard tracking, staging and caching happen above this interface; a driver may rely on
them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from vkmnn.base.mapped_files import MappedFile
    from vkmnn.runtime.device_info import DeviceInfo, Priority
    from vkmnn.runtime.drivers.buffer import DriverBuffer
    from vkmnn.runtime.memory import BufferRange, MemoryKind
    from vkmnn.runtime.shader import Shader

# Scopes of a barrier. Plain ints: combining members of an enum costs a microsecond.
COMPUTE_READ = 1
COMPUTE_WRITE = 2
TRANSFER_READ = 4
TRANSFER_WRITE = 8
HOST_READ = 16
COMPUTE = COMPUTE_READ | COMPUTE_WRITE
TRANSFER = TRANSFER_READ | TRANSFER_WRITE
WRITES = COMPUTE_WRITE | TRANSFER_WRITE

EMPTY_RANGE_BYTES = 16
"""Vulkan has no empty range: an empty one is bound to this many bytes at `empty_offset`."""


DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""Environment variables that replace the loader's search for drivers, the newer name first."""


def override_hint() -> str | None:
    """Return a hint on the variable that decides which drivers are loaded, if one is set."""
    name = next((name for name in DRIVER_VARIABLES if os.environ.get(name)), None)
    if name is None:
        return None
    return (
        f"{name}={os.environ[name]} decides which drivers are loaded: correct or unset it; "
        "`vkmnn doctor` says what is wrong with the files"
    )


class DriverUnavailableError(Exception):
    """The driver's library or loader cannot be used on this machine; the message says why.

    Internal: `enumerate_devices` logs it, `open_device` converts it to `DeviceNotFoundError`.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class DriverPipeline(ABC):
    """A compute pipeline."""

    __slots__ = ()

    @abstractmethod
    def destroy(self) -> None:
        """Free the pipeline; safe to call twice."""


class DriverCommands(ABC):
    """A recorded, replayable list of commands."""

    @abstractmethod
    def submit(self) -> None:
        """Hand the commands to the queue and return."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait until the last submission is done; False on timeout."""

    @abstractmethod
    def timestamps_ns(self) -> list[float | None]:
        """Time of every timestamp in nanoseconds, None for those not reached."""

    @abstractmethod
    def destroy(self) -> None:
        """Free everything; the commands must not be in flight. Safe to call twice."""


class DriverRecorder(ABC):
    """Records commands in order. Arguments have been checked by the caller."""

    @abstractmethod
    def dispatch(
        self,
        pipeline: DriverPipeline,
        ranges: Sequence[BufferRange],
        params: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        """Bind `ranges` in the order of the shader's bindings, push `params`, dispatch."""

    @abstractmethod
    def copy(self, src: BufferRange, dst: BufferRange) -> None:
        """Copy `src` to `dst` (equal sizes, not overlapping).

        At most one of them is an image; its whole rows are copied.
        """

    @abstractmethod
    def fill(self, dst: BufferRange, value: int) -> None:
        """Fill `dst` (offset and size are multiples of 4) with a 32-bit word."""

    @abstractmethod
    def barrier(self, src: int, dst: int) -> None:
        """Order everything in scope `src` before scope `dst`; scopes as defined above.

        Read bits in `src` mean execution only.
        """

    @abstractmethod
    def timestamp(self) -> None:
        """Record the time at which everything before has finished."""

    @abstractmethod
    def finish(self, buffers: Sequence[DriverBuffer]) -> DriverCommands:
        """End recording; the commands keep their pipelines and these `buffers` alive.

        The recorder must not be used afterwards.
        """


class DriverDevice(ABC):
    """An opened device."""

    info: DeviceInfo
    validation: bool
    messages: list[str]
    """Validation messages not yet raised; a driver appends, `Device` raises and clears."""

    @abstractmethod
    def allocate(self, nbytes: int, kind: MemoryKind) -> DriverBuffer:
        """Allocate at least `nbytes`; raises `OutOfDeviceMemoryError`."""

    def import_file(self, file: MappedFile) -> DriverBuffer | None:
        """Return a buffer on a mapped file, which it keeps mapped; None if unsupported.

        It must not be written. Called only on devices with the feature "file_memory".
        """
        return None

    def allocate_image(self, width: int, height: int, texel_format: str) -> DriverBuffer:
        """Allocate a 2-D image; raises `OutOfDeviceMemoryError`.

        Its bytes are those of its rows, in order; it is never mapped. Called only on devices with
        the feature "images"; `width` and `height` are within the limits.
        """
        raise NotImplementedError

    @abstractmethod
    def create_pipeline(
        self, shader: Shader, code: bytes, spec: Mapping[str, int | float | bool]
    ) -> DriverPipeline:
        """Build a pipeline; thread-safe.

        Args:
            shader: the bindings and requirements of the pipeline.
            code: the checked SPIR-V for the driver; not `shader.spirv()`.
            spec: a value for every constant of the shader.
        """

    @abstractmethod
    def recorder(self, timestamps: bool) -> DriverRecorder:
        """Begin a command list."""

    def copier(self) -> DriverRecorder:
        """Begin a list of copies that runs once; it may reuse the objects of a finished list."""
        return self.recorder(False)

    @abstractmethod
    def wait_idle(self) -> None:
        """Wait until the queue is empty."""

    @abstractmethod
    def load_cache(self, data: bytes) -> None:
        """Offer pipeline-cache data of an earlier run; data that does not fit is ignored."""

    @abstractmethod
    def cache_data(self) -> bytes:
        """Return the pipeline cache's data; empty if the driver keeps none."""

    @abstractmethod
    def live_objects(self) -> dict[str, int]:
        """Count of objects not yet destroyed, by kind, and `bytes` allocated."""

    @abstractmethod
    def lost_callback(self, callback: Callable[[str], None]) -> None:
        """Register a callback that gets the reason when the driver reports the device as lost."""

    def stop_waiting(self) -> None:  # noqa: B027 - a driver may never wait
        """Free nothing that commands in flight may use: they may never end."""

    @abstractmethod
    def destroy(self, *, hung: bool) -> bool:
        """Free the device and all objects created from it.

        `hung` says that work may never end: then do not wait for it.

        Returns:
            False if it still works, and its resources are left to the system.
        """


class Driver(ABC):
    """A way to reach devices."""

    name: ClassVar[str]
    others: Callable[[str], Driver]
    """Returns another driver by name; set by the code that creates this one."""

    @abstractmethod
    def enumerate(self) -> list[DeviceInfo]:
        """List devices; raises `DriverUnavailableError` if the driver cannot work."""

    @abstractmethod
    def open(
        self,
        info: DeviceInfo,
        *,
        validation: bool,
        disabled: frozenset[str],
        priority: Priority = "normal",
    ) -> DriverDevice:
        """Open a device listed by `enumerate`, with the features `disabled` off.

        A `priority` other than the default is only requested on devices with the feature
        "queue_priority".
        """

    def unknown_to_layer(self) -> frozenset[str]:
        """Return the features that the validation layer is too old to validate.

        Raises:
            ValidationLayerError: the layer is not installed.
        """
        return frozenset()

    def close(self) -> None:  # noqa: B027 - a driver may hold nothing
        """Free the driver's own resources; all devices must have been destroyed."""
