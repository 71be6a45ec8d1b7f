"""Records the dispatches of a plan into command buffers, one per segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.runtime.device import Device
from vkmnn.runtime.memory import Buffer, BufferRange, MemoryKind
from vkmnn.runtime.pipeline import Pipeline
from vkmnn.runtime.recorder import CommandBuffer
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.checks import IndexRange, Status
from vkmnn.vulkan.flags import line_for
from vkmnn.vulkan.overflow import Reporting, Reports
from vkmnn.vulkan.plan.memory import PlanMemory
from vkmnn.vulkan.plan.segment import Edges, Glance, VulkanSegment
from vkmnn.vulkan.recording import Dispatch, Recording, Spec, SpecializedShader
from vkmnn.vulkan.storage import VECTOR_BYTES, storage_bytes

if TYPE_CHECKING:
    from vkmnn.runtime.flag_line import FlagLine


def pipelines_used(
    recording: Recording, reporting: Reporting | None = None
) -> dict[SpecializedShader, tuple[Shader, Spec]]:
    """Return the pipelines of the dispatches, each once."""
    if reporting is None:
        return {d.pipeline: (d.shader, d.spec) for d in recording.dispatches}
    return {d.pipeline: (reporting.shader(d.shader), d.spec) for d in recording.dispatches}


@dataclass(frozen=True, slots=True)
class Rebinder:
    """A recorded segment that can be recorded again for other tensors.

    Attributes:
        recorder: the plan's recorder.
        first: the number of its first dispatch.
        end: the number after its last.
        uploads: tensors that the host provides.
        downloads: tensors that the host reads.
    """

    recorder: PlanRecorder
    first: int
    end: int
    uploads: Sequence[Tensor]
    downloads: Sequence[Tensor]

    def bound(self, places: Mapping[str, BufferRange]) -> VulkanSegment | None:
        """Return the segment on these places; see `PlanRecorder.bound`."""
        return self.recorder.bound(self, places)


class PlanRecorder:
    """Turns collected dispatches into runnable segments.

    Args:
        device: the device that runs them.
        recording: the dispatches of all segments.
        memory: the place of every tensor; closed with the segments.
        pipelines: the pipelines of the dispatches.
        timestamps: record GPU time per dispatch.
        apart: let no two dispatches run at once, so that each is timed alone.
        reporting: makes kernels report overflows; None if none do.
    """

    def __init__(
        self,
        device: Device,
        recording: Recording,
        memory: PlanMemory,
        pipelines: Mapping[SpecializedShader, Pipeline],
        timestamps: bool,
        apart: bool = False,
        reporting: Reporting | None = None,
    ) -> None:
        self._reporting = reporting
        self._device = device
        self._recording = recording
        self._memory = memory
        self._timestamps = timestamps
        self._apart = apart
        self._pipelines = pipelines
        self.replays = True
        """Whether segments are recorded once; otherwise every run records them again."""

    def segment(
        self, first: int, end: int, uploads: Sequence[Tensor], downloads: Sequence[Tensor]
    ) -> VulkanSegment:
        """Record dispatches first to end (exclusive), then the copies to host memory."""
        uploaded = [(tensor, self._place(tensor)) for tensor in uploads if self._is_placed(tensor)]
        downloaded = [
            (tensor, self._memory.readback.get(tensor) or self._place(tensor))
            for tensor in downloads
        ]
        dispatches = self._recording.dispatches[first:end]
        copies = [tensor for tensor in downloads if tensor in self._memory.readback]
        reported, reports = self._reports(dispatches, self._memory.buffers)
        places = {tensor: self._memory.readback[tensor] for tensor in copies}
        flags, late = line_for(self._device, dispatches, self._memory.buffers)
        record = partial(self._record, dispatches, places, reported, flags=flags)
        steps = None
        if self._timestamps:
            chosen = self._chosen()
            steps = [(d.label, d.shader.name, chosen.get(d.label, "")) for d in dispatches]
            steps += [("", "copy", "") for _ in copies]
        return VulkanSegment(
            record() if self.replays else None,
            Edges(
                uploaded, downloaded, self._ranges(uploads), self._status(dispatches), reports, late
            ),
            self._memory,
            steps,
            Rebinder(self, first, end, uploads, downloads),
            record=None if self.replays else record,
        )

    def bound(self, part: Rebinder, places: Mapping[str, BufferRange]) -> VulkanSegment | None:
        """Record a segment again on the same memory, with other places for its inputs and outputs.

        Args:
            part: the segment.
            places: places of all tensors that the host provides and reads, by name.

        Returns:
            None if a tensor cannot be moved.
        """
        moved: dict[Tensor, BufferRange] = {}
        for tensor in part.uploads:
            if self._recording.root(tensor) is not tensor or not _fits(tensor, places[tensor.name]):
                return None
            moved[tensor] = places[tensor.name]
        copies: dict[Tensor, BufferRange] = {}
        for tensor in part.downloads:
            place = places[tensor.name]
            if not _fits(tensor, place):
                return None
            own = self._recording.root(tensor) is tensor and tensor.value is None
            # A result that is too large for a kernel to store to host memory stays so.
            far = tensor in self._memory.readback and place.buffer.kind is MemoryKind.READBACK
            (moved if own and not far and tensor not in moved else copies)[tensor] = place
        dispatches = self._recording.dispatches[part.first : part.end]
        status = self._status(dispatches)
        buffers: list[Buffer] = []
        if status is not None:
            assert self._recording.status is not None
            buffers.append(self._device.allocate(VECTOR_BYTES, MemoryKind.READBACK))
            place = moved[self._recording.status] = BufferRange(buffers[0], 0, VECTOR_BYTES)
            status = Status(place, status.checks)
        reported, reports = self._reports(dispatches, buffers)
        flags, late = line_for(self._device, dispatches, buffers)
        ranges = self._ranges(part.uploads)
        hidden = {n: places[n] for n in ranges if places[n].buffer.coherent_host is None}
        glance = self._glance(hidden, buffers) if hidden else None
        return VulkanSegment(
            self._record(dispatches, copies, reported, moved, flags),
            Edges(
                [(tensor, places[tensor.name]) for tensor in part.uploads],
                [(tensor, places[tensor.name]) for tensor in part.downloads],
                ranges,
                status,
                reports,
                late,
            ),
            self._memory,
            owned=buffers,
            glance=glance,
        )

    def _glance(self, hidden: Mapping[str, BufferRange], buffers: list[Buffer]) -> Glance:
        """Record copies of tensors to host-visible memory, in one submission."""
        recorder = self._device.recorder()
        seen: dict[str, BufferRange] = {}
        for name, place in hidden.items():
            buffer = self._device.allocate(place.nbytes, MemoryKind.READBACK)
            buffers.append(buffer)
            seen[name] = BufferRange(buffer, 0, place.nbytes)
            recorder.copy(place, seen[name])
        return Glance(recorder.finish(), seen)

    def _ranges(self, uploads: Sequence[Tensor]) -> dict[str, Sequence[IndexRange]]:
        return {t.name: self._recording.ranges[t] for t in uploads if t in self._recording.ranges}

    def _chosen(self) -> dict[str, str]:
        """Return, for each op that had a choice, whether the rules chose all its kernels."""
        chosen: dict[str, str] = {}
        for choice in self._recording.choices:
            tuned = choice.taken != choice.candidates[0] or chosen.get(choice.op) == "tuned"
            chosen[choice.op] = "tuned" if tuned else "rule"
        return chosen

    def _status(self, dispatches: Sequence[Dispatch]) -> Status | None:
        """Return the memory for reports of failed checks, None without checks."""
        tensor = self._recording.status
        if tensor is None or not self._recording.checks:
            return None
        used = any(tensor in dispatch.tensors for dispatch in dispatches)
        return Status(self._place(tensor), self._recording.checks) if used else None

    def _reports(
        self, dispatches: Sequence[Dispatch], buffers: list[Buffer]
    ) -> tuple[Mapping[str, BufferRange], Reports | None]:
        if self._reporting is None:
            return {}, None
        return self._reporting.places(dispatches, buffers)

    def _record(
        self,
        dispatches: Sequence[Dispatch],
        copies: Mapping[Tensor, BufferRange],
        reported: Mapping[str, BufferRange],
        moved: Mapping[Tensor, BufferRange] | None = None,
        flags: FlagLine | None = None,
    ) -> CommandBuffer | None:
        if not dispatches and not copies:
            return None
        recorder = self._device.recorder(timestamps=self._timestamps, flags=flags)
        places = _Places(self._recording, {**self._memory.ranges, **(moved or {})})
        for dispatch in dispatches:
            pipeline = self._pipelines[dispatch.pipeline]
            bindings = [places[tensor] for tensor in dispatch.tensors]
            if pipeline.shader.watched:
                bindings.append(reported[dispatch.label])
            recorder.dispatch(
                pipeline,
                bindings,
                dispatch.params,
                dispatch.groups,
                dispatch.label,
            )
            if self._apart:
                recorder.wait_for_all()
        for tensor, target in copies.items():
            source = places[tensor]
            recorder.copy(BufferRange(source.buffer, source.offset, target.nbytes), target)
        return recorder.finish()

    def _place(self, tensor: Tensor) -> BufferRange:
        return _place(tensor, self._recording, self._memory.ranges)

    def _is_placed(self, tensor: Tensor) -> bool:
        return self._recording.root(tensor) in self._memory.ranges


class _Places(dict[Tensor, BufferRange]):
    """Places of storage-owning tensors, and of aliases on first use."""

    def __init__(self, recording: Recording, owners: Mapping[Tensor, BufferRange]) -> None:
        super().__init__(owners)
        self._recording = recording
        self._owners = owners

    def __missing__(self, tensor: Tensor) -> BufferRange:
        place = self[tensor] = _place(tensor, self._recording, self._owners)
        return place


def _place(
    tensor: Tensor, recording: Recording, owners: Mapping[Tensor, BufferRange]
) -> BufferRange:
    root, offset = recording.placement(tensor)
    whole = owners[root]
    if root is tensor:
        return whole
    return BufferRange(whole.buffer, whole.offset + offset, storage_bytes(tensor))


def _fits(tensor: Tensor, place: BufferRange) -> bool:
    """Return whether the tensor needs plain order and 32 bits per element."""
    plain = tensor.layout is Layout.NCHW and tensor.element == "f32"
    return plain and place.nbytes == storage_bytes(tensor)
