"""The benchmark's end of the line to an engine in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.closing import Closing
from vkmnn.bench.engine import EngineMissingError, Job
from vkmnn.ir import Array

if TYPE_CHECKING:
    pass

_END_S = 30  # to save caches, and for a driver to unload
_ROOT = Path(__file__).resolve().parents[2]


class Peer(Closing):
    """An engine with one job; a context manager that ends its process.

    Args:
        target: the engine's class as `module:Class`.
        job: the job to run.
        timeout_s: maximum time for an answer.
        env: variables of the environment that differ from this process's.
    """

    def __init__(
        self, target: str, job: Job, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="vkmnn-bench-")
        _write_job(job, Path(self._folder.name))
        paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        self._errors = Path(self._folder.name, "stderr")
        self.started = time.perf_counter()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vkmnn.bench.worker", target, self._folder.name],
                env={**os.environ, "PYTHONPATH": paths, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        self._answers: Queue[str] = Queue()
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")  # the end

    def ask(self, command: str) -> dict[str, Any]:
        """Send "load", "turn" or "facts" to the worker and return its answer.

        Raises:
            EngineMissingError: it could not, it crashed, or there was no answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=self._timeout_s)
        except BrokenPipeError:
            line = ""
        except Empty:
            self._process.kill()
            raise EngineMissingError(f"no answer within {self._timeout_s:g} s") from None
        if not line:
            raise EngineMissingError(self._end())
        answer = json.loads(line)
        if "error" in answer:
            raise EngineMissingError(answer["error"], answer["hint"])
        result: dict[str, Any] = answer["ok"]
        return result

    def _end(self) -> str:
        status = self._process.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        text = self._errors.read_text("utf-8", errors="replace").strip()
        last = text.splitlines()[-1] if text else "no message"
        return f"its process ended with {how}: {last}"

    def outputs(self) -> list[Array]:
        """Return the outputs of the first run."""
        with np.load(Path(self._folder.name, "outputs.npz")) as arrays:
            return [arrays[name] for name in arrays.files]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._process.stdout.close()
        self._folder.cleanup()


def _write_job(job: Job, folder: Path) -> None:
    data = {
        "model": str(job.model.resolve()),
        "folder": str(job.folder),
        "inputs": list(job.feeds),
        "device": job.device,
        "device_name": job.device_name,
        "twin": job.twin,
        "threads": job.threads,
        "options": dict(job.options),
    }
    (folder / "job.json").write_text(json.dumps(data), encoding="utf-8")
    np.savez(folder / "feeds.npz", *job.feeds.values())
