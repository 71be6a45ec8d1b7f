"""Engines for the tests of the benchmark: one that works, and some that do not."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.ir import Array


class Good(Engine):
    """Doubles its input, in `seconds`; prints, as drivers do."""

    def load(self, job: Job) -> None:
        sys.stdout.write("a driver's banner\n")
        sys.stdout.flush()
        self.job = job
        self.runs = 0

    def run(self) -> list[Array]:
        time.sleep(self.job.options.get("seconds", 0.06))
        self.runs += 1
        (x,) = self.job.feeds.values()
        return [x * 2 + self.job.options.get("error", 0.0)]

    def facts(self) -> dict[str, Any]:
        return {"runs": self.runs, "threads": self.job.threads, "model": self.job.model.name}


class Missing(Engine):
    def load(self, job: Job) -> None:
        raise EngineMissingError("it is not installed", "install it")

    def run(self) -> list[Array]:
        raise AssertionError


class Crashes(Good):
    """Dies in its second run."""

    def run(self) -> list[Array]:
        if self.runs:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run()


class Raises(Good):
    def run(self) -> list[Array]:
        raise ValueError("no such operator")


class Hangs(Good):
    def load(self, job: Job) -> None:
        time.sleep(60)


class OtherShape(Good):
    def run(self) -> list[Array]:
        return [np.zeros(5)]
