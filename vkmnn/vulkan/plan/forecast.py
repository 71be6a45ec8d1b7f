"""Predicted time of a plan on a device, by dispatches and levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from vkmnn.base.elements import FLOATS, Arithmetic, FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.backend import Segment
from vkmnn.core.execution import Command
from vkmnn.core.overflow import OverflowWatch
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime import environment
from vkmnn.runtime.device import Device
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.choice import Preferences
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.device_rules import may_wait_by_flags
from vkmnn.vulkan.flags import by_flags
from vkmnn.vulkan.recording import Dispatch, Recording
from vkmnn.vulkan.storage import storage_bytes


@dataclass(frozen=True, slots=True)
class Step:
    """A dispatch of a plan and its prediction.

    Args:
        level: dispatches of one level do not depend on one another.
        op: the name of its op.
        kernel: the shader's name.
        workgroups: number of workgroups.
        invocations: invocations per workgroup.
        waves: rounds in which the device runs the workgroups, one on a multiprocessor at a time.
        nbytes: bytes read and written: each tensor once, of tables only the rows.
        cost: the predicted time.
        needed: multiplications of a product or convolution, 0 for other kernels.
        done: multiplications including the padding of its tiles.
        waits: its level waits for the one before by flags.
        ahead: microseconds of the loads of constants that it asks for before it waits.
    """

    level: int
    op: str
    kernel: str
    workgroups: int
    invocations: int
    waves: int
    nbytes: int
    cost: Cost
    needed: int
    done: int
    waits: bool = False
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted time of a plan.

    Args:
        info: the device.
        steps: all dispatches, in running order.
        submits: command buffers of a run.
    """

    info: DeviceInfo
    steps: tuple[Step, ...]
    submits: int

    @property
    def levels(self) -> int:
        """Levels of dispatches, each of which waits for the one before."""
        return len({step.level for step in self.steps})

    @property
    def padded_work(self) -> float:
        """Multiplications of all products, padding of tiles included, divided by those needed."""
        needed = sum(step.needed for step in self.steps)
        return sum(step.done for step in self.steps) / needed if needed else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that all dispatches read and write."""
        return sum(step.nbytes for step in self.steps)

    def terms(self) -> dict[str, float]:
        """Return the predicted microseconds by term, each level's by its slowest dispatch."""
        device = class_of(self.info)
        total = Cost()
        beside = 0.0
        saved = 0.0
        for _, level in groupby(self.steps, lambda step: step.level):
            steps = list(level)
            slowest_step = max(steps, key=lambda step: step.cost.total)
            slowest = slowest_step.cost
            total += slowest
            if slowest_step.waits:
                # Loads that wait for nothing fill what is left of the pause between levels.
                pause = device.gap_us + device.start_us - device.flag_us
                saved += device.flag_us + min(slowest_step.ahead, max(pause, 0.0))
            # The other dispatches use the part of the device that the slowest leaves idle; beyond
            # that, they take longer.
            taken = [self._share(step) * step.cost.total for step in steps]
            beside += max(0.0, sum(taken) - slowest.total) + device.beside_us * (len(steps) - 1)
        return {
            "submit": device.submit_us * self.submits,
            "gaps": device.gap_us * self.levels,
            **({"flags": -saved} if saved else {}),
            **total.terms(),
            "beside": beside,
        }

    def _share(self, step: Step) -> float:
        """Return the part of the device that a dispatch keeps busy."""
        return min(1.0, step.workgroups / cores_of(self.info))

    @property
    def predicted_us(self) -> float:
        """All terms together."""
        return sum(self.terms().values())


class PlanningBackend(VulkanBackend):
    """Plans as the Vulkan backend does, and keeps the recordings without computing anything.

    Args:
        device: the result of `open_profile`.
        element: how floats are stored if ops allow it.
        places: also place the tensors: packs the constants, and reports the memory.
        arithmetic: in which products of these may be computed.
    """

    def __init__(
        self,
        device: Device,
        element: FloatElement = "f32",
        places: bool = False,
        *,
        arithmetic: Arithmetic = "f32",
    ) -> None:
        watch = (
            OverflowWatch("warn") if FLOATS[element].overflows else None
        )  # as in sessions by default
        super().__init__(
            device,
            chooser=Preferences({}),
            element=element,
            arithmetic=arithmetic,
            overflows=watch,
        )
        self.recordings: list[tuple[Recording, int]] = []
        """The recordings, and the number of command buffers of each."""
        self._places = places

    def encode(self, segments: Sequence[Sequence[Command]]) -> tuple[Recording, list[int]]:
        recording, ends = super().encode(segments)
        self.recordings.append((recording, len(ends)))
        return recording, ends

    def on_resize_end(
        self,
        segments: Sequence[Sequence[Command]],
        kept: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
    ) -> list[Segment]:
        if self._places:
            return super().on_resize_end(segments, kept, inputs)
        self.encode_in_order(segments)
        return [_Nothing(commands, kept) for commands in segments]

    def forecast(self) -> Forecast:
        """Return the prediction for all plans so far."""
        return forecast_of(self.recordings, self.device.info)


def forecast_of(recordings: Sequence[tuple[Recording, int]], info: DeviceInfo) -> Forecast:
    """Return the prediction for consecutive recordings.

    Args:
        recordings: each with its number of command buffers.
        info: the device.
    """
    steps: list[Step] = []
    submits = 0
    for recording, segments in recordings:
        first = steps[-1].level + 1 if steps else 0
        waits = _waiting(recording, info) if assumes_flags(info) else frozenset[int]()
        steps += [
            replace(step, waits=step.level - first in waits)
            for step in (_step(one, first, recording, info) for one in recording.dispatches)
        ]
        submits += segments
    return Forecast(info, tuple(steps), submits)


def assumes_flags(info: DeviceInfo) -> bool:
    """Return whether `VKMNN_FLAGS` asks for flags on a device that may wait by them."""
    return environment.flags() == "force" or (
        environment.flags() == "on" and may_wait_by_flags(info)
    )


def _waiting(recording: Recording, info: DeviceInfo) -> frozenset[int]:
    """Return the levels that wait for the one before by flags."""
    dispatches = by_flags(recording, info).dispatches
    levels = {dispatch.step for dispatch in dispatches}
    mixed = {dispatch.step for dispatch in dispatches if dispatch.shader.flagged is None}
    return frozenset(
        level for level in levels if level - 1 in levels and mixed.isdisjoint({level, level - 1})
    )


class _Nothing(Segment):
    """A segment whose results are zeros."""

    def __init__(self, commands: Sequence[Command], kept: Mapping[str, Tensor]) -> None:
        produced = {output.name for command in commands for output in command.outputs}
        self._results = [tensor for name, tensor in kept.items() if name in produced]

    def run(self, host: dict[str, Array]) -> None:
        for tensor in self._results:
            host[tensor.name] = np.zeros(tensor.shape, tensor.dtype.numpy)


def _step(dispatch: Dispatch, first: int, recording: Recording, info: DeviceInfo) -> Step:
    shader = dispatch.shader
    local = int(dispatch.spec.get("local_size_x", shader.local_size[0]))
    invocations = local * shader.local_size[1] * shader.local_size[2]
    workgroups = dispatch.groups[0] * dispatch.groups[1] * dispatch.groups[2]
    # A binding that the specialization leaves out repeats the tensor of another.
    nbytes = sum(_bytes(tensor, recording) for tensor in dict.fromkeys(dispatch.tensors))
    expected = dispatch.expected
    ahead = 0.0
    if expected is not None:
        ahead = expected.ahead
        cost, needed, done = expected.cost, expected.needed, expected.done
        nbytes = nbytes if expected.nbytes is None else expected.nbytes
    else:
        # Workgroups spread over the cores before any core gets a second one.
        cost, needed, done = pass_cost(nbytes, info, workgroups), 0, 0
    return Step(
        level=first + dispatch.step,
        op=dispatch.label,
        kernel=shader.name,
        workgroups=workgroups,
        invocations=invocations,
        waves=-(-workgroups // cores_of(info)),
        nbytes=nbytes,
        cost=cost,
        needed=needed,
        done=done,
        ahead=ahead,
    )


def _bytes(tensor: Tensor, recording: Recording) -> int:
    packed = recording.packed.get(tensor)
    if packed is not None:
        return packed.nbytes
    return 0 if tensor is recording.status else storage_bytes(tensor)
