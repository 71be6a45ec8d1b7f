"""Times variants by the device's timestamps, interleaved, so that drift shows as noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import quantiles

from vkmnn.core.pipeline import Pipeline
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import InvalidInputError
from vkmnn.runtime.device import Device
from vkmnn.testing.baseline import Measured
from vkmnn.testing.case import CASES, Case, Variant
from vkmnn.testing.runner import Picker, dispatched_by
from vkmnn.vulkan.backend import VulkanBackend

ROUNDS = 6
RUNS = 5
"""Runs of a variant in one round; the other variants of the batch run between two rounds."""
_WARM_UP = 3
_BATCH = 24
"""Variants that are timed together: their plans live in device memory at the same time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A variant to time: the case that it runs, and the choices that lead to it."""

    variant: Variant
    case: str
    picks: Mapping[str, int]


@dataclass(slots=True)
class _Running:
    job: Job
    case: Case
    plan: Pipeline
    backend: VulkanBackend
    times: list[float] = field(default_factory=list)

    def run(self) -> float:
        self.plan.execute(self.case.feeds)
        name = self.job.variant.name
        return sum(t.microseconds for _, t in self.plan.timings() if t.kernel == name)

    def close(self) -> None:
        self.plan.close()
        self.backend.close()


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
    found: dict[str, Measured] = {}
    for start in range(0, len(jobs), _BATCH):
        with ExitStack() as stack:
            batch = []
            for job in jobs[start : start + _BATCH]:
                batch.append(_prepare(job, device))
                stack.callback(batch[-1].close)
                for _ in range(_WARM_UP):
                    batch[-1].run()
            for _ in range(ROUNDS):
                for running in batch:
                    running.times += [running.run() for _ in range(RUNS)]
        found.update({running.job.variant.name: _measured(running) for running in batch})
        progress(len(found))
    return found


def _prepare(job: Job, device: Device) -> _Running:
    """Plan the case; of several with the same description, the one that dispatches the variant."""
    maker = CASES[job.variant.template][0]
    for case in maker(job.variant):
        if str(case) == job.case and job.variant.name in dispatched_by(
            case, device, Picker(job.picks, case.takes)
        ):
            backend = VulkanBackend(device, chooser=Picker(job.picks, case.takes)).timed()
            plan = Pipeline(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
            return _Running(job, case, plan, backend)
    raise InvalidInputError(
        f"{job.variant} cannot be timed: {job.case} is not there, or takes another kernel",
        hint="a function with @shader_cases must yield the same cases every time",
    )


def _measured(running: _Running) -> Measured:
    deciles = quantiles(running.times, n=10, method="inclusive")
    shader = running.job.variant.library.load(running.job.variant.name)
    low, middle, high = (round(deciles[i], 3) for i in (0, 4, 8))
    return Measured(middle, low, high, running.job.case, shader.digest[:16])
