"""Times variants by the device's timestamps, interleaved, so that drift shows as noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import quantiles
from typing import NamedTuple

from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.runtime.device import Device
from vkmnn.testing.baseline import Measured
from vkmnn.testing.case import Case, Variant, cases_of
from vkmnn.testing.emulation import bench_for
from vkmnn.testing.runner import Picker, dispatched_by
from vkmnn.vulkan.backend import VulkanBackend

PASSES = 3
"""Passes over all variants, batch by batch; minutes may separate them."""
ROUNDS = 2
"""Rounds over the variants of a batch per pass."""
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
        jobs: the jobs to time.
        device: has timestamps.
        progress: called with the number of variants that are done.

    Returns:
        Times by the variant's name, without those whose case does not come again. The noise band
        goes from the 10th to the 90th percentile of all runs.

    Raises:
        VkmnnError: the device behaves differently than in the tests.
    """
    found = [ready for job in jobs if (ready := _ready(job, device))]
    times: list[list[float]] = [[] for _ in found]
    for number in range(PASSES):
        for start in range(0, len(found), _BATCH):
            batch = _batch(found[start : start + _BATCH])
            for mine, new in zip(times[start:], batch, strict=False):
                mine += new
            progress((number * len(found) + start + len(batch)) // PASSES)
    return {
        ready.job.variant.name: _measured(ready.job, mine)
        for ready, mine in zip(found, times, strict=True)
    }


class _Ready(NamedTuple):
    job: Job
    case: Case
    device: Device

    @property
    def picker(self) -> Picker:
        return Picker(self.job.picks, self.case.takes)


def _ready(job: Job, device: Device) -> _Ready | None:
    """Find the case; of several with the same description, one that dispatches the variant."""
    bench = bench_for(job.variant, device)
    if isinstance(bench, str) or bench.emulated:
        return None
    for case in cases_of(job.variant):
        ready = _Ready(job, case, bench.device)
        if str(case) == job.case and job.variant.name in dispatched_by(
            case, bench.device, ready.picker
        ):
            return ready
    return None


def _batch(batch: Sequence[_Ready]) -> list[list[float]]:
    """Time some variants in turn; return the microseconds of each one's runs."""
    times: list[list[float]] = [[] for _ in batch]
    with ExitStack() as stack:
        plans = []
        for ready in batch:
            case = ready.case
            backend = VulkanBackend(
                ready.device,
                chooser=ready.picker,
                element=case.floats,
                narrow_inputs=case.floats != "f32",
                storage=case.storage,
                spacious=True,
            ).timed()
            stack.callback(backend.close)
            plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
            stack.callback(plan.close)
            plans.append(plan)
            for _ in range(_WARM_UP):
                plan.execute(case.feeds)
        for _ in range(ROUNDS):
            for ready, plan, mine in zip(batch, plans, times, strict=True):
                name = ready.job.variant.name
                for _ in range(RUNS):
                    plan.execute(ready.case.feeds)
                    mine.append(sum(t.microseconds for _, t in plan.timings() if t.kernel == name))
    return times


def _measured(job: Job, times: Sequence[float]) -> Measured:
    deciles = quantiles(times, n=10, method="inclusive")
    shader = job.variant.library.load(job.variant.name)
    low, middle, high = (round(deciles[i], 3) for i in (0, 4, 8))
    return Measured(middle, low, high, job.case, shader.digest[:16])
