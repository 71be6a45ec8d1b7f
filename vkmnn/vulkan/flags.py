"""Decides which dispatches wait for each other by flags instead of barriers.

An experiment, off unless `VKMNN_FLAGS` asks for it: docs/decisions/flags.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import LateFlagError
from vkmnn.runtime.device import Device
from vkmnn.runtime.device_info import DeviceInfo, Limits
from vkmnn.runtime.memory import Buffer, BufferRange, MemoryKind
from vkmnn.runtime.shader import BindingType, Shader, flagged
from vkmnn.vulkan.overflow import Reporting
from vkmnn.vulkan.recording import Dispatch, Recording, specialized
from vkmnn.vulkan.storage import VECTOR_BYTES

if TYPE_CHECKING:
    from vkmnn.runtime.flag_line import FlagLine

FLAG_BINDINGS = 2
WEIGHTS_FIRST = "WEIGHTS_FIRST"
"""Specialization constant of kernels that then ask for their first weights before the wait."""


@dataclass(slots=True)
class LateReport:
    """The word that waits without success set in a segment; its buffer belongs to others."""

    buffer: Buffer

    def look(self) -> None:
        """Handle the report of the last run.

        Raises:
            LateFlagError: there is one.
        """
        if self.buffer.word(0):
            raise LateFlagError(
                "a dispatch waited in vain for the flag of the one before it",
                hint="set VKMNN_FLAGS=off",
            )


def by_flags(
    recording: Recording, info: DeviceInfo, reporting: Reporting | None = None
) -> Recording:
    """Return the recording with shaders that wait by flags, where these can.

    Args:
        recording: the recording, which does not change.
        info: the device.
        reporting: makes kernels report overflows.
    """
    made = []
    for dispatch in recording.dispatches:
        own = dispatch.shader if reporting is None else reporting.shader(dispatch.shader)
        shader = _flagged(own, _constants(dispatch, recording), info.limits)
        spec, pipeline = dispatch.spec, dispatch.pipeline
        if shader.flagged is not None:
            if WEIGHTS_FIRST in shader.constant_names:
                spec = {**spec, WEIGHTS_FIRST: True}
            name, digest, constants = specialized(shader, spec)
            pipeline = name, f"{digest}:{sorted(shader.flagged)}", constants
        made.append(replace(dispatch, shader=shader, spec=spec, pipeline=pipeline))
    return replace(recording, dispatches=made)


def _constants(dispatch: Dispatch, recording: Recording) -> frozenset[int]:
    """Return the bindings of constants."""
    roots = (recording.root(tensor) for tensor in dispatch.tensors)
    return frozenset(
        number
        for number, root in enumerate(roots)
        if root.value is not None and root not in recording.written
    )


@lru_cache(maxsize=2048)
def _flagged(shader: Shader, constants: frozenset[int], limits: Limits) -> Shader:
    """Return the shader that waits by flags, or itself if it cannot.

    Images are read through other caches. Kernels by Vulkan's memory model have no accesses of
    texels that other workgroups may see.
    """
    kinds = [one.type for one in shader.bindings]
    by_model = "vulkan_memory_model" in shader.requires
    storage = kinds.count(BindingType.STORAGE) + FLAG_BINDINGS
    fits = storage <= limits.max_storage_bindings and (
        len(kinds) + FLAG_BINDINGS <= limits.max_bindings
    )
    cannot = BindingType.IMAGE in kinds or (by_model and BindingType.TEXEL in kinds)
    return shader if cannot or not fits else flagged(shader, constants)


def line_for(
    device: Device, dispatches: Sequence[Dispatch], buffers: list[Buffer]
) -> tuple[FlagLine | None, LateReport | None]:
    """Return the counters of a command buffer, and the report of its waits.

    Args:
        device: the device.
        dispatches: its dispatches.
        buffers: receives buffers to free with it.
    """
    if not any(dispatch.shader.flagged is not None for dispatch in dispatches):
        return None, None
    from vkmnn.runtime.flag_line import FlagLine  # few sessions use it

    report = device.allocate(VECTOR_BYTES, MemoryKind.READBACK)
    report.write(0, np.zeros(VECTOR_BYTES, np.uint8))
    line = FlagLine(device, len(dispatches), BufferRange(report, 0, VECTOR_BYTES))
    buffers += [report, line.buffer]
    return line, LateReport(report)
