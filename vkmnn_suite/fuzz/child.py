"""This end of the line to a worker or a tormentor, which may crash or hang."""

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

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

WORKER = "vkmnn_suite.fuzz.worker"
TORMENTOR = "vkmnn_suite.fuzz.tormentor"
_ROOT = Path(__file__).resolve().parents[2]
_START_S = 180.0  # to import everything and open the device
_END_S = 30.0
_KEPT_TEXT = 3000


class ChildCrashedError(VkmnnError):
    """A worker's process ended; the message tells how.

    Attributes:
        said: the end of its standard error.
    """

    said = ""


class ChildHungError(VkmnnError):
    """A worker gave no answer in time."""


class Child:
    """A worker's process; use it as a context manager, which ends it.

    It is started by the first command, and again by the next one after it has died or was closed.

    Args:
        module: the module that it runs: WORKER, TORMENTOR or one with the same protocol.
        argument: its command-line argument.
        timeout_s: seconds until an answer; the first one after a start may take longer.
        environment: variables to add to its environment.
    """

    def __init__(
        self,
        module: str,
        argument: str = "",
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [sys.executable, "-X", "faulthandler", "-m", module, argument]
        self._timeout_s = timeout_s
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self.asked = 0
        """Commands since the process was started."""

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vkmnn-fuzz-")
        self._errors = Path(self._folder.name, "stderr")
        paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **self._environment, "PYTHONPATH": paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        self.asked, self._fresh = 0, True
        self._answers: Queue[str] = Queue()
        self._listener = Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put(line)
        self._answers.put("")  # the end

    def ask(self, command: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the worker's answers to a command.

        Raises:
            ChildCrashedError: its process ended.
            ChildHungError: there was no answer in time; the process is killed.
        """
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self.asked += 1
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            raise self._crashed() from error
        while True:
            try:
                line = self._answers.get(timeout=self._timeout_s + self._fresh * _START_S)
            except Empty:
                process.kill()
                self.close()
                raise ChildHungError(f"no answer within {self._timeout_s:g} s") from None
            self._fresh = False
            if not line:
                raise self._crashed()
            answer: dict[str, Any] = json.loads(line)
            if "done" in answer:
                return
            yield answer

    def _crashed(self) -> ChildCrashedError:
        assert self._process is not None
        status = self._process.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        text = self._errors.read_text("utf-8", errors="replace").strip()
        lines = [line for line in text.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(("Fatal", "  File"))][:2] or lines[-1:]
        self.close()
        found = ChildCrashedError(
            f"its process ended with {how}: {' '.join(' '.join(said).split())}"
        )
        found.said = text[-_KEPT_TEXT:]
        return found

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
            process.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        self._listener.join()
        process.stdout.close()
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
