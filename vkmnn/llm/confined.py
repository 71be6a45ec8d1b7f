"""A child process for untrusted programs, with limits on its memory and time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vkmnn.errors import VkmnnError

_WORKER = Path(__file__).with_name("confined_worker.py")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a child process runs, and within which limits.

    Attributes:
        work: the kind of work, a key of `WORK` in confined_worker.py.
        folders: folders of the packages that it imports.
        memory: bytes of its address space.
        cpu_s: processor seconds for each request.
        wall_s: seconds for each request on the clock.
    """

    work: str
    folders: Sequence[str]
    memory: int
    cpu_s: int
    wall_s: float


class Confined:
    """A child process that answers requests, and starts with the first one.

    Calls from several threads take turns. If the process has died, the next call starts another.

    Args:
        confinement: returns what it runs; called at each start.
        instead: what to do if no process can be started, for the error.
    """

    def __init__(self, confinement: Callable[[], Confinement], instead: str) -> None:
        self._confinement = confinement
        self._instead = instead
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._limits: Confinement | None = None
        self._owner = 0
        self._end: Callable[[], object] | None = None

    def start(self) -> None:
        """Start the process, if it does not run."""
        with self._lock:
            self._running()

    def ask(self, line: bytes) -> dict[str, str]:
        """Send a line of JSON and return the answer; `failed` holds the reason if it has died.

        Raises:
            VkmnnError: the process cannot be started.
            MissingExtraError: a package that it needs is not installed.
        """
        with self._lock:
            return self._answer(line)

    def _answer(self, line: bytes) -> dict[str, str]:
        late = threading.Event()
        process = self._running()
        reply = self._exchange(process, line, late)
        if reply is None and not late.is_set() and process.wait() == -9:
            process = self._running()  # killed, perhaps not because of the request: try again
            reply = self._exchange(process, line, late)
        if reply is not None:
            return reply
        process.kill()
        ended = process.wait()
        assert self._limits is not None
        if late.is_set() or ended == -24:  # SIGXCPU
            return {"failed": f"it takes more than {self._limits.cpu_s} s"}
        return {"failed": f"it ended its process (status {ended}), which has "
                          f"{self._limits.memory >> 20} MiB of memory"}  # fmt: skip

    def _exchange(
        self, process: subprocess.Popen[bytes], line: bytes, late: threading.Event
    ) -> dict[str, str] | None:
        """Send a line and return the answer; None if the process has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert self._limits is not None

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._limits.wall_s, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:
            return None
        except BaseException:  # Ctrl-C: the next request must not read this answer
            process.kill()
            process.wait()
            raise
        finally:
            timer.cancel()
        found: dict[str, str] | None = json.loads(reply) if reply.endswith(b"\n") else None
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process; start one if there is none, it has ended, or this is a fork."""
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            if self._end is not None:
                self._end()
            self._limits = self._confinement()
            process = self._process = self._started(self._limits)
            self._owner = os.getpid()
            self._end = weakref.finalize(self, _end, process, self._owner)
        return process

    def _started(self, limits: Confinement) -> subprocess.Popen[bytes]:
        given = [limits.work, str(limits.memory), str(limits.cpu_s), *sorted(set(limits.folders))]
        system = {k: v for k, v in os.environ.items() if k.upper() == "SYSTEMROOT"}  # Windows
        try:
            if getattr(sys, "frozen", False) or not sys.executable:
                raise OSError("no Python interpreter was found for a child process")
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WORKER), *given],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=system,
            )  # fmt: skip
        except OSError as error:
            raise VkmnnError(
                f"the process for {limits.work} cannot be started: {error}", hint=self._instead
            ) from error


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner == os.getpid():
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
