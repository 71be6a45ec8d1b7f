"""A segment of the plan as one recorded command buffer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Protocol

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.backend import HostCall, MemoryUse, Segment, Timing
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.memory import Buffer, BufferRange
from vkmnn.runtime.recorder import CommandBuffer
from vkmnn.vulkan.checks import IndexRange, Status
from vkmnn.vulkan.flags import LateReport
from vkmnn.vulkan.overflow import Reports
from vkmnn.vulkan.plan.memory import PlanMemory
from vkmnn.vulkan.storage import element_bytes, read_view, stored_dtype, to_storage, write_view


class Bindable(Protocol):
    """Records a segment again for other tensors."""

    @property
    def uploads(self) -> Sequence[Tensor]: ...

    @property
    def downloads(self) -> Sequence[Tensor]: ...

    def bound(self, places: Mapping[str, BufferRange]) -> VulkanSegment | None: ...


@dataclass(frozen=True, slots=True)
class Edges:
    """Exchange of a segment with the host.

    Attributes:
        uploads: tensors to write first, and their places.
        downloads: tensors to read afterwards, and their places.
        ranges: valid ranges of the uploaded index tensors, by name.
        status: memory for reports of failed checks; None without checks.
        reports: memory for reports of float16 overflow; None if it is not checked.
        late: memory for reports of waits by flags; None where there are none.
    """

    uploads: Sequence[tuple[Tensor, BufferRange]]
    downloads: Sequence[tuple[Tensor, BufferRange]]
    ranges: Mapping[str, Sequence[IndexRange]]
    status: Status | None
    reports: Reports | None = None
    late: LateReport | None = None


@dataclass(frozen=True, slots=True)
class Glance:
    """Access of the host to index tensors in device-only memory.

    Attributes:
        command: the recorded copies; recording takes NVIDIA's driver half a millisecond.
        seen: the copies, by name.
    """

    command: CommandBuffer
    seen: Mapping[str, BufferRange]


class VulkanSegment(Segment):
    """Writes inputs, submits the command buffer, reads outputs.

    Args:
        command: recorded dispatches, or None if every op of the segment is a view.
        edges: exchange with the host.
        memory: the plan's memory, shared by its segments and closed with them.
        steps: op, kernel and who chose it, for every recorded command; None without timestamps.
        again: records the segment again; None for a segment that was recorded again.
        owned: additional memory of a segment that was recorded again; the plan's memory stays open
            with it.
        glance: copies index tensors for the host, if it cannot read them.
        record: records the commands, if every run records them again.
    """

    takes_device_tensors = True

    def __init__(
        self,
        command: CommandBuffer | None,
        edges: Edges,
        memory: PlanMemory,
        steps: Sequence[tuple[str, str, str]] | None = None,
        again: Bindable | None = None,
        owned: Sequence[Buffer] = (),
        glance: Glance | None = None,
        record: Callable[[], CommandBuffer | None] | None = None,
    ) -> None:
        self._record = record
        self._steps = steps
        self._memory = memory
        self._again = again
        self._owned = list(owned)
        self._glance = glance
        self._ranges = edges.ranges
        self._status = edges.status
        self._reports = edges.reports
        self._late = edges.late
        self._command = command
        for each in (command, None if glance is None else glance.command):
            if each is not None:
                each.inside = True  # sessions visit the gate
        self._uploads = [(tensor, place, _view(tensor, place)) for tensor, place in edges.uploads]
        self._downloads = [(tensor, at, _view(tensor, at)) for tensor, at in edges.downloads]
        self._written, self._read_back = self._uploads, self._downloads

    def forget_arrays(self) -> bool:
        """Forget the arrays of constants: they are on the device."""
        if self._record is not None:  # later runs record again
            return False
        self._again = None
        self._memory.forget_arrays()
        return True

    def run(self, host: dict[str, Array]) -> None:
        """Run the segment on the arrays in `host` and add its results for the host."""
        self._write(host)
        self._record_anew()
        self._replay()
        self._read(host)

    def begin(self, host: dict[str, Array]) -> None:
        """Write the segment's inputs from `host`, submit, and return."""
        command = self._command
        if self._written:
            self._write(host)
        elif command is not None and command.in_flight:
            command.settle()
        self._record_anew()
        command = self._command
        if self._status is not None:
            self._status.reset()
        if command is not None:
            command.submit()

    def _record_anew(self) -> None:
        """Record the commands for this run, unless they are replayed."""
        if self._record is None:
            return
        former, self._command = self._command, self._record()
        if self._command is not None:
            self._command.inside = True
        if former is not None:
            former.settle()
            former.destroy()

    def end(self, host: dict[str, Array] | None) -> None:
        """Wait, and add the segment's results to `host`, if given.

        Raises:
            InvalidInputError: a kernel reported an invalid value.
            LateFlagError: a wait by flags had no success.
        """
        if self._command is not None:
            self._command.wait()
        if self._late is not None:
            self._late.look()  # first: the results are void
        if self._status is not None:
            self._status.raise_failed()
        if self._reports is not None:
            self._reports.look()
        if host is not None:
            self._read(host)

    def bound(
        self,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
        resident: Collection[str] = (),
    ) -> Segment | None:
        """Return the segment on other places; see `Segment`."""
        again = self._again
        if again is None or self._steps is not None:
            return None
        places = {}
        for tensors, given in ((again.uploads, inputs), (again.downloads, outputs)):
            for tensor in tensors:
                device = tensor.name in given and self._memory.place_on_device(given[tensor.name])
                if not device:
                    return None
                places[tensor.name] = device
        segment = again.bound(places)
        if segment is not None:
            segment.leave(resident)
        return segment

    def leave(self, resident: Collection[str]) -> None:
        """Exclude these tensors from later exchanges with the host."""
        self._written = [item for item in self._uploads if item[0].name not in resident]
        self._read_back = [item for item in self._downloads if item[0].name not in resident]

    def _write(self, host: Mapping[str, Array | DeviceTensor]) -> None:
        if self._command is not None:
            self._command.settle()  # an interrupted run may still read its inputs
        for tensor, place, view in self._written:
            given = host[tensor.name]
            for allowed in self._ranges.get(tensor.name, ()):
                allowed.check(as_array(given), tensor.name)
            if isinstance(given, DeviceTensor):
                if self._memory.copy_on_device(given, place, view):
                    continue
                given = given.numpy()
            self._memory.count_host_copy()
            if view is not None:
                write_view(view, given, tensor.name)
            elif given.size:
                place.buffer.write(
                    place.offset, np.ascontiguousarray(to_storage(given, tensor.name))
                )

    def _read(self, host: dict[str, Array]) -> None:
        for tensor, place, view in self._read_back:
            self._memory.count_host_copy()
            if view is None:
                raw = place.buffer.read(place.offset, _nbytes(tensor))
                view = raw.view(stored_dtype(tensor)).reshape(tensor.shape)
            host[tensor.name] = read_view(view, tensor.dtype)

    def replay(self) -> None:
        """Submit the recorded commands and wait, without touching inputs or outputs.

        Raises:
            InvalidInputError: a kernel reported an invalid value, or an index is
                outside its range.
        """
        if self._command is not None:
            self._command.settle()
        self._record_anew()
        if self._glance is not None:
            self._glance.command.run_inside()
        for tensor, place, view in self._uploads:
            allowed = self._ranges.get(tensor.name, ())
            if allowed and view is None:
                at = self._glance.seen[tensor.name] if self._glance is not None else place
                view = at.buffer.read(at.offset, _nbytes(tensor)).view(stored_dtype(tensor))
            for each in allowed:
                assert view is not None
                each.check(view, tensor.name)
        self._replay()

    def _replay(self) -> None:
        if self._command is not None:
            if self._status is not None:
                self._status.reset()
            self._command.run_inside()
            start, _, end = self._command.marks_ns
            self.busy_us = (end - start) / 1000
            if self._late is not None:
                self._late.look()
            if self._status is not None:
                self._status.raise_failed()
            if self._reports is not None:
                self._reports.look()

    def overflowed(self) -> Collection[str]:
        """Return the ops that have reported float16 overflow."""
        return () if self._reports is None else self._reports.seen

    def timings(self) -> list[Timing]:
        """Return the device's time of every dispatch and copy of the last run.

        The clocks of device and host are not compared: the last step is assumed to end when the
        wait for it ends. Times between steps are the device's.
        """
        if self._command is None or self._steps is None:
            return []
        times = [microseconds for _, microseconds in self._command.timings()]
        ends = accumulate(times, initial=self._command.marks_ns[-1] / 1000 - sum(times))
        return [
            Timing(op, kernel, microseconds, choice, start)
            for (op, kernel, choice), microseconds, start in zip(
                self._steps, times, ends, strict=False
            )
        ]

    def calls(self) -> list[HostCall]:
        """Return the times at which the host submitted and waited in the last run."""
        if self._command is None:
            return []
        return [
            HostCall(name, start / 1000, (end - start) / 1000)
            for name, (start, end) in zip(
                ("submit", "wait"), pairwise(self._command.marks_ns), strict=True
            )
        ]

    def memory(self) -> MemoryUse:
        """Return the memory of the plan, which its segments share."""
        return self._memory.use()

    def close(self) -> None:
        """Free the command buffer and the plan's memory."""
        if self._command is not None:
            self._command.destroy()
            self._command = None
        if self._glance is not None:
            self._glance.command.destroy()
            self._glance = None
        for items in (self._uploads, self._downloads, self._written, self._read_back):
            items.clear()
        for buffer in self._owned:
            buffer.destroy()
        if self._again is not None:
            self._memory.close()
            self._again = None
        else:
            self._owned.clear()


def _nbytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * element_bytes(tensor)


def _view(tensor: Tensor, place: BufferRange) -> Array | None:
    """Return the tensor's bytes as an array on mapped memory, or None if they are not mapped."""
    host = place.buffer.coherent_host
    if host is None:
        return None
    raw = host[place.offset : place.offset + _nbytes(tensor)]
    view: Array = raw.view(stored_dtype(tensor)).reshape(tensor.shape)
    return view
