"""Finds and opens devices, and uses an opened one."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.base.budget import check_shared_room
from vkmnn.base.cache_files import cache_dir
from vkmnn.base.threads import PatientFuture, Workers
from vkmnn.errors import (
    DeviceError,
    DeviceLostError,
    DeviceNotFoundError,
    InvalidInputError,
    ShaderError,
    ValidationLayerError,
    VkmnnError,
)
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceInfo, DeviceType, Priority
from vkmnn.runtime.device_profiles import disguised, load_profile
from vkmnn.runtime.drivers import (
    Driver,
    DriverUnavailableError,
    close_drivers,
    forget_drivers,
    get_driver,
)
from vkmnn.runtime.drivers.base import COMPUTE
from vkmnn.runtime.gate import Gate
from vkmnn.runtime.limit_checker import CheckedDevice
from vkmnn.runtime.memory import Buffer, BufferRange, Image, MemoryKind
from vkmnn.runtime.pipeline import Pipeline, SpecValues, complete_spec, missing
from vkmnn.runtime.pipeline_cache import PipelineCacheFile
from vkmnn.runtime.pipeline_store import PipelineKey, PipelineStore, key_of
from vkmnn.runtime.prune import specialized_spirv
from vkmnn.runtime.recorder import REBUILD_HINT, CommandRecorder
from vkmnn.runtime.selection import select
from vkmnn.runtime.shader import IMAGE_FORMATS
from vkmnn.runtime.warm_up import WarmUp

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from vkmnn.base.mapped_files import MappedFile
    from vkmnn.runtime.drivers.base import DriverDevice
    from vkmnn.runtime.flag_line import FlagLine
    from vkmnn.runtime.shader import Shader

log = logging.getLogger(__name__)

_STAGING_BYTES = 16 << 20
_MAX_COMPILE_THREADS = 16
_EXIT_WAIT_S = 10.0
_NO_SPEC: Mapping[str, int | float | bool] = {}


class Device:
    """An opened device, shared by everyone who opened it with the same arguments.

    All methods may be called from any thread. `timeout_s` bounds every run of a command buffer.
    `gate` counts the calls in progress: `close` waits for them. Code that makes several calls and
    must not be interrupted by `close` holds `gate.visit()`.

    `counts` has the number of operations since it was opened: "allocations", "recordings",
    "submits", the "commands" in them (dispatches, copies and fills), "pipelines", "host_copies" of
    tensors by the host; with flags also the "flags" recorded instead of barriers, and "late_flags",
    runs that were repeated for a wait in vain.

    `trusts_flags`: no dispatch has waited in vain for another by flags so far.
    """

    def __init__(
        self,
        driver_device: DriverDevice,
        info: DeviceInfo,
        open_again: Callable[[], DriverDevice],
        key: _DeviceKey | None = None,
    ) -> None:
        self.driver_device = driver_device
        self._open_again = open_again
        self._key = key
        self.info = info
        self.validation = driver_device.validation
        self.timeout_s = environment.timeout_s()
        self._pipelines = PipelineStore()
        self._lock = threading.RLock()
        self._staging_lock = threading.RLock()
        self._warm_up_lock = threading.Lock()
        self._staging: dict[MemoryKind, Buffer] = {}
        self._process = os.getpid()
        self._closed = False
        self._lost: str | None = None
        self._hung = False
        self.counts: Counter[str] = Counter()
        self.trusts_flags = True
        self.gate = Gate(self._refuse)
        driver_device.lost_callback(self.mark_lost)
        self._cache_file = PipelineCacheFile(cache_dir(), info)
        self._saved_size = 0
        data = self._cache_file.load()
        if data:
            with self.gate.visit():  # lost here, they would be freed by others at once
                driver_device.load_cache(data)
            self._saved_size = len(data)

    def __repr__(self) -> str:
        mode = ", validation" if self.validation else ""
        return f"Device({self.info.name}{mode})"

    @property
    def lost(self) -> str | None:
        """Why the device was lost; None while it works."""
        return self._lost

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that opened the device."""
        return os.getpid() != self._process

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def allocate(self, nbytes: int, kind: MemoryKind) -> Buffer:
        """Allocate a buffer; its content is undefined.

        Raises:
            OutOfDeviceMemoryError: there is not enough memory.
            InvalidInputError: `nbytes` is negative.
        """
        if nbytes < 0:
            raise InvalidInputError(f"cannot allocate {nbytes} bytes")
        with self.gate.visit():
            self.raise_unusable()
            self.counts["allocations"] += 1
            buffer = Buffer(self, nbytes, kind, self.driver_device.allocate(nbytes, kind))
            self.raise_messages()
            return buffer

    def import_file(self, file: MappedFile) -> Buffer | None:
        """Return a read-only buffer on a mapped file; None if the device does not support it."""
        if "file_memory" not in self.info.features:
            return None
        with self.gate.visit():
            self.raise_unusable()
            self.counts["allocations"] += 1
            made = self.driver_device.import_file(file)
            self.raise_messages()
            return None if made is None else Buffer(self, made.nbytes, MemoryKind.WEIGHTS, made)

    def allocate_image(self, width: int, height: int, texel_format: str) -> Image:
        """Allocate a 2-D image; its content is undefined.

        Args:
            width: texels of a row.
            height: number of rows.
            texel_format: "rgba32f" or "rgba16f".

        Raises:
            OutOfDeviceMemoryError: there is not enough memory.
            InvalidInputError: the device has no images, or none of this size or format.
        """
        limit = self.info.limits.max_image_dimension
        if "images" not in self.info.features:
            raise InvalidInputError(
                f"{self.info.name} cannot store data in images with the driver {self.info.driver}",
                hint="keep the data in buffers",
            )
        if texel_format not in IMAGE_FORMATS:
            formats = ", ".join(IMAGE_FORMATS)
            raise InvalidInputError(f"images hold {formats}, not {texel_format}")
        if not (0 < width <= limit and 0 < height <= limit):
            raise InvalidInputError(
                f"an image of {width} x {height} texels; {self.info.name} allows 1 to {limit} "
                "along each axis",
                hint="keep the data in buffers",
            )
        with self.gate.visit():
            self.raise_unusable()
            self.counts["allocations"] += 1
            made = self.driver_device.allocate_image(width, height, texel_format)
            image = Image(self, width, height, texel_format, made)
            self.raise_messages()
            return image

    def supports(self, shader: Shader) -> str | None:
        """Return why the shader cannot run here (missing features, limits), or None if it can."""
        return missing(shader, self.info)

    def pipeline(self, shader: Shader, spec: SpecValues = _NO_SPEC) -> Pipeline:
        """Return the pipeline of a shader with some specialization constants set.

        It is built on first use, and kept according to `PipelineStore`; constants not in `spec`
        keep their defaults.

        Raises:
            ShaderError: the device cannot run the shader, or the driver refuses it.
            InvalidInputError: `spec` does not fit the shader.
        """
        self.raise_unusable()
        values = complete_spec(shader, spec)
        key = key_of(shader, values)
        with self.gate.visit():
            made: Future[Pipeline] = PatientFuture()
            try:
                future = self._pipelines.claim(key, made)
                if future is made:
                    made.set_result(self._build(key, values))
            except BaseException as error:
                self._pipelines.give_up(key, made)
                # Ctrl-C in one thread is not an error for the threads waiting on it.
                made.set_exception(error if isinstance(error, Exception) else _interrupted())
                raise
            return future.result()

    def _build(self, key: PipelineKey, values: SpecValues) -> Pipeline:
        self.raise_unusable()
        shader, alive = key[0], self._pipelines.alive(key)
        if alive is not None:
            return Pipeline(shader, values, alive, self.info.limits)
        reason = missing(shader, self.info, values)
        if reason:
            raise ShaderError(reason, hint="choose a variant that the device supports")
        self.counts["pipelines"] += 1
        made = self.driver_device.create_pipeline(shader, specialized_spirv(shader, values), values)
        self._pipelines.keep(key, made)
        self.raise_messages()
        return Pipeline(shader, values, made, self.info.limits)

    def create_pipelines(
        self,
        wanted: Iterable[tuple[Shader, SpecValues]],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Pipeline]:
        """Build pipelines in parallel and return them in the requested order.

        Args:
            wanted: (shader, specialization constants) pairs.
            progress: called with (done, total) after each, from the calling thread.
        """
        with self.start_pipelines(wanted) as batch:
            return batch.result(progress)

    def start_pipelines(
        self, wanted: Iterable[tuple[Shader, SpecValues]], *, warm_up: bool = False
    ) -> PipelineBatch:
        """Start building pipelines in parallel and return immediately.

        Args:
            wanted: (shader, specialization constants) pairs.
            warm_up: also call `warm_up` on each pipeline as soon as it is built.
        """
        pairs = list(wanted)
        waited_for = sum(
            not self._pipelines.is_built(key_of(shader, complete_spec(shader, spec)))
            for shader, spec in pairs
        )
        threads = min(_MAX_COMPILE_THREADS, os.cpu_count() or 1, waited_for)
        return PipelineBatch(self, pairs, threads, warm_up)

    def warm_up(self, pipelines: Sequence[Pipeline]) -> None:
        """Make a CPU device compile to machine code now, not in the first run.

        Such devices compile on the first dispatch of a pipeline; one with zero workgroups is
        enough. Does nothing on other devices, where pipeline creation compiles.
        """
        if self.info.type is not DeviceType.CPU:
            return
        # One at a time: the driver works on one anyway, and nothing is warmed up twice.
        with self.gate.visit(), self._warm_up_lock, ExitStack() as stack:
            cold = [pipeline for pipeline in pipelines if not pipeline.warm]
            if not cold:
                return
            buffer = stack.enter_context(self.allocate(4096, MemoryKind.DEVICE))
            formats = {name for pipeline in cold for name in pipeline.image_formats if name}
            images: dict[str | None, Buffer] = {
                name: stack.enter_context(self.allocate_image(1, 1, name)) for name in formats
            }
            recorder = self.driver_device.recorder(False)
            for pipeline in cold:
                bound = [images.get(name, buffer) for name in pipeline.image_formats]
                ranges = [BufferRange(item, 0, item.nbytes) for item in bound]
                params = bytes(pipeline.params_size)
                recorder.dispatch(pipeline.driver_pipeline, ranges, params, (0, 1, 1))
                recorder.barrier(COMPUTE, COMPUTE)
            used = [buffer, *images.values()]
            commands = recorder.finish([item.driver_buffer for item in used])
            try:
                commands.submit()
                if not commands.wait(self.timeout_s):
                    reason = f"compiling took more than {self.timeout_s:g} s"
                    self.mark_lost(reason, hung=True)
                    raise DeviceLostError(reason, hint="set VKMNN_TIMEOUT to more seconds")
            finally:
                commands.destroy()
            self.raise_messages()
            for pipeline in cold:
                pipeline.warm = True

    def check_room(self, nbytes: int) -> None:
        """Refuse a plan that exceeds the host's memory, if the device shares it.

        Raises:
            BudgetError: it exceeds the limit.
        """
        if self.info.type is DeviceType.CPU:
            check_shared_room(nbytes, environment.budget().bytes)

    def recorder(
        self, *, timestamps: bool = False, flags: FlagLine | None = None
    ) -> CommandRecorder:
        """Start recording; with `timestamps`, the times of commands can be read after a run.

        With `flags`, dispatches of flagged shaders follow each other without barriers.

        Raises:
            InvalidInputError: the device has no timestamps.
        """
        self.raise_unusable()
        if timestamps and "timestamps" not in self.info.features:
            raise InvalidInputError(f"{self.info.name} has no timestamps")
        self.counts["recordings"] += 1
        return CommandRecorder(self, timestamps=timestamps, flags=flags)

    def upload(self, target: BufferRange, data: NDArray[np.uint8]) -> None:
        """Copy bytes to memory that the host cannot see, through a staging buffer."""
        self.raise_unusable()
        with self.gate.visit(), self._staging_lock:
            staging = self._staging_buffer(MemoryKind.UPLOAD)
            step = _staging_step(target.buffer)
            for start in range(0, target.nbytes, step):
                size = min(step, target.nbytes - start)
                staging.write(0, data[start : start + size])
                self.copy(
                    BufferRange(staging, 0, size),
                    BufferRange(target.buffer, target.offset + start, size),
                )

    def download(self, source: BufferRange) -> NDArray[np.uint8]:
        """Copy bytes from memory that the host cannot see, through a staging buffer."""
        self.raise_unusable()
        data = np.empty(source.nbytes, np.uint8)
        with self.gate.visit(), self._staging_lock:
            staging = self._staging_buffer(MemoryKind.READBACK)
            step = _staging_step(source.buffer)
            for start in range(0, source.nbytes, step):
                size = min(step, source.nbytes - start)
                self.copy(
                    BufferRange(source.buffer, source.offset + start, size),
                    BufferRange(staging, 0, size),
                )
                data[start : start + size] = staging.read(0, size)
        return data

    def _staging_buffer(self, kind: MemoryKind) -> Buffer:
        if kind not in self._staging:
            self._staging[kind] = self.allocate(_STAGING_BYTES, kind)
        return self._staging[kind]

    def copy(self, source: BufferRange, target: BufferRange) -> None:
        """Copy bytes on the device; return once they have arrived."""
        self.copy_all([(source, target)])

    def copy_all(self, pairs: Iterable[tuple[BufferRange, BufferRange]]) -> None:
        """Copy the first range of each pair to the second; return when all copies are done."""
        self.raise_unusable()
        recorder = CommandRecorder(self, timestamps=False, copies_alone=True)
        for source, target in pairs:
            recorder.copy(source, target)
        with recorder.finish() as commands:
            commands.run()

    def trim(self) -> None:
        """Free the staging memory and unused pipelines; they are recreated on demand."""
        with self.gate.visit(), self._staging_lock:
            self.raise_unusable()
            for buffer in self._staging.values():
                buffer.destroy()
            self._staging.clear()
        self._pipelines.clear()

    def wait_idle(self) -> None:
        """Wait until the device is idle."""
        with self.gate.visit():
            self.raise_unusable()
            self.driver_device.wait_idle()
            self.raise_messages()

    def stats(self) -> dict[str, int]:
        """Count the live objects by kind ("buffers", "pipelines", ...) and the "bytes" in use."""
        return self.driver_device.live_objects()

    def save_pipeline_cache(self) -> None:
        """Write the pipeline cache to disk if it has grown."""
        if self._closed or self._lost:
            return
        try:
            data = self.driver_device.cache_data()
        except VkmnnError as error:
            log.warning("pipeline cache not saved: %s", error.message)
            return
        # A driver without a pipeline cache returns just the 32-byte header.
        if len(data) > max(32, self._saved_size):
            self._cache_file.store(data)
            self._saved_size = len(data)

    def close(self) -> None:
        """Free the device and all objects created from it, for all its users. Idempotent.

        Waits up to `timeout_s` for calls in progress in other threads; later calls are
        refused. Neither buffers nor command buffers may be used afterwards.

        Raises:
            InvalidInputError: a call of the same thread uses the device (`close` in a callback).
        """
        if self.inherited:
            return
        if self.gate.is_own:
            raise InvalidInputError(
                f"{self.info.name} cannot be closed inside a call that uses it",
                hint="close it when the call has returned",
            )
        self.end(self.timeout_s)

    def end(self, wait_s: float, *, park: bool = False) -> bool:
        """Close once other threads have finished their calls; return whether the device is gone.

        Args:
            wait_s: maximum wait in seconds; after that the device is left open.
            park: the interpreter is exiting; see `Gate.shut`.
        """
        _unwanted[self] = None  # not before it is gone: an interruption may come first
        _forget(self)
        if not self.gate.shut(wait_s, park=park):
            log.error("%s is still in use: the system will free its objects", self.info.name)
            return False
        with self._lock:
            self.save_pipeline_cache()
            gone = self.discard()
        _unwanted.pop(self, None)
        return gone

    def open_again(self) -> Device:
        """Return another, unshared device like this one; close it with `discard`."""
        return Device(self._open_again(), self.info, self._open_again)

    def successor(self) -> Device:
        """Return the device that replaces this lost one; all callers get the same device."""
        assert self._key is not None
        with _openings.visit():
            return _shared(self._key, self.info, self._open_again, "it was lost")

    def discard(self) -> bool:
        """Free the device without keeping its pipeline cache. Safe to call twice.

        Returns:
            False if it still works and is left to the system, along with its driver.
        """
        global _left_to_system
        with self._lock:
            if self._closed or self.inherited:
                return True
            self._staging.clear()
            self._pipelines.clear()
            gone = self.driver_device.destroy(hung=self._hung)
            _left_to_system |= not gone
            self._closed = True
            return gone

    def disown(self) -> None:
        """Refuse all further work without touching the device, which belongs to another process."""
        self._closed = True

    def mark_lost(self, reason: str, hung: bool = False) -> None:
        """Refuse all further work; `open_device` will reopen the device."""
        if self._lost is None:
            log.error("%s is lost: %s", self.info.name, reason)
            self._lost = reason
            self._hung = hung
            if hung:
                self.driver_device.stop_waiting()
            _forget(self)
            _unwanted[self] = None

    def retire(self) -> None:
        """Free a lost device once sessions have released everything on it; or finish `close`.

        Waits first for work that may still be running on it (`mark_lost` with `hung`).
        """
        with self._lock:
            if self.inherited or not self.gate.empty:
                return
            if not self.gate.is_shut:
                self._staging.clear()
                live = self.driver_device.live_objects()
                if live.keys() & {"buffers", "command_buffers"}:
                    return
                if not self.gate.shut(0):  # another thread has entered meanwhile
                    return
            self.discard()
        _unwanted.pop(self, None)

    def raise_unusable(self) -> None:
        """Raise if the device is closed or lost."""
        if os.getpid() == self._process and self._lost is None and not self._closed:
            return  # checked several times per token
        if self.inherited:
            raise InvalidInputError(
                "the device belongs to the parent process",
                hint="open devices and sessions after the fork, or use the start method 'spawn'",
            )
        if self._lost is not None:
            raise DeviceLostError(f"{self.info.name} is lost: {self._lost}", hint=REBUILD_HINT)
        if self._closed:
            raise _closed()

    def _refuse(self) -> None:
        """Raise the error for calls to a closed device."""
        self.raise_unusable()
        raise _closed()

    def raise_messages(self) -> None:
        """Raise any errors that the validation layer has reported since the last call."""
        messages = self.driver_device.messages
        if messages:
            text = "\n".join(messages)
            messages.clear()
            raise ValidationLayerError(text)


def _closed() -> InvalidInputError:
    return InvalidInputError("the device has been closed", hint="open it again")


def _interrupted() -> DeviceError:
    return DeviceError("building a pipeline was interrupted in another thread", hint="try again")


class PipelineBatch:
    """Pipelines being built by other threads; returned by `Device.start_pipelines`.

    Leaving the `with` block waits for builds that have started and skips the rest.
    """

    def __init__(
        self,
        device: Device,
        pairs: Sequence[tuple[Shader, SpecValues]],
        threads: int,
        warm_up: bool,
    ) -> None:
        """Start compiling; without threads, all pipelines exist already."""
        self._device = device
        self._visit = device.gate.visit()
        self._visit.__enter__()
        self._builders = Workers(max(threads, 1), "vkmnn-pipeline")
        self._warm_up: WarmUp | None = None
        self._built: list[Future[Pipeline]] = []
        warm_up = warm_up and device.info.type is DeviceType.CPU
        if not threads:
            found = [self._build(*pair) for pair in pairs]
            if not warm_up or all(pipeline.warm for pipeline in found):
                self._built = [_done(pipeline) for pipeline in found]
                return
        self._built = [self._builders.submit(self._build, *pair) for pair in pairs]
        self._warm_up = WarmUp(device, self._built) if warm_up else None

    def _build(self, shader: Shader, spec: SpecValues) -> Pipeline:
        with self._device.gate.visit(within=True):
            return self._device.pipeline(shader, spec)

    def result(self, progress: Callable[[int, int], None] | None = None) -> list[Pipeline]:
        """Wait for all of them and return them in the requested order.

        Args:
            progress: called with (done, total) after each, from the calling thread.

        Raises:
            ShaderError, InvalidInputError: as `Device.pipeline`.
        """
        for done, future in enumerate(self._built, 1):
            future.result()
            if progress:
                progress(done, len(self._built))
        if self._warm_up:
            self._warm_up.result()
        return [future.result() for future in self._built]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._warm_up:
            self._warm_up.close()
        self._builders.close(cancel=True)
        self._visit.__exit__(None, None, None)


def _staging_step(buffer: Buffer) -> int:
    """Return how many bytes are copied at a time."""
    return _STAGING_BYTES - _STAGING_BYTES % buffer.granule


def _done(pipeline: Pipeline) -> Future[Pipeline]:
    future: Future[Pipeline] = PatientFuture()
    future.set_result(pipeline)
    return future


FLOOR_FEATURES = frozenset(
    f"texel_{name}"
    for name in (
        *("rgba32f", "rgba32i", "rgba32ui", "r32f", "r32i", "r32ui"),
        *("rgba16f", "rgba16i", "rgba16ui", "rgba8", "rgba8_snorm", "rgba8i", "rgba8ui"),
    )
) | {"images"}
"""Supported by every Vulkan 1.1 device (Vulkan specification, "Required Format Support")."""

_DeviceKey = tuple[str, bool, str, frozenset[str], str, str]
_devices: dict[_DeviceKey, Device] = {}
_devices_lock = threading.RLock()
_unwanted: dict[Device, None] = {}  # lost but still in use, or not completely closed
_left_to_system = False  # a device still works: its driver and instance must stay
_openings = Gate(lambda: None)  # threads that reach a driver outside the calls of an open device


def enumerate_devices(driver: str | None = None) -> list[DeviceInfo]:
    """List the devices that can be opened, each once, in the driver's order.

    Args:
        driver: name of the driver, `VKMNN_DRIVER` or "vulkan" if None.

    Returns:
        An empty list if there is no loader or no driver; the reason is logged, not raised.
    """
    try:
        with _openings.visit():
            return _listed(get_driver(driver or environment.driver()))
    except DriverUnavailableError as error:
        log.info("no devices: %s (%s)", error, error.hint)
        return []


def open_device(
    selector: str | int = "auto",
    *,
    driver: str | None = None,
    validation: bool | None = None,
    priority: Priority = "normal",
) -> Device:
    """Open a device, or return it if it is already open.

    Args:
        selector: "auto" (`VKMNN_DEVICE`, or else the best kind: discrete, integrated, virtual,
            other, software), an index of `enumerate_devices`, a part of the name, or a UUID.
        driver: as for `enumerate_devices`.
        validation: whether to run under the validation layer; `VKMNN_VALIDATION` if None.
        priority: before or after the work of other programs, on devices with the feature
            "queue_priority"; each priority is an open device of its own, with its own memory.

    Raises:
        DeviceNotFoundError: no device matches; the message lists the devices and what to install.
        ValidationLayerError: validation is asked for and the layer is not installed.
    """
    if selector == "auto":
        selector = environment.device_selector()
    validate = environment.validation() if validation is None else validation
    disabled = environment.disabled_features()
    name = driver or environment.driver()
    try:
        with _openings.visit():
            return _open(get_driver(name), selector, validate, disabled, priority)
    except DriverUnavailableError as error:
        what = "no Vulkan device" if selector == "auto" else f"no device matches '{selector}'"
        raise DeviceNotFoundError(f"{what}: {error}", hint=error.hint) from error


def _open(
    driver: Driver,
    selector: str | int,
    validate: bool,
    disabled: frozenset[str],
    priority: Priority,
) -> Device:
    info, reason = select(_listed(driver), selector)
    if "all" in disabled:
        disabled = info.features - FLOOR_FEATURES
    unknown = driver.unknown_to_layer() & info.features - disabled if validate else frozenset()
    disabled |= unknown
    if unknown:
        names = ", ".join(sorted(unknown))
        log.info("disabled, as the validation layer is too old: %s", names)
    features = info.features - disabled
    if "queue_priority" not in features:
        priority = "normal"
    left_off = disabled & info.features
    key = (info.uuid, validate, driver.name, left_off, info.device_profile, priority)
    opens = partial(_open_driver, driver, info, validate, disabled, priority)
    opened = dataclasses.replace(info, features=features)
    return _shared(key, opened, opens, reason)


def open_profile(name: str) -> Device:
    """Return an unshared, planning-only device as described by a device profile.

    Raises:
        InvalidInputError: there is no profile of that name.
    """
    from vkmnn.runtime.drivers.profile_driver import ProfileDriver

    driver = ProfileDriver(load_profile(name))
    (info,) = driver.enumerate()
    opens = partial(_open_driver, driver, info, False, frozenset(), "normal")
    key = (info.uuid, False, driver.name, frozenset[str](), name, "normal")
    return Device(opens(), info, opens, key)


def _shared(
    key: _DeviceKey, info: DeviceInfo, opens: Callable[[], DriverDevice], reason: str
) -> Device:
    """Return the open device with this key, opening it if necessary."""
    retire_unwanted()
    with _devices_lock:
        device = _devices.get(key)
        if device is None:
            log.info("using device %d, %s: %s", info.index, info.name, reason)
            if info.device_profile:
                log.warning("%s emulates %s", info.name, info.device_profile)
            device = _devices[key] = Device(opens(), info, opens, key)
            _register_handlers()
        return device


def _open_driver(
    driver: Driver,
    info: DeviceInfo,
    validate: bool,
    disabled: frozenset[str],
    priority: Priority,
) -> DriverDevice:
    # Drivers whose devices have no priorities need not know of them.
    more: dict[str, Priority] = {} if priority == "normal" else {"priority": priority}
    opened = driver.open(info, validation=validate, disabled=disabled, **more)
    if not info.device_profile:
        return opened
    return CheckedDevice(opened, dataclasses.replace(info, features=info.features - disabled))


def _listed(driver: Driver) -> list[DeviceInfo]:
    """List a driver's devices, each once, as seen through the active device profile."""
    found = _unique(driver.enumerate())
    name = environment.device_profile()
    if not name:
        return found
    profile = load_profile(name)
    return [disguised(info, profile) for info in found]


def _unique(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Drop devices that a second driver reports again."""
    found: dict[str, DeviceInfo] = {}
    for device in devices:
        first = found.setdefault(device.uuid, device)
        if first is not device:
            log.info(
                "device %d (%s, %s) left out: it is device %d (%s) again",
                device.index,
                device.name,
                device.driver_name,
                first.index,
                first.driver_name,
            )
    return list(found.values())


def retire_unwanted() -> None:
    """Free the lost devices no longer in use, and those only partly closed."""
    for device in list(_unwanted):
        device.retire()


def _forget(device: Device) -> None:
    with _devices_lock:
        for key in [key for key, known in _devices.items() if known is device]:
            del _devices[key]


_handlers_registered = False


def _register_handlers() -> None:
    global _handlers_registered
    if not _handlers_registered:
        _handlers_registered = True
        atexit.register(_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_disown_all)


def _exit() -> None:
    """Close at exit: daemon threads may finish their current call; others are parked."""
    end = time.monotonic() + _EXIT_WAIT_S
    if _openings.shut(_EXIT_WAIT_S, park=True):
        _close_all(end)


def _close_all(end: float = math.inf) -> None:
    """Close all devices, then their drivers, unless one has to be left to the system.

    The driver's threads still run on a device that works, and the end of an instance waits for
    them.

    Args:
        end: time (`time.monotonic`) up to which to wait for calls in other threads.
    """
    ended = [
        device.end(min(_EXIT_WAIT_S, max(end - time.monotonic(), 0)), park=True)
        for device in dict.fromkeys([*_devices.values(), *_unwanted])
    ]
    if all(ended) and not _left_to_system:
        close_drivers()


def _disown_all() -> None:
    global _devices_lock, _openings, _left_to_system
    _devices_lock = threading.RLock()  # another thread of the parent may hold the old one
    _openings = Gate(lambda: None)
    _left_to_system = False
    for device in [*_devices.values(), *_unwanted]:
        device.disown()
    _devices.clear()
    _unwanted.clear()
    forget_drivers()
