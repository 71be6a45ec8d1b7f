"""Times variants by the device's timestamps, interleaved, so that drift shows as noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import quantiles

from vkmnn.core.pipeline import Pipeline
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import InvalidInputError
from vkmnn.runtime.device import Device
from vkmnn.testing.baseline import Measured
from vkmnn.testing.case import CASES, Case, Variant
from vkmnn.testing.runner import Picker, dispatched_by
from vkmnn.vulkan.backend import VulkanBackend

PASSES = 3
"""How often all variants are timed, one batch after the other; minutes may lie between."""
ROUNDS = 2
"""How often the variants of a batch are timed in a pass, one after the other."""
RUNS = 5
"""Runs of a variant in a round."""
_WARM_UP = 3
_BATCH = 24
"""Variants that are timed together: their plans live in device memory at the same time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A variant to time: the case that it runs, and the choices that lead to it."""

    variant: Variant
    case: str
    picks: Mapping[str, int]


def measure(
    jobs: Sequence[Job], device: Device, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Measured]:
    """Time variants on a device, best opened without validation, with nothing else running.

    Args:
        jobs: what to time.
        device: has timestamps.
        progress: called with the number of variants that are done.

    Returns:
        Times by the variant's name. The noise band goes from the 10th to the 90th percentile of
        all runs.

    Raises:
        VkmnnError: the device does not do what it did in the tests.
    """
    cases = [(job, _case(job, device)) for job in jobs]
    times: list[list[float]] = [[] for _ in jobs]
    for number in range(PASSES):
        for start in range(0, len(jobs), _BATCH):
            found = _batch(cases[start : start + _BATCH], device)
            for mine, new in zip(times[start:], found, strict=False):
                mine += new
            progress((number * len(jobs) + start + len(found)) // PASSES)
    return {job.variant.name: _measured(job, mine) for job, mine in zip(jobs, times, strict=True)}


def _case(job: Job, device: Device) -> Case:
    """Find the case; of several with the same description, one that dispatches the variant."""
    name = job.variant.name
    for case in CASES[job.variant.template][0](job.variant):
        if str(case) == job.case and name in dispatched_by(case, device, Picker(job.picks)):
            return case
    raise InvalidInputError(
        f"{name} cannot be timed: {job.case} is not there, or takes another kernel",
        hint="a function with @shader_cases must yield the same cases every time",
    )


def _batch(cases: Sequence[tuple[Job, Case]], device: Device) -> list[list[float]]:
    """Time some variants in turn; return the microseconds of each one's runs."""
    times: list[list[float]] = [[] for _ in cases]
    with ExitStack() as stack:
        plans = []
        for job, case in cases:
            backend = VulkanBackend(device, chooser=Picker(job.picks)).timed()
            stack.callback(backend.close)
            plan = Pipeline(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
            stack.callback(plan.close)
            plans.append(plan)
            for _ in range(_WARM_UP):
                plan.execute(case.feeds)
        for _ in range(ROUNDS):
            for (job, case), plan, mine in zip(cases, plans, times, strict=True):
                for _ in range(RUNS):
                    plan.execute(case.feeds)
                    steps = [step for _, step in plan.timings()]
                    own = [t.microseconds for t in steps if t.kernel == job.variant.name]
                    mine.append(sum(own))
    return times


def _measured(job: Job, times: Sequence[float]) -> Measured:
    deciles = quantiles(times, n=10, method="inclusive")
    shader = job.variant.library.load(job.variant.name)
    low, middle, high = (round(deciles[i], 3) for i in (0, 4, 8))
    return Measured(middle, low, high, job.case, shader.digest[:16])
