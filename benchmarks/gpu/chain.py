"""One op, dispatched repeatedly in a chain: its time, and the cost model's prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from benchmarks.timing import interleave
from vkmnn.core.execution import Command
from vkmnn.core.plan import Plan
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, Graph, Op
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime.device import Device
from vkmnn.runtime.device_info import DeviceType
from vkmnn.testing.case import Case, tensor_info
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.encoder import ceil_div
from vkmnn.vulkan.plan.forecast import Forecast, forecast_of
from vkmnn.vulkan.plan.segment import VulkanSegment
from vkmnn.vulkan.recording import Dispatch, Recording

T = TypeVar("T")

CHAIN = 20
SWEPT_CHAIN = 4
WARM_S = 0.02
COLD_S = 1.5
IDLE_S = 1.0
RESOLUTION_US = 0.1
SWEEP = "sweep"
LONG_US = 20_000.0
MOST_COPIES = 64
"""Of weights that take turns."""
# Two results in fp16 differ by the error of rounding the operands.
MAX_ERROR = {False: 1e-3, True: 2e-2}


@dataclass(frozen=True, slots=True)
class Measured:
    """An op by one choice of kernels.

    Args:
        what: the problem.
        kernel: the shader of its longest dispatch.
        workgroups: workgroups of that dispatch.
        dispatches: dispatches that the op needs.
        rule: whether the rules choose it.
        fp16: stored as fp16.
        cold: weights came from memory: others were read, or the caches swept, before each time.
        us: the minimum time of several runs, in microseconds.
        terms: the model's prediction, by term.
        error: the largest difference from numpy, as a fraction of the range.
    """

    what: str
    kernel: str
    workgroups: int
    dispatches: int
    rule: bool
    fp16: bool
    cold: bool
    us: float
    terms: Mapping[str, float]
    error: float

    @property
    def predicted_us(self) -> float:
        """All terms together."""
        return sum(self.terms.values())

    @property
    def is_wrong(self) -> bool:
        """Whether the result is not numpy's."""
        return not self.error <= MAX_ERROR[self.fp16]  # NaN is wrong as well


Shortlist = Callable[[Sequence[Any]], Sequence[Any]]
"""Returns those of the candidates of a choice that are measured, the rules' first."""


class _Take:
    """A chooser that picks candidate number `rank` of one kind of choice.

    Of other kinds, it picks that of `takes`, or the first. Of that kind, it knows only those of
    `shortlist`, if given.
    """

    def __init__(
        self,
        kind: str,
        rank: int,
        takes: Mapping[str, Hashable],
        shortlist: Shortlist | None = None,
    ) -> None:
        self.kind = kind
        self.rank = rank
        self.takes = takes
        self.shortlist = shortlist
        self.count = 1

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return the candidate."""
        if what == "plain end":  # kernels are measured as they run inside networks
            return next(candidate for candidate in candidates if candidate is False)
        if what != self.kind:
            wanted = self.takes.get(what)
            return next((one for one in candidates if one == wanted), candidates[0])
        if self.shortlist:
            candidates = self.shortlist(candidates)
        self.count = max(self.count, len(candidates))
        return candidates[min(self.rank, len(candidates) - 1)]


class _ChainBackend(VulkanBackend):
    """Records the dispatches of one op `times` times; each time waits for the one before.

    Those labelled SWEEP, if any, run in between. The conversions for the host and from it run once.
    Constants take turns with as many copies as make `rotated_bytes`.
    """

    label = ""
    times = CHAIN
    rotated_bytes = 0
    kernel = ""
    workgroups = 0
    dispatches = 0
    forecast: Forecast

    def encode(self, segments: Sequence[Sequence[Command]]) -> tuple[Recording, list[int]]:
        recording, _ = super().encode(segments)
        recorded = recording.dispatches
        mine = [dispatch for dispatch in recorded if _op_of(dispatch.label) == self.label]
        sweeps = [dispatch for dispatch in recorded if dispatch.label == SWEEP]
        if not mine:
            raise ValueError(f"{self.label} takes no dispatch")
        alone = replace(recording, dispatches=mine)
        self.forecast = forecast_of([(alone, 0)], self.device.info)
        longest = max(self.forecast.steps, key=lambda step: step.cost.total)
        self.kernel, self.workgroups = longest.kernel, longest.workgroups
        self.dispatches = len(mine)
        first, last = recorded.index(mine[0]), recorded.index(mine[-1])
        before = [d for d in recorded[:first] if d not in sweeps]
        after = [d for d in recorded[last + 1 :] if d not in sweeps]
        copies = _copies(recording, mine, self.rotated_bytes) if self.rotated_bytes else [mine]
        chain = [copies[number % len(copies)] for number in range(self.times)]
        repeated = [dispatch for each in chain for dispatch in (*sweeps, *each)]
        recording.dispatches = [*before, *repeated, *after]
        return recording, [len(recording.dispatches)]


def _copies(recording: Recording, mine: list[Dispatch], nbytes: int) -> list[list[Dispatch]]:
    """Return the dispatches, and copies that read other constants of equal values."""
    arrays: dict[Tensor, Array] = {}
    for dispatch in mine:
        for tensor in dispatch.tensors:
            if tensor in recording.packed and tensor not in arrays:
                packed = recording.packed[tensor]
                arrays[tensor] = packed.pack(packed.source)
    whole = sum(array.nbytes for array in arrays.values())
    copies = [mine]
    for _ in range(1, min(ceil_div(nbytes, whole), MOST_COPIES) if whole else 1):
        others = {tensor: _copied(recording, tensor, array) for tensor, array in arrays.items()}
        copies.append(
            [replace(d, tensors=tuple(others.get(t, t) for t in d.tensors)) for d in mine]
        )
    return copies


def _copied(recording: Recording, tensor: Tensor, array: Array) -> Tensor:
    packed = recording.packed[tensor]
    copy = Tensor(tensor.info, tensor.usage, value=array.view(), element=tensor.element)
    # Uploads are shared by their source, so each copy has one of its own.
    recording.packed[copy] = replace(packed, source=array.view(), key="copy", pack=_same)
    return copy


def _same(array: Array) -> Array:
    return array


def kernels(
    case: Case,
    what: str,
    kind: str,
    device: Device,
    *,
    runs: int = 5,
    sweep_bytes: int = 0,
    rotated_bytes: int = 0,
    most: int = 0,
    shortlist: Shortlist | None = None,
) -> Iterator[Measured]:
    """Yield the time of each kernel for an op, the rules' first.

    Args:
        case: one op; its first op is timed.
        what: the name of the problem.
        kind: the kind of choice whose candidates are measured (see `vkmnn.vulkan.choice`); "" for
            the rules' alone.
        device: the device.
        runs: number of runs, of which the fastest counts; a slow kernel runs less often.
        sweep_bytes: bytes to write before each run, so that weights are in no cache.
        rotated_bytes: bytes of equal weights that take turns, likewise; nothing is written, and no
            timestamp taken.
        most: maximum number of candidates; 0: all.
        shortlist: returns the candidates to measure; all of them without it.
    """
    want = _expected(case)
    graph, feeds = case.graph, dict(case.feeds)
    label = graph.ops[0].name
    if sweep_bytes:
        graph, feeds = _swept(graph, feeds, sweep_bytes)
    take = _Take(kind, 0, case.takes, shortlist)
    seen: set[tuple[str, int, int]] = set()
    infos = {name: tensor_info(name, array) for name, array in feeds.items()}

    def planned(times: int) -> tuple[_ChainBackend, Plan]:
        backend = _ChainBackend(
            device, timestamps=bool(sweep_bytes), chooser=take, element=case.floats
        )
        backend.label, backend.times = label, times
        backend.rotated_bytes = rotated_bytes if times > 1 else 0
        return backend, Plan(graph, infos, {}, backend, CpuBackend(), run_op)

    while take.rank < min(take.count, most or take.count):
        with ExitStack() as stack:
            backend, once = planned(1)
            stack.callback(_close, once, backend)
            found = backend.kernel, backend.workgroups, backend.dispatches
            if found not in seen:
                seen.add(found)
                # Once: later dispatches of an op with several may overwrite its inputs.
                got = once.execute(feeds)[graph.outputs[0].name]
                longer, often = planned(SWEPT_CHAIN if sweep_bytes else 1 + CHAIN)
                stack.callback(_close, often, longer)
                if sweep_bytes:
                    spent = _least(often, feeds, label, runs) / SWEPT_CHAIN
                else:
                    often.execute(feeds)
                    if device.info.type is not DeviceType.CPU:
                        _keep_busy(replay_of(often))
                    spent = _least_more(once, often, runs) / CHAIN
                terms = {k: v for k, v in backend.forecast.terms().items() if k != "submit"}
                yield Measured(
                    what,
                    *found,
                    rule=take.rank == 0,
                    fp16=case.floats == "f16",
                    cold=bool(sweep_bytes or rotated_bytes),
                    us=spent,
                    terms=terms,
                    error=_difference(got, want),
                )
        take.rank += 1


_last: dict[str, tuple[Graph, Array]] = {}


def _expected(case: Case) -> Array:
    """Return numpy's result, which is kept for the next measurement of the same problem."""
    graph, result = _last.get(case.floats, (None, None))
    if graph is not case.graph or result is None:
        result = case.expected()[0]
        _last[case.floats] = case.graph, result
    return result


def _close(plan: Plan, backend: VulkanBackend) -> None:
    plan.close()
    backend.close()


def _least_more(once: Plan, often: Plan, runs: int) -> float:
    """Return how many microseconds more the longer of two plans takes, both without timestamps.

    A timestamp behind every dispatch would add 1.5 µs to each (NVIDIA H100).
    """
    plans = {"often": replay_of(often), "once": replay_of(once)}
    times = interleave(plans, max(2 * runs, 6), 1)
    return max((times["often"].best - times["once"].best) * 1e6, RESOLUTION_US)


_busy_until = {"s": -IDLE_S}


def _keep_busy(replay: Callable[[], None]) -> None:
    """Let the device raise its clock: an idle H100 runs at 345 of 1,980 MHz for another second."""
    start = time.perf_counter()
    end = start + (COLD_S if start - _busy_until["s"] > IDLE_S else WARM_S)
    while time.perf_counter() < end:
        replay()
    _busy_until["s"] = end


def replay_of(plan: Plan) -> Callable[[], None]:
    """Return a function that runs a plan's only segment again, without the host's copies."""
    segment = plan.segments[0]
    assert isinstance(segment, VulkanSegment)
    return segment.replay


def _least(plan: Plan, feeds: Mapping[str, Array], label: str, runs: int) -> float:
    """Return the microseconds between timestamps of an op, the minimum of several runs."""
    best = float("inf")
    for _ in range(runs):
        plan.execute(feeds)
        spent = sum(
            timing.microseconds for _, timing in plan.timings() if _op_of(timing.op) == label
        )
        best = min(best, spent)
        if spent > LONG_US:
            break
    return best


def _swept(graph: Graph, feeds: dict[str, Array], nbytes: int) -> tuple[Graph, dict[str, Array]]:
    """Add an op that reads and writes `nbytes` bytes in all."""
    x = np.zeros(nbytes // 8, np.float32)
    op = Op("UnaryOp", SWEEP, [SWEEP], ["swept"], UnaryAttrs("NEG"))
    wider = replace(
        graph,
        inputs=[*graph.inputs, tensor_info(SWEEP, x)],
        outputs=[*graph.outputs, tensor_info("swept", x)],
        ops=[*graph.ops, op],
    )
    return wider, {**feeds, SWEEP: x}


def _difference(got: Array, want: Array) -> float:
    if got.shape != want.shape:
        return float("inf")
    if not want.size:
        return 0.0
    span = float(np.ptp(want)) or 1.0
    return float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max() / span)


def _op_of(label: str) -> str:
    """Return the op that a dispatch belongs to: lowered ops have a number added."""
    return label.partition("~")[0]
