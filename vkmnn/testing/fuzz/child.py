"""This end of the line to a worker, which may crash or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from vkmnn.errors import VkmnnError
from vkmnn.testing.fuzz.options import Options
from vkmnn.testing.fuzz.worker import encode

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

WORKER = "vkmnn.testing.fuzz.worker"
_ROOT = Path(__file__).resolve().parents[3]
_START_S = 120.0  # to import everything and open the device
_END_S = 30.0


class ChildCrashedError(VkmnnError):
    """A worker's process ended; the message says how."""


class ChildHungError(VkmnnError):
    """A worker gave no answer in time."""


class Child:
    """A worker; use it as a context manager, which ends its process."""

    def __init__(self, options: Options) -> None:
        self._timeout_s = options.timeout_s
        self._fresh = True
        self._folder = tempfile.TemporaryDirectory(prefix="vkmnn-fuzz-")
        self._errors = Path(self._folder.name, "stderr")
        paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-X", "faulthandler", "-m", WORKER]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, encode(options)],
                env={**os.environ, "PYTHONPATH": paths},
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

    def ask(self, command: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the worker's answers to a command.

        Raises:
            ChildCrashedError: its process ended.
            ChildHungError: there was no answer in time; the process is killed.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ChildCrashedError(self._end()) from error
        while True:
            try:
                line = self._answers.get(timeout=_START_S if self._fresh else self._timeout_s)
            except Empty:
                self._process.kill()
                raise ChildHungError(f"no answer within {self._timeout_s:g} s") from None
            self._fresh = False
            if not line:
                raise ChildCrashedError(self._end())
            answer: dict[str, Any] = json.loads(line)
            if "done" in answer:
                return
            yield answer

    def _end(self) -> str:
        status = self._process.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        text = self._errors.read_text("utf-8", errors="replace").strip()
        lines = [line for line in text.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(("Fatal", "  File"))][:2] or lines[-1:]
        return f"its process ended with {how}: {' '.join(' '.join(said).split())}"

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

    def __enter__(self) -> Self:
        """Return the child itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()
