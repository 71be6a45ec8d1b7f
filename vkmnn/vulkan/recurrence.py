"""Distribution of recurrent steps over workgroups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from vkmnn.base.records import dataclass
from vkmnn.ir.ops import RECURRENT_GATES
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, CpuLanes, cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import ceil_div

Rows = Literal[1, 4]
Phases = tuple[tuple[int, int], ...]

# A multiprocessor reads the weights of this many units in about the time of a dispatch.
_UNITS_AT_ONCE = 128
# Invocations of a GPU that share the sum of a unit.
_SLICES = 8
# Workgroups per step on CPU devices: each of them reads the whole state.
_CPU_PARTS = 4
_CPU_UNITS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Problem:
    """Properties that determine the distribution; `resets`: a GRU resets the state."""

    cell: str
    steps: int
    batch: int
    hidden: int
    directions: int
    resets: bool

    @property
    def gates(self) -> int:
        """Number of gates per unit."""
        return RECURRENT_GATES[self.cell]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Workgroups of `local` invocations compute `rows` sequences: all units, or some for one step.

    With `lanes`, a workgroup is a subgroup whose lanes exchange the state. Otherwise `slices` of
    its invocations share the sum of a unit. `blocks`: rounds of units that a workgroup computes in
    a step.
    """

    whole: bool
    rows: Rows
    local: int
    slices: int = 1
    lanes: Literal[0, 8, 16] = 0
    blocks: int = 1
    family: ClassVar[str] = "cells"

    @property
    def units(self) -> int:
        """Units computed by a workgroup at a time."""
        return self.local // self.slices

    def span(self, problem: Problem) -> int:
        """Return the units of a workgroup per step."""
        return problem.hidden if self.whole else self.units * self.blocks

    def pitch(self, problem: Problem) -> int:
        """Return the numbers of a state, padded to whole blocks."""
        block = self.lanes or 4
        return block * ceil_div(problem.hidden, block)

    def phases(self, problem: Problem) -> Phases:
        """Return the phases of each dispatch of a step: resets precede their readers."""
        if not problem.resets:
            return ((0, 0),)
        return ((1, 2),) if self.whole else ((1, 1), (2, 2))

    def buffers(self, problem: Problem) -> int:
        """Return the number of states in shared memory."""
        return 1 + self.whole + problem.resets

    def shared_bytes(self, problem: Problem) -> int:
        """Return the shared memory of a workgroup in bytes."""
        sums = 4 if problem.gates > 1 else 1
        return 4 * self.rows * (self.buffers(problem) * self.pitch(problem) + self.local * sums)

    def steps(self, problem: Problem) -> int:
        """Return the steps per dispatch, limited by its loops; 0 if not even one fits."""
        pitch = self.pitch(problem)
        states = ceil_div(self.rows * pitch, self.local) + 1
        tasks = ceil_div(self.rows * self.units, self.local) * (self.slices + 1) + 1
        # A loop takes a round for each iteration, and one to end.
        sums = 1 + ceil_div(pitch, (self.lanes or 4) * self.slices) + 1 + tasks
        rounds = ceil_div(self.span(problem), self.units) * sums + 1
        phases = 2 if problem.resets and self.whole else 1
        most = (MAX_LOOP_ROUNDS - states) // (1 + phases * (1 + rounds) + 1)
        return min(most, problem.steps if self.whole else 1)


def sharings(problem: Problem, info: DeviceInfo, *, texel: bool) -> list[Sharing]:
    """Return the ways to distribute the steps on a device, the likely fastest first.

    Args:
        problem: the steps.
        info: the device.
        texel: kernels may load through texel buffers.
    """
    make = _of_gpus if is_gpu(info) else _of_cpus
    found = [one for one in make(problem, info, texel) if _fits(one, problem, info)]
    limit = _UNITS_AT_ONCE if is_gpu(info) else _CPU_UNITS_AT_ONCE
    return sorted(found, key=lambda one: one.whole is not (problem.hidden <= limit))


def _fits(sharing: Sharing, problem: Problem, info: DeviceInfo) -> bool:
    limits = info.limits
    groups = (
        ceil_div(problem.hidden, sharing.span(problem)),
        ceil_div(problem.batch, sharing.rows),
        problem.directions,
    )
    counts = all(a <= b for a, b in zip(groups, limits.max_workgroup_count, strict=True))
    room = sharing.shared_bytes(problem) <= limits.max_shared_memory
    return room and counts and sharing.steps(problem) > 0


def _rows(problem: Problem) -> tuple[Rows, ...]:
    return (1,) if problem.batch == 1 else (4, 1)


def _of_cpus(problem: Problem, info: DeviceInfo, texel: bool) -> Iterator[Sharing]:
    sizes: tuple[CpuLanes, ...] = rotate_lanes(info) if texel else ()
    for lanes in (*sizes, None):
        local = lanes or cpu_lanes(info)
        longest = max(1, MAX_LOOP_ROUNDS // (problem.hidden // 4 + 32))
        blocks = min(ceil_div(problem.hidden, local * _CPU_PARTS), longest)
        for rows in _rows(problem):
            yield Sharing(True, rows, local, lanes=lanes or 0)
            yield Sharing(False, rows, local, lanes=lanes or 0, blocks=blocks)


def _of_gpus(problem: Problem, info: DeviceInfo, texel: bool) -> Iterator[Sharing]:
    limits = info.limits
    most = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0], 1024)
    units = min(_power(problem.hidden), most)
    slices = min(_SLICES, most // units, _power(ceil_div(problem.hidden, 4)))
    for rows in _rows(problem):
        yield Sharing(True, rows, units * slices, slices)
        yield Sharing(False, rows, 128, _SLICES)


def _power(value: int) -> int:
    """Return the smallest power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()
