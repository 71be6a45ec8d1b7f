"""Selects the kernels that are checked for float16 overflow, and assigns report slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from vkmnn.base.elements import FLOATS
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Command
from vkmnn.core.overflow import Overflowed, OverflowWatch, overflow_of
from vkmnn.ir import Array
from vkmnn.runtime.device import Device
from vkmnn.runtime.device_info import Limits
from vkmnn.runtime.memory import Buffer, BufferRange, MemoryKind
from vkmnn.runtime.shader import BindingType, Shader, watched
from vkmnn.vulkan.recording import Dispatch
from vkmnn.vulkan.storage import VECTOR_BYTES

_BOUNDED = (
    *("attention_", "cached_attention", "gather", "image_pool", "image_raster", "pool", "raster"),
    *("select", "softmax_"),
)
"""Prefixes of kernels whose results cannot exceed their inputs, or 1."""

_OVERFLOWING = frozenset(
    form
    for name, one in FLOATS.items()
    if one.overflows
    for form in (name, *one.words[1:], *one.texels)
)
"""Formats of bindings in which finite numbers become infinite."""


@lru_cache(maxsize=2048)
def watching(shader: Shader, limits: Limits) -> Shader:
    """Return the checked variant of a shader, or itself if its float16 cannot overflow.

    Devices without room for one more binding run all kernels unchecked.
    """
    if shader.watched or shader.name.startswith(_BOUNDED):
        return shader
    if not any("w" in one.access and one.format in _OVERFLOWING for one in shader.bindings):
        return shader
    stored = sum(one.type is BindingType.STORAGE for one in shader.bindings)
    fits = stored < limits.max_storage_bindings and len(shader.bindings) < limits.max_bindings
    return watched(shader) if fits else shader


def origins(segments: Sequence[Sequence[Command]]) -> dict[str, Overflowed]:
    """Return descriptions of a plan's ops, by name."""
    commands = {c.op.name: c for segment in segments for c in segment}
    found = {}
    values: dict[str, str] = {}  # tensors with further forms, by their names in the network
    for name, command in commands.items():
        owner = commands.get(command.owner, command)
        made = [value for value in command.op.outputs if value]
        if command.op.type == "ConvertTensor":
            (source,) = command.op.inputs
            made = [values.get(source, source)]
        values.update(zip((out.name for out in command.outputs), made, strict=True))
        found[name] = overflow_of(command, made, owner)
    return found


@dataclass(slots=True)
class Reports:
    """The words in which the kernels of a segment report overflows.

    Attributes:
        buffers: the buffers of the words, owned by others.
        words: a view of them, None if the host has to read them.
        ops: their ops, in the same order.
        watch: handles reports.
        seen: the labels of ops that have overflowed so far.
    """

    buffers: Sequence[Buffer]
    words: Array | None
    step: int
    ops: Sequence[Overflowed]
    watch: OverflowWatch
    seen: set[str]

    def look(self) -> None:
        """Handle the reports of the last run.

        Raises:
            Float16OverflowError: as `OverflowWatch.note`.
        """
        words = self.words
        if words is not None and not words.any():  # every run executes this
            return
        self._look()

    def _look(self) -> None:
        words = np.concatenate([one.read(0, one.nbytes).view(np.int32) for one in self.buffers])
        found = [op for op, word in zip(self.ops, words[:: self.step], strict=False) if word]
        if not found:
            return
        for one in self.buffers:
            one.write(0, np.zeros(one.nbytes, np.uint8))
        self.seen.update(one.label for one in found)
        self.watch.note(found)


class Reporting:
    """Assigns report slots to a segment's dispatches.

    Args:
        device: the device that runs them.
        ops: descriptions of the ops, by name.
        watch: handles reports.
    """

    def __init__(self, device: Device, ops: Mapping[str, Overflowed], watch: OverflowWatch) -> None:
        self._device = device
        self._ops = ops
        self._watch = watch

    def shader(self, shader: Shader) -> Shader:
        """Return the shader to run in place of another."""
        return watching(shader, self._device.info.limits)

    def places(
        self, dispatches: Sequence[Dispatch], buffers: list[Buffer]
    ) -> tuple[dict[str, BufferRange], Reports | None]:
        """Return the slots of ops that may overflow, and their readers.

        Args:
            dispatches: the dispatches of the segment.
            buffers: receives buffers to free with the segment.
        """
        labels = dict.fromkeys(d.label for d in dispatches if self.shader(d.shader).watched)
        if not labels:
            return {}, None
        limits = self._device.info.limits
        size = max(VECTOR_BYTES, limits.storage_offset_alignment)
        apart = limits.whole_buffers
        made = [
            self._device.allocate(size if apart else size * len(labels), MemoryKind.READBACK)
            for _ in range(len(labels) if apart else 1)
        ]
        buffers += made
        for buffer in made:
            buffer.write(0, np.zeros(buffer.nbytes, np.uint8))
        places = {
            label: BufferRange(made[n], 0, VECTOR_BYTES)
            if apart
            else BufferRange(made[0], n * size, VECTOR_BYTES)
            for n, label in enumerate(labels)
        }
        host = None if apart else made[0].coherent_host
        view = None if host is None else host[: size * len(labels)].view(np.int32)[:: size // 4]
        ops = [
            self._ops.get(label) or Overflowed(label, label, "op", label, frozenset({label}))
            for label in labels
        ]
        return places, Reports(made, view, size // 4, ops, self._watch, set())
