"""Records the dispatches of a plan into command buffers, one per segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.core.tensor import Tensor
from vkmnn.runtime.device import Device
from vkmnn.runtime.encoder import CommandBuffer
from vkmnn.runtime.memory import BufferRange
from vkmnn.runtime.pipeline import Pipeline
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.checks import Status
from vkmnn.vulkan.choice import NOT_TUNED
from vkmnn.vulkan.memory import PlanMemory
from vkmnn.vulkan.recording import Dispatch, Recording, Spec
from vkmnn.vulkan.segment import VulkanSegment
from vkmnn.vulkan.storage import storage_bytes

PipelineKey = tuple[str, tuple[tuple[str, int | float | bool], ...]]


def pipelines_used(recording: Recording) -> dict[PipelineKey, tuple[Shader, Spec]]:
    """Return what the recorded dispatches need, each pipeline once."""
    return {_pipeline_key(d): (d.shader, d.spec) for d in recording.dispatches}


class PlanRecorder:
    """Turns collected dispatches into runnable segments.

    Args:
        device: where they run.
        recording: the dispatches of all segments.
        memory: where every tensor lies; closed with the segments.
        pipelines: those of the dispatches.
        timestamps: record GPU time per dispatch.
    """

    def __init__(
        self,
        device: Device,
        recording: Recording,
        memory: PlanMemory,
        pipelines: Mapping[PipelineKey, Pipeline],
        timestamps: bool,
    ) -> None:
        self._device = device
        self._recording = recording
        self._memory = memory
        self._timestamps = timestamps
        self._pipelines = pipelines

    def segment(
        self, first: int, end: int, uploads: Sequence[Tensor], downloads: Sequence[Tensor]
    ) -> VulkanSegment:
        """Record dispatches first to end (exclusive) and the copies to host memory behind them."""
        uploaded = [(tensor, self._place(tensor)) for tensor in uploads if self._is_placed(tensor)]
        downloaded = [
            (tensor, self._memory.readback.get(tensor) or self._place(tensor))
            for tensor in downloads
        ]
        dispatches = self._recording.dispatches[first:end]
        command = self._record(dispatches, downloads)
        ranges = {t.name: self._recording.ranges[t] for t in uploads if t in self._recording.ranges}
        steps = None
        if self._timestamps:
            copies = [tensor for tensor in downloads if tensor in self._memory.readback]
            chosen = self._chosen()
            steps = [(d.label, d.shader.name, chosen.get(d.label, "")) for d in dispatches]
            steps += [("", "copy", "") for _ in copies]
        status = self._status(dispatches)
        return VulkanSegment(command, uploaded, downloaded, self._memory, ranges, status, steps)

    def _chosen(self) -> dict[str, str]:
        """Return, for each op that had a choice, whether all of it went by the rules."""
        chosen: dict[str, str] = {}
        for choice in self._recording.choices:
            if choice.what in NOT_TUNED:
                continue
            tuned = choice.taken != choice.candidates[0] or chosen.get(choice.op) == "tuned"
            chosen[choice.op] = "tuned" if tuned else "rule"
        return chosen

    def _status(self, dispatches: Sequence[Dispatch]) -> Status | None:
        """Return where the dispatches report failed checks, None when they make none."""
        tensor = self._recording.status
        if tensor is None or not self._recording.checks:
            return None
        used = any(tensor in dispatch.tensors for dispatch in dispatches)
        return Status(self._place(tensor), self._recording.checks) if used else None

    def _record(
        self, dispatches: Sequence[Dispatch], downloads: Sequence[Tensor]
    ) -> CommandBuffer | None:
        copies = [tensor for tensor in downloads if tensor in self._memory.readback]
        if not dispatches and not copies:
            return None
        recorder = self._device.encoder(timestamps=self._timestamps)
        for dispatch in dispatches:
            recorder.dispatch(
                self._pipelines[_pipeline_key(dispatch)],
                [self._place(tensor) for tensor in dispatch.tensors],
                dispatch.params,
                dispatch.groups,
                dispatch.label,
            )
        for tensor in copies:
            target = self._memory.readback[tensor]
            source = self._place(tensor)
            recorder.copy(BufferRange(source.buffer, source.offset, target.nbytes), target)
        return recorder.finish()

    def _place(self, tensor: Tensor) -> BufferRange:
        root, offset = self._recording.placement(tensor)
        whole = self._memory.ranges[root]
        if root is tensor:
            return whole
        return BufferRange(whole.buffer, whole.offset + offset, storage_bytes(tensor))

    def _is_placed(self, tensor: Tensor) -> bool:
        return self._recording.root(tensor) in self._memory.ranges


def _pipeline_key(dispatch: Dispatch) -> PipelineKey:
    return dispatch.shader.name, tuple(sorted(dispatch.spec.items()))
