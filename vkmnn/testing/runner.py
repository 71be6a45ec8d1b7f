"""Runs cases on a device so that a given kernel variant does the work, and compares with numpy."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from vkmnn.base.elements import FLOATS, FloatStorage
from vkmnn.core.backend import Segment
from vkmnn.core.execution import Command
from vkmnn.core.plan import Plan
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array
from vkmnn.runtime.device import Device
from vkmnn.runtime.shader import Shader
from vkmnn.testing.case import ROUNDING_STEPS, Case, Variant, cases_of
from vkmnn.testing.guarded import GUARD_BYTES, POISONS, GuardedBackend
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.bindable import find_faults
from vkmnn.vulkan.recording import Dispatch, SpecializedShader
from vkmnn.vulkan.storage import storage_bytes

T = TypeVar("T")
Picks = Mapping[str, int]
MAX_COMBINATIONS = 800


class Picker:
    """A chooser that prefers `takes[what]`, else candidate number `picks[what]`, or 0.

    `seen` records the available choices: the number of candidates by kind of choice.
    """

    def __init__(self, picks: Picks, takes: Mapping[str, Hashable] = MappingProxyType({})) -> None:
        self.picks = picks
        self.takes = takes
        self.seen: dict[str, int] = {}

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return the picked candidate, or the last one if there are fewer."""
        if what in self.takes and self.takes[what] in candidates:
            return candidates[candidates.index(self.takes[what])]
        self.seen[what] = max(len(candidates), self.seen.get(what, 0))
        return candidates[min(self.picks.get(what, 0), len(candidates) - 1)]


class _NotRecorded(Segment):
    """Placeholder for results that a dry backend did not record."""

    def run(self, host: dict[str, Array]) -> None:
        raise AssertionError("a dry run has nothing to replay")


class _DryBackend(VulkanBackend):
    """Encodes a network without using the device; `dispatches` are those it would record."""

    dispatches: Sequence[Dispatch] = ()

    def on_resize_end(
        self,
        segments: Sequence[Sequence[Command]],
        kept: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
    ) -> list[Segment]:
        recording = self.encode(segments)[0]
        self.dispatches = recording.dispatches
        return [_NotRecorded() for _ in segments]


@dataclass(slots=True)
class CaseResult:
    """Result of one case: the largest error, relative to the tolerance and absolute."""

    case: str
    error: float
    absolute: float
    dispatched: frozenset[str]


@dataclass(slots=True)
class VariantResult:
    """Results of a variant's cases on one device."""

    variant: str
    template: str
    device: str
    cases: list[CaseResult] = field(default_factory=list)


def dispatched_by(case: Case, device: Device, picker: Picker) -> frozenset[str]:
    """Return the names of the variants that a case would dispatch; nothing runs."""
    return frozenset(name for name, *_ in pipelines_of(case, device, picker))


def pipelines_of(case: Case, device: Device, picker: Picker) -> frozenset[SpecializedShader]:
    """Return the pipelines that a case would dispatch; nothing runs."""
    return frozenset(dispatch.pipeline for dispatch in _dispatches_of(case, device, picker))


def fits(case: Case, picks: Picks, device: Device, most_texels: int) -> bool:
    """Return whether a driver binds the tensors of a case, and the guards after them.

    Args:
        case: the case.
        picks: which kernels.
        device: the device, which may claim longer texel buffers.
        most_texels: the driver's limit.
    """
    limits = replace(device.info.limits, max_texel_buffer_elements=most_texels)
    info = replace(device.info, limits=limits)
    dispatches = _dispatches_of(case, device, Picker(picks, case.takes))
    return not any(find_faults(dispatches, info, lambda t, _: storage_bytes(t) + GUARD_BYTES))


def _dispatches_of(case: Case, device: Device, picker: Picker) -> Sequence[Dispatch]:
    backend = _DryBackend(
        device,
        chooser=picker,
        element=case.floats,
        narrow_inputs=case.floats != "f32",
        storage=case.storage,
        spacious=True,
        arithmetic=case.arithmetic,
    )
    Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    return backend.dispatches


def combinations(case: Case, device: Device) -> Iterator[tuple[Picks, frozenset[str]]]:
    """Yield every combination of choices with the variants it dispatches, the default one first.

    A choice may open others (another load, other kernels), which are then tried too.
    """
    tried: set[tuple[tuple[str, int], ...]] = set()
    seen: dict[str, int] = {}
    while True:
        todo = [
            tuple(zip(seen, numbers, strict=True))
            for numbers in itertools.product(*map(range, seen.values()))
        ]
        todo = [picks for picks in todo if picks not in tried][: MAX_COMBINATIONS - len(tried)]
        if not todo:
            return
        before = dict(seen)
        for picks in todo:
            tried.add(picks)
            picker = Picker(dict(picks), case.takes)
            yield picker.picks, dispatched_by(case, device, picker)
            for what, count in picker.seen.items():
                seen[what] = max(count, seen.get(what, 0))
            if seen.keys() != before.keys():
                break


def run_case(
    case: Case,
    device: Device,
    picks: Picks,
    replaced: Mapping[str, Shader] = MappingProxyType({}),
    expected: Sequence[Array] | None = None,
) -> CaseResult:
    """Run a case twice with these choices, in poisoned and guarded memory.

    Args:
        case: the case to run.
        device: where.
        picks: which kernels.
        replaced: shaders to run in the place of those of these names.
        expected: numpy's results, if already known.

    Raises:
        AssertionError: an op fell back to numpy, two runs differ, the results are not numpy's, or
            a kernel wrote where it must not.
        ValidationLayerError: the validation layer reported something.
    """
    backend = GuardedBackend(
        device,
        Picker(picks, case.takes),
        replaced,
        element=case.floats,
        storage=case.storage,
        arithmetic=case.arithmetic,
    )
    plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    try:
        assert not plan.placement().off_device, f"{case}: off the device\n{plan.placement()}"
        if case.raises:
            for poison in POISONS:
                backend.poison(poison)
                _check_refusal(case, plan)
            device.raise_messages()
            return CaseResult(str(case), 0.0, 0.0, backend.dispatched)
        runs = []
        for poison in POISONS:
            backend.poison(poison)
            runs.append(plan.execute(case.feeds))
            device.raise_messages()
            backend.check_memory()
    finally:
        plan.close()
        backend.close()
    worst = absolute = 0.0
    wanted = case.expected() if expected is None else expected
    for info, want in zip(case.graph.outputs, wanted, strict=True):
        got, again = (run[info.name] for run in runs)
        error, difference = compare(got, want, case)
        assert np.array_equal(got, again, equal_nan=got.dtype.kind == "f"), (
            f"{case}, {dict(picks)}: two runs differ"
        )
        worst, absolute = max(worst, error), max(absolute, difference)
    return CaseResult(str(case), worst, absolute, backend.dispatched)


def _check_refusal(case: Case, plan: Plan) -> None:
    said = "nothing"
    try:
        plan.execute(case.feeds)
    except InvalidInputError as error:
        said = str(error)
    assert case.raises in said, f"{case}: '{case.raises}' was to be said, but {said}"


def compare(got: AnyArray, want: AnyArray, case: Case) -> tuple[float, float]:
    """Return the largest error relative to the tolerance, and the largest difference.

    Raises:
        AssertionError: shapes, types or values differ.
    """
    assert got.dtype == want.dtype, f"{case}: {got.dtype}, numpy gives {want.dtype}"
    assert got.shape == want.shape, f"{case}: shape {got.shape}, numpy gives {want.shape}"
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=str(case))
        return 0.0, 0.0
    rtol, atol = case.rtol, case.atol
    if case.floats != "f32":
        if FLOATS[case.floats].overflows:
            got, want = _narrow_results(got, want, FLOATS[case.floats])
        rtol, atol = _narrow_tolerance(want, case)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=str(case))
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0, 0.0
    exact = want[finite].astype(np.float64)
    difference = np.abs(got[finite] - exact)
    if not difference.any():
        return 0.0, 0.0
    allowed = atol + rtol * np.abs(exact)
    allowed[allowed == 0] = 1  # there the results are equal
    return float((difference[difference > 0] / allowed[difference > 0]).max()), float(
        difference.max()
    )


def _narrow_results(
    got: AnyArray, want: AnyArray, stored: FloatStorage
) -> tuple[AnyArray, AnyArray]:
    """Return results with infinities beyond the range of an element, where both sides agree."""
    beyond = np.abs(want) >= stored.largest
    infinite = np.copysign(np.inf, want)
    limited = np.where(beyond & (np.abs(got) >= stored.largest), infinite, got)
    return limited, np.where(beyond, infinite, want)


def _narrow_tolerance(want: AnyArray, case: Case) -> tuple[float, float]:
    """Return the tolerances: of one rounding if the case allows none, else of a few."""
    stored = FLOATS[case.floats]
    step = 1.0 / stored.whole
    if not case.rtol and not case.atol:  # devices may round either way
        return 2 * step, 2 * step * stored.least_normal
    largest = float(np.abs(want[np.isfinite(want)]).astype(np.float64).max(initial=0.0))
    return case.rtol, case.atol + ROUNDING_STEPS * step * largest


def reach(variant: Variant, device: Device) -> list[tuple[Case, Picks]]:
    """Return the cases of a variant with the choices that lead to it; nothing runs.

    Those that dispatch it come first. The others must also pass with the same choices: empty
    tensors dispatch nothing, and some shapes use another kernel.

    Raises:
        AssertionError: there are no cases, or none of them reaches the variant.
    """
    picks: Picks | None = None
    reaching: list[tuple[Case, Picks]] = []
    rest: list[Case] = []
    for case in cases_of(variant):
        found = _reach(case, variant, device, picks)
        if found is None:
            rest.append(case)
        else:
            picks = found
            reaching.append((case, found))
    assert picks is not None, f"no case reaches {variant} with any choice of kernels"
    return reaching + [(case, picks) for case in rest]


def _reach(case: Case, variant: Variant, device: Device, picks: Picks | None) -> Picks | None:
    """Return choices with which a case dispatches a variant; earlier successful ones first."""
    if picks is not None and variant.name in dispatched_by(case, device, Picker(picks, case.takes)):
        return picks
    return next(
        (found for found, names in combinations(case, device) if variant.name in names), None
    )
