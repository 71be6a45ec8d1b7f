"""Recording of dispatches with derived barriers, and the resulting command buffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from vkmnn.errors import DeviceError, DeviceLostError, InvalidInputError
from vkmnn.runtime.device_info import DeviceType
from vkmnn.runtime.drivers.base import (
    COMPUTE,
    COMPUTE_READ,
    EMPTY_RANGE_BYTES,
    HOST_READ,
    TRANSFER,
    TRANSFER_READ,
    TRANSFER_WRITE,
    WRITES,
    DriverCommands,
)
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.hazards import BufferHazards
from vkmnn.runtime.memory import Buffer, BufferRange, Destroyed, MemoryKind

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from vkmnn.runtime.device_info import Limits
    from vkmnn.runtime.flag_line import FlagLine
    from vkmnn.runtime.opened import OpenDevice
    from vkmnn.runtime.pipeline import Pipeline

_NAMED_LABELS = 8

IMAGE_COPY_ALIGNMENT = 16
"""Alignment of offsets in the buffer: the size of the largest texel."""

REBUILD_HINT = (
    "open the device again and rebuild the session, which sessions made with "
    'on_device_lost="rebuild" do by themselves'
)


class CommandRecorder:
    """Records commands in order; `finish` returns them for replay. See `Device.recorder`.

    Between commands that touch the same bytes, at least one of them writing, a barrier is inserted:
    one global memory barrier with the fewest stages and accesses. Commands without such a
    dependency since the last barrier may overlap on the device. One thread at a time.

    Attributes:
        dispatch_count: dispatches so far.
        barrier_count: barriers so far, those that flags replace included.

    Args:
        device: the device.
        timestamps: whether the times of commands can be read after a run.
        copies_alone: only copies are recorded, which run soon and once.
        flags: counters by which dispatches of flagged shaders follow each other without barriers.
    """

    def __init__(
        self,
        device: OpenDevice,
        *,
        timestamps: bool,
        copies_alone: bool = False,
        flags: FlagLine | None = None,
    ) -> None:
        self.device = device
        self._flags = flags
        self.dispatch_count = 0
        self.barrier_count = 0
        driver = device.driver_device
        self._recorder = driver.copier() if copies_alone else driver.recorder(timestamps)
        self._messages = device.driver_device.messages
        self._timestamps = timestamps
        self._max_groups = device.info.limits.max_workgroup_count
        self._labels: list[str] = []
        self._hazards = _Hazards(device)
        self._used = 0  # scopes since the last barrier
        self._stale = 0  # scopes of writes that no barrier has made visible to writes
        self._unseen = 0  # scopes that no barrier has made visible to transfers
        self._ever = 0  # scopes since the beginning
        self._finished = False
        if timestamps:
            self._recorder.timestamp()

    def dispatch(
        self,
        pipeline: Pipeline,
        bindings: Sequence[BufferRange],
        params: bytes = b"",
        groups: tuple[int, int, int] = (1, 1, 1),
        label: str = "",
    ) -> None:
        """Record one dispatch.

        Args:
            pipeline: the pipeline.
            bindings: one range for each of the shader's bindings, in their order.
            params: the push constants, exactly as many bytes as the shader declares.
            groups: workgroups along x, y, z; with a 0 among them nothing is recorded.
            label: name in timings and errors; the shader's name if empty.

        Raises:
            InvalidInputError: an argument breaks a limit of the device or the shader.
            ValidationLayerError: validation mode reported a fault.
        """
        x, y, z = groups
        if not (x and y and z):
            return
        slots = pipeline.slots
        max_x, max_y, max_z = self._max_groups
        if (
            not 0 < x <= max_x
            or not 0 < y <= max_y
            or not 0 < z <= max_z
            or len(bindings) != len(slots)
            or len(params) != pipeline.params_size
            or self._finished
        ):
            self._refuse(pipeline, bindings, params, groups, label)
        hazards, barriers = self._hazards, self.barrier_count
        hazard = visible_to_writes = False
        read, written = [], []
        # Lengths were compared above; a strict zip would compare them again.
        for bound, (name, reads, writes, alignment, max_bytes, unit, image) in zip(  # noqa: B905
            bindings, slots
        ):
            buffer, start, nbytes = bound.buffer, bound.offset, bound.nbytes
            end = start + nbytes
            if (
                start < 0
                or nbytes < 0
                or end > buffer.nbytes
                or nbytes > max_bytes
                or start % alignment
                or nbytes % unit
                or buffer.is_image is not image
            ):
                self._refuse_range(pipeline, bound, name, label)
            if not nbytes:
                start = buffer.driver_buffer.empty_offset
                end = start + EMPTY_RANGE_BYTES
            state = hazards[buffer]
            if reads:
                if state.written.bounds and state.written.overlaps(start, end):
                    hazard = True
                read.append((state, start, end))
            if writes:
                if state.stale.bounds and state.stale.overlaps(start, end):
                    hazard = visible_to_writes = True
                elif state.last_read == barriers or (
                    state.read.bounds and state.read.overlaps(start, end)
                ):
                    hazard = True
                written.append((state, start, end))
        flags = self._flags
        if flags is not None:
            bindings = self._flagged(flags, pipeline, bindings, groups, hazard)
            barriers = self.barrier_count
        elif hazard:
            # After a transfer, which is rare, all hazards are settled at once.
            everything = visible_to_writes or self._used & TRANSFER
            self._barrier(COMPUTE if everything else COMPUTE_READ)
            barriers += 1
        for state, start, end in read:
            if state.constant:
                state.last_read = barriers
            else:
                state.note_read(start, end, barriers)
        for state, start, end in written:
            state.note_write(start, end)
        self._used |= pipeline.scope
        self._stale |= pipeline.scope & WRITES
        self._recorder.dispatch(pipeline.driver_pipeline, bindings, params, groups)
        self.dispatch_count += 1
        self._labels.append(label or pipeline.shader.name)
        if self._timestamps or self._messages:
            self._done()

    def _flagged(
        self,
        flags: FlagLine,
        pipeline: Pipeline,
        bindings: Sequence[BufferRange],
        groups: tuple[int, int, int],
        hazard: bool,
    ) -> Sequence[BufferRange]:
        """Order a dispatch after the level before if it has to be; return all its bindings."""
        counted = pipeline.shader.flagged is not None
        if hazard and counted and flags.can_pass:
            self._pass_flag(flags)
        elif hazard or (flags.waits and not counted):
            # Hazards with what flags have ordered are forgotten: this dispatch waits for no flag.
            self._barrier(COMPUTE)
        if counted:
            return (*bindings, *flags.join(groups))
        flags.mix()
        return bindings

    def _pass_flag(self, flags: FlagLine) -> None:
        """Begin a level that waits for the counter of the one before, not at a barrier.

        What has been used stays so, for the next barrier.
        """
        flags.wait()
        self._unseen |= self._used
        self.barrier_count += 1
        for state in self._hazards.values():
            if not state.constant:
                state.pass_barrier(visible_to_writes=True)

    def _end_flags(self, flags: FlagLine) -> None:
        counters = flags.counters()
        if counters is not None:
            self.fill(counters)
        self.device.counts["flags"] += flags.count
        for buffer in (flags.buffer, flags.report.buffer):
            _ = self._hazards[buffer]  # the commands keep it

    def wait_for_all(self) -> None:
        """Insert a full barrier between everything recorded so far and what follows."""
        if self._used:
            self._barrier(COMPUTE)

    def copy(self, src: BufferRange, dst: BufferRange) -> None:
        """Record a copy between ranges of equal size that do not overlap.

        Raises:
            InvalidInputError: the ranges do not fit each other or their buffers.
        """
        if src.nbytes != dst.nbytes:
            raise InvalidInputError(f"cannot copy {src.nbytes} bytes to {dst.nbytes} bytes")
        if (
            src.buffer is dst.buffer
            and src.offset < dst.offset + dst.nbytes
            and dst.offset < src.offset + src.nbytes
            and src.nbytes
        ):
            raise InvalidInputError(
                f"the source of a copy (offset {src.offset}) overlaps its target "
                f"(offset {dst.offset}, {dst.nbytes} bytes)"
            )
        _check_rows(src, dst)
        self._transfer(((src, False), (dst, True)))
        if src.nbytes:
            self._recorder.copy(src, dst)
            self._labels.append("copy")
            self._done()

    def fill(self, dst: BufferRange, value: int = 0) -> None:
        """Record the filling of a range with a 32-bit word (little-endian).

        Raises:
            InvalidInputError: offset or size is not a multiple of 4, or the range does not fit.
        """
        if dst.offset % 4 or dst.nbytes % 4:
            raise InvalidInputError(
                f"offset {dst.offset} and size {dst.nbytes} of a fill must be multiples of 4"
            )
        if dst.buffer.is_image:
            raise InvalidInputError("images cannot be filled", hint="write them, or copy to them")
        self._transfer(((dst, True),))
        if dst.nbytes:
            self._recorder.fill(dst, value)
            self._labels.append("fill")
            self._done()

    def finish(self) -> CommandBuffer:
        """End recording.

        Writes become visible to the host and to command buffers submitted later.
        """
        if self._finished:
            raise InvalidInputError("the recorder has been finished already")
        if self._flags is not None:
            self._end_flags(self._flags)
        self._finished = True
        if self._ever | self._used:
            self._recorder.barrier(self._ever | self._used, COMPUTE | TRANSFER | HOST_READ)
        commands = self._recorder.finish([buffer.driver_buffer for buffer in self._hazards])
        self.device.raise_messages()
        return CommandBuffer(
            self.device, commands, tuple(self._hazards), self._labels, self._timestamps
        )

    def _transfer(self, ranges: tuple[tuple[BufferRange, bool], ...]) -> None:
        if self._finished:
            raise InvalidInputError("the recorder has been finished already")
        hazard = bool(self._unseen)
        scope = 0
        touched = []
        for bound, writes in ranges:
            start, end = bound.offset, bound.offset + bound.nbytes
            if start < 0 or bound.nbytes < 0 or end > bound.buffer.nbytes:
                raise InvalidInputError(
                    f"bytes {start} to {end} are outside a buffer of {bound.buffer.nbytes} bytes"
                )
            state = self._hazards[bound.buffer]
            if not bound.nbytes:
                return
            scope |= TRANSFER_WRITE if writes else TRANSFER_READ
            hazard |= state.written.overlaps(start, end)
            if writes:
                hazard |= state.stale.overlaps(start, end)
                hazard |= state.is_read(start, end, self.barrier_count)
            touched.append((state, start, end, writes))
        if hazard:
            self._barrier(COMPUTE | TRANSFER)
        if self._flags is not None:
            self._flags.mix()
        for state, start, end, writes in touched:
            if writes:
                state.note_write(start, end)
            else:
                state.note_read(start, end, self.barrier_count)
        self._used |= scope
        self._stale |= scope & WRITES

    def _barrier(self, dst: int) -> None:
        """Insert a barrier between everything so far and what follows in scope `dst`."""
        src = self._used
        visible_to_writes = bool(dst & WRITES)
        if visible_to_writes:
            src |= self._stale
            self._stale = 0
        if dst & TRANSFER:
            src |= self._unseen
            self._unseen = 0
        else:
            self._unseen |= src
        self._recorder.barrier(src, dst)
        self.barrier_count += 1
        if self._flags is not None:
            self._flags.close()
        self._ever |= self._used
        self._used = 0
        for state in self._hazards.values():
            if not state.constant:
                state.pass_barrier(visible_to_writes)

    def _done(self) -> None:
        if self._timestamps:
            self._recorder.timestamp()
        self.device.raise_messages()

    def _refuse(
        self,
        pipeline: Pipeline,
        bindings: Sequence[BufferRange],
        params: bytes,
        groups: tuple[int, int, int],
        label: str,
    ) -> NoReturn:
        shader = pipeline.shader
        hint = None
        if self._finished:
            message = "the recorder has been finished already"
        elif len(bindings) != len(pipeline.slots):
            names = ", ".join(slot.name for slot in pipeline.slots)
            message = f"{shader.name} binds {len(pipeline.slots)} ranges, not {len(bindings)}"
            hint = f"its bindings are: {names}"
        elif len(params) != pipeline.params_size:
            message = f"{shader.name} takes {pipeline.params_size} bytes of parameters"
            message += f", not {len(params)}"
        else:
            message = f"{groups} workgroups break the limit {self._max_groups}"
            hint = "fold the grid with linear_groups"
        raise InvalidInputError(message, op=label or shader.name, hint=hint)

    def _refuse_range(
        self, pipeline: Pipeline, bound: BufferRange, name: str, label: str
    ) -> NoReturn:
        slot = next(slot for slot in pipeline.slots if slot.name == name)
        where = f"binding '{name}' of {pipeline.shader.name}: "
        hint = None
        if bound.buffer.is_image is not slot.image:
            what = f"it takes {'an image' if slot.image else 'a buffer'}, not {bound.buffer!r}"
        elif (
            bound.offset < 0
            or bound.nbytes < 0
            or bound.offset + bound.nbytes > bound.buffer.nbytes
        ):
            what = f"bytes {bound.offset} to {bound.offset + bound.nbytes} are outside a buffer of "
            what += f"{bound.buffer.nbytes} bytes"
        elif bound.offset and self.device.info.limits.whole_buffers:
            what = f"the driver binds whole buffers, not what begins at offset {bound.offset}"
            hint = "give the range a buffer of its own"
        elif bound.offset % slot.alignment:
            what = f"offset {bound.offset} is not a multiple of {slot.alignment}"
        elif bound.nbytes > slot.max_bytes:
            what = f"{bound.nbytes} bytes exceed the device's limit of {slot.max_bytes} bytes"
            hint = "split the tensor"
        else:
            what = f"{bound.nbytes} bytes are not a whole number of texels of {slot.unit} bytes"
        raise InvalidInputError(where + what, op=label or pipeline.shader.name, hint=hint)


class _Hazards(dict[Buffer, BufferHazards]):
    """Hazards by buffer; a buffer is tracked from its first use on."""

    def __init__(self, device: OpenDevice) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, buffer: Buffer) -> BufferHazards:
        if buffer.device is not self._device:
            raise InvalidInputError("the buffer belongs to another device")
        if buffer.destroyed:
            raise InvalidInputError("the buffer has been destroyed")
        constant = buffer.kind in (MemoryKind.WEIGHTS, MemoryKind.UPLOAD)
        state = self[buffer] = BufferHazards(constant=constant)
        return state


def _check_rows(src: BufferRange, dst: BufferRange) -> None:
    """Refuse copies between images, and copies of parts of an image's rows."""
    if src.buffer.is_image and dst.buffer.is_image:
        raise InvalidInputError("cannot copy between images", hint="copy through a buffer")
    for bound, other in ((src, dst), (dst, src)):
        row = bound.buffer.granule
        if bound.offset % row or bound.nbytes % row:
            raise InvalidInputError(
                f"bytes {bound.offset} to {bound.offset + bound.nbytes} are not whole rows of "
                f"{row} bytes"
            )
        if bound.buffer.is_image and other.offset % IMAGE_COPY_ALIGNMENT:
            raise InvalidInputError(
                f"offset {other.offset} of a copy to or from an image is not a multiple "
                f"of {IMAGE_COPY_ALIGNMENT}"
            )


class CommandBuffer:
    """Recorded commands for any number of runs. See `CommandRecorder.finish`.

    It keeps its buffers and pipelines alive. Freed by `destroy`, at the end of a `with` block, or
    with its last reference. Threads may share it: runs exclude each other. `marks_ns` are times of
    the last `run`, by the clock of `time.perf_counter_ns`: before the submission, after it, after
    the wait. `inside`: callers are already within the device's gate. `in_flight`: the end of the
    last run has not been seen.
    """

    def __init__(
        self,
        device: OpenDevice,
        commands: DriverCommands,
        buffers: tuple[Buffer, ...],
        labels: list[str],
        timestamps: bool,
    ) -> None:
        self.device = device
        self.labels = tuple(labels)
        self._count = len(labels)
        self._commands: DriverCommands | None = commands
        self._buffers = buffers
        self._incoherent: tuple[DriverBuffer, ...] = tuple(
            buffer.driver_buffer
            for buffer in buffers
            if buffer.host is not None and not buffer.driver_buffer.coherent
        )
        self._messages = device.driver_device.messages
        self._timestamps = timestamps
        self._alive = -1  # the count of `Destroyed` when all buffers were alive
        self.in_flight = False
        self._has_run = False
        self.marks_ns = (0, 0, 0)
        self.inside = False
        self._lock = threading.RLock()

    def run(self, timeout_s: float | None = None) -> None:
        """Submit and wait; arguments and errors as for `wait`."""
        with self.device.gate.visit():
            self.run_inside(timeout_s)

    def run_inside(self, timeout_s: float | None = None) -> None:
        """Like `run`, for a caller that is already inside the device's gate."""
        self.device.raise_unusable()  # a forked child may see the lock held for ever
        with self._lock:
            if self.in_flight:
                self._wait(None)
            start = time.perf_counter_ns()
            self._submit()
            submitted = time.perf_counter_ns()
            self._wait(timeout_s)
            self.marks_ns = start, submitted, time.perf_counter_ns()

    def settle(self) -> None:
        """Wait for a run whose end was not seen because of an exception (Ctrl-C, say).

        Raises:
            DeviceLostError: as `wait`.
        """
        if self.in_flight:
            self.wait()

    def submit(self) -> None:
        """Submit the commands to the device and return.

        Raises:
            InvalidInputError: they are in flight already, or one of their buffers is destroyed.
            DeviceLostError: the device is lost.
        """
        if (
            self.inside
        ):  # in this case the caller has checked that the device belongs to its process
            with self._lock:
                self._submit()
            return
        self.device.raise_unusable()  # a forked child may see the lock held for ever
        with self.device.gate.visit(), self._lock:
            self._submit()

    def _submit(self) -> None:
        commands = self._commands
        if commands is None:
            raise _destroyed()
        self.device.raise_unusable()
        if self.in_flight:
            raise InvalidInputError("the command buffer is in flight", hint="call wait() first")
        if self._alive != Destroyed.count:
            self._check_alive()
        for incoherent in self._incoherent:
            incoherent.flush()
        self.in_flight = True  # they may be, even if Ctrl-C interrupts `submit`
        counts = self.device.counts
        counts["submits"] += 1
        counts["commands"] += self._count
        try:
            commands.submit()
        except DeviceLostError as error:
            raise self._lost(error.message) from error
        except DeviceError:
            self.in_flight = False
            raise
        if self._messages:
            self.device.raise_messages()

    def _check_alive(self) -> None:
        destroyed = Destroyed.count  # before the check, so that none is missed
        for buffer in self._buffers:
            if buffer.destroyed:
                raise InvalidInputError("a buffer that the commands use has been destroyed")
        self._alive = destroyed

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the commands are done; returns at once when they are not in flight.

        Args:
            timeout_s: seconds to wait at most; `Device.timeout_s` if None.

        Raises:
            DeviceLostError: the device was lost, or did not finish in time.
        """
        self.device.raise_unusable()
        with self._lock if self.inside else self.device.gate.visit(), self._lock:
            self._wait(timeout_s)

    def _wait(self, timeout_s: float | None) -> None:
        commands = self._commands
        if commands is None:
            raise _destroyed()
        self.device.raise_unusable()
        if not self.in_flight:
            return
        limit = self.device.timeout_s if timeout_s is None else timeout_s
        try:
            done = commands.wait(limit)
        except DeviceLostError as error:
            raise self._lost(error.message) from error
        if not done:
            reason = f"{self.device.info.name} did not finish within {limit:g} s"
            self.device.mark_lost(reason, hung=True)
            # Mesa's software device answers no queries before its work is done.
            raise self._lost(reason, ask=self.device.info.type is not DeviceType.CPU)
        self.in_flight = False
        self._has_run = True
        for incoherent in self._incoherent:
            incoherent.invalidate()
        if self._messages:
            self.device.raise_messages()

    def timings(self) -> list[tuple[str, float]]:
        """Return (label, microseconds) of every command of the last run, in order.

        The time of a command runs from the end of the one before to its own end, so the sum is
        the time of the whole; it includes the wait at barriers.

        Raises:
            InvalidInputError: not recorded with timestamps, or not run yet.
        """
        if not self._timestamps or not self._has_run:
            raise InvalidInputError(
                "there are no timings",
                hint="record with Device.recorder(timestamps=True) and run the commands first",
            )
        if self._commands is None:
            raise _destroyed()
        self.device.raise_unusable()
        times = self._commands.timestamps_ns()
        return [
            (label, ((after or 0.0) - (before or 0.0)) / 1000)
            for label, before, after in zip(self.labels, times[:-1], times[1:], strict=True)
        ]

    def destroy(self) -> None:
        """Free the commands, waiting for them first. Safe to call twice."""
        if self.device.inherited:
            return
        with self._lock:
            commands, self._commands = self._commands, None
            if commands is not None:
                commands.destroy()

    def _lost(self, reason: str, *, ask: bool = True) -> DeviceLostError:
        """Return an error that names the running dispatch, if the device can be queried."""
        last = None
        if ask and self._timestamps and self._commands is not None:
            last = self._first_unfinished(self._commands)
        labels = list(self.labels[:_NAMED_LABELS])
        if self._count > _NAMED_LABELS:
            labels[_NAMED_LABELS - 1 :] = ["...", self.labels[-1]]
        running = f"'{last}'" if last else f"one of: {', '.join(labels)}"
        return DeviceLostError(
            f"{reason}; it was running {running}",
            op=last,
            hint=f"{REBUILD_HINT}; VKMNN_TIMEOUT sets the time that a run may take",
        )

    def _first_unfinished(self, commands: DriverCommands) -> str | None:
        try:
            times = commands.timestamps_ns()
        except DeviceError:
            return None
        done = sum(time is not None for time in times)
        return self.labels[done - 1] if 0 < done <= self._count else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.destroy()


def _destroyed() -> InvalidInputError:
    return InvalidInputError("the command buffer has been destroyed")


def linear_groups(count: int, local: int, limits: Limits) -> tuple[int, int, int]:
    """Fold a grid of `count` invocations, `local` a workgroup, into x and y.

    A kernel computes its index as `gl_GlobalInvocationID.x + gl_GlobalInvocationID.y *
    gl_NumWorkGroups.x * gl_WorkGroupSize.x` (local size 1 along y) and must return if that is not
    below `count`.

    Raises:
        InvalidInputError: `count` does not fit the device's limits.
    """
    groups = -(-count // local)
    max_x, max_y, _max_z = limits.max_workgroup_count
    if groups <= max_x:
        return groups, 1, 1
    rows = -(-groups // max_x)
    if rows > max_y:
        raise InvalidInputError(
            f"{count} invocations exceed what the device can dispatch at once",
            hint="let every invocation do more, or split the dispatch",
        )
    # Rows of nearly equal length leave the fewest idle workgroups.
    return -(-groups // rows), rows, 1
