"""A segment of the plan as one recorded command buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from vkmnn.core.backend import HostCall, MemoryUse, Segment, Timing
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.encoder import CommandBuffer
from vkmnn.runtime.memory import BufferRange
from vkmnn.vulkan.checks import IndexRange, Status
from vkmnn.vulkan.memory import PlanMemory
from vkmnn.vulkan.storage import element_bytes, read_view, stored_dtype, to_storage, write_view


class VulkanSegment(Segment):
    """Writes inputs, submits the command buffer, reads outputs.

    Args:
        command: recorded dispatches, or None when every op of the segment is a view.
        uploads: tensors to write first, and where.
        downloads: tensors to read afterwards, and where.
        memory: the plan's memory, shared by its segments and closed with them.
        ranges: which values the uploaded index tensors may hold, by name.
        status: where kernels report failed checks; None when they make none.
        steps: op, kernel and who chose it, of every recorded command; None without timestamps.
    """

    def __init__(
        self,
        command: CommandBuffer | None,
        uploads: Sequence[tuple[Tensor, BufferRange]],
        downloads: Sequence[tuple[Tensor, BufferRange]],
        memory: PlanMemory,
        ranges: Mapping[str, Sequence[IndexRange]],
        status: Status | None = None,
        steps: Sequence[tuple[str, str, str]] | None = None,
    ) -> None:
        self._steps = steps
        self._memory = memory
        self._ranges = ranges
        self._status = status
        self._command = command
        self._uploads = [(tensor, place, _view(tensor, place)) for tensor, place in uploads]
        self._downloads = [(tensor, place, _view(tensor, place)) for tensor, place in downloads]

    def run(self, host: dict[str, Array]) -> None:
        """Run the segment on the arrays in `host` and add what it produces for the host."""
        if self._command is not None:
            self._command.settle()  # an interrupted run may still read its inputs
        for tensor, place, view in self._uploads:
            array = host[tensor.name]
            for allowed in self._ranges.get(tensor.name, ()):
                allowed.check(array, tensor.name)
            if view is not None:
                write_view(view, array, tensor.name)
            elif array.size:
                place.buffer.write(
                    place.offset, np.ascontiguousarray(to_storage(array, tensor.name))
                )
        self.replay()
        for tensor, place, view in self._downloads:
            if view is None:
                raw = place.buffer.read(place.offset, _nbytes(tensor))
                view = raw.view(stored_dtype(tensor)).reshape(tensor.shape)
            host[tensor.name] = read_view(view, tensor.dtype)

    def replay(self) -> None:
        """Submit the recorded commands and wait, without touching inputs or outputs.

        Raises:
            InvalidInputError: a kernel found a value that it cannot compute with.
        """
        if self._command is not None:
            if self._status is not None:
                self._status.reset()
            self._command.run_inside()
            start, _, end = self._command.marks_ns
            self.busy_us = (end - start) / 1000
            if self._status is not None:
                self._status.raise_failed()

    def timings(self) -> list[Timing]:
        """Return the device's time of every dispatch and copy of the last run.

        The clocks of device and host are not compared: the last step is said to have ended when
        the wait for it did. Between the steps, the times are the device's.
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
        """Return when the host submitted and waited in the last run."""
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
        self._uploads.clear()
        self._downloads.clear()
        self._memory.close()


def _nbytes(tensor: Tensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * element_bytes(tensor)


def _view(tensor: Tensor, place: BufferRange) -> Array | None:
    """Return the tensor's bytes as an array on mapped memory, or None when they are not mapped."""
    host = place.buffer.coherent_host
    if host is None:
        return None
    raw = host[place.offset : place.offset + _nbytes(tensor)]
    view: Array = raw.view(stored_dtype(tensor)).reshape(tensor.shape)
    return view
