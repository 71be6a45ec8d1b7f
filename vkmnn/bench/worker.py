"""Runs one engine: `python -m vkmnn.bench.worker MODULE:CLASS FOLDER`, commanded line by line.

It reads a line of JSON for each command, and writes one for each answer. Output of engines and
drivers goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np

from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.errors import VkmnnError

# A run is repeated in a turn while it is shorter; the first one of short runs does not count,
# since the caches are still those of the engine before.
SHORT_S = 0.05


class Worker:
    """Executes commands; `job.json` and `feeds.npz` in `folder` are the job."""

    def __init__(self, target: str, folder: Path) -> None:
        self._folder = folder
        module, _, name = target.partition(":")
        self._engine: Engine = getattr(importlib.import_module(module), name)()
        self._last_s = 0.0

    def load(self) -> dict[str, Any]:
        """Load the model and run it once; answer the seconds of both, and the process's memory."""
        start = time.perf_counter()
        self._engine.load(self._job())
        loaded = time.perf_counter()
        outputs = self._engine.run()
        done = time.perf_counter()
        peak = _peak_bytes()
        np.savez(self._folder / "outputs.npz", *outputs)
        self._last_s = done - loaded
        return {"load_s": loaded - start, "first_s": done - loaded, "peak_bytes": peak}

    def _job(self) -> Job:
        data = json.loads((self._folder / "job.json").read_text("utf-8"))
        with np.load(self._folder / "feeds.npz") as arrays:
            feeds = {name: arrays[f"arr_{i}"] for i, name in enumerate(data.pop("inputs"))}
        data |= {name: Path(data[name]) for name in ("model", "folder")}
        return Job(feeds=feeds, **data)

    def turn(self) -> dict[str, Any]:
        """Run for a while; answer the median seconds of a run."""
        if self._last_s < SHORT_S:
            self._engine.run()
        spent: list[float] = []
        begun = end = time.perf_counter()
        while not spent or end - begun < SHORT_S:
            start = time.perf_counter()
            self._engine.run()
            end = time.perf_counter()
            spent.append(end - start)
        self._last_s = median(spent)
        return {"seconds": self._last_s}

    def facts(self) -> dict[str, Any]:
        """Return the engine's facts."""
        return self._engine.facts()


def _peak_bytes() -> int | None:
    """Return the peak memory of this process; None if the system does not report it.

    Not from getrusage(2), which counts the process that started this one as well.
    """
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), None)


def answers(worker_of: tuple[str, Path], lines: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the answer to each command; an error ends the answers."""
    worker: Worker | None = None
    for line in lines:
        try:
            worker = worker or Worker(*worker_of)
            yield {"ok": getattr(worker, json.loads(line))()}
        except EngineMissingError as error:
            yield {"error": str(error), "hint": error.hint}
            return
        except VkmnnError as error:
            yield {"error": error.message, "hint": error.hint or ""}
            return
        except Exception as error:  # noqa: BLE001 - whatever another engine raises ends its row only
            yield {"error": f"{type(error).__name__}: {error}", "hint": ""}
            return


def main() -> None:
    """Answer commands until the input ends."""
    target, folder = sys.argv[1:]
    # A driver's output must not mix with the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer_to:
        os.dup2(2, 1)
        for answer in answers((target, Path(folder)), sys.stdin):
            answer_to.write(json.dumps(answer) + "\n")
            answer_to.flush()


if __name__ == "__main__":
    main()
