"""vkmnn itself."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import vkmnn
from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.ir import Array

_RUNS = 11
_LIMIT_S = 2.0


class Own(Engine):
    """vkmnn on a Vulkan device; option "precision" as of `InferenceSession`."""

    def load(self, job: Job) -> None:
        """Open a session."""
        precision = job.options.get("precision", "high")
        self._session = vkmnn.InferenceSession(job.model, job.device, precision=precision)
        if self._session.precision != precision:
            raise EngineMissingError(
                f'{self._session.device.name} has no precision "{precision}"',
                "choose another device",
            )
        self._feeds = dict(job.feeds)

    def run(self) -> list[Array]:
        """Run once."""
        return self._session.run(None, self._feeds)

    def facts(self) -> dict[str, Any]:
        """Return memory, Python's time and where the ops run."""
        memory = self._session.memory()
        placement = self._session.placement()
        return {
            "ops": len(placement.ops),
            "off_device": len(placement.off_device),
            "activations": memory.activations,
            "lower_bound": memory.lower_bound,
            "constants": memory.constants,
            "python_us": self._python_us(),
        }

    def _python_us(self) -> float:
        """Return the microseconds of a run other than submit and wait, including copies."""
        plan = self._session._session.core.current
        assert plan is not None
        spent: list[float] = []
        begin = time.perf_counter()
        while len(spent) < _RUNS and (not spent or time.perf_counter() - begin < _LIMIT_S):
            start = time.perf_counter_ns()
            self.run()
            wall = (time.perf_counter_ns() - start) / 1000
            spent.append(wall - sum(segment.busy_us for segment in plan.segments))
        return median(spent)
