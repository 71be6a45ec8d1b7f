"""Chat templates: untrusted programs from a model's folder, run in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, MissingExtraError, VkmnnError

MEMORY_BYTES = 512 << 20
"""Address space of the template process; it starts with 30 MiB."""

CPU_S = 1
"""Processor seconds per conversation; ordinary ones take a millisecond."""

WALL_S = 20.0
"""Wall-clock seconds per conversation."""

MAX_CHARACTERS = 1 << 26
"""Maximum characters of a conversation, if the caller sets no limit."""

_WORKER = Path(__file__).with_name("template_worker.py")
_SAFE = (3, 1, 6)


class ChatTemplate:
    """A template, and the process that runs it, which starts with the first conversation.

    Jinja's sandbox hides Python's objects from a template, but bounds neither its time nor its
    memory (docs/decisions/chat-templates.md). Calls from several threads take turns.

    Args:
        source: the template.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._end: Callable[[], object] | None = None

    def write(self, variables: Mapping[str, Any], most: int | None = None) -> str | None:
        """Return the text for some variables; None if it has more than `most` characters.

        Raises:
            InvalidInputError: the template refuses them, fails, or exceeds its time or memory.
            MissingExtraError: `jinja2` is not installed, or is a version with an unsafe sandbox.
        """
        asked = {
            "template": self.source,
            "variables": variables,
            "most": MAX_CHARACTERS if most is None else most,
        }
        try:
            line = json.dumps(asked).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"the messages are not JSON: {error}",
                hint="messages hold texts, numbers, lists and dictionaries",
            ) from error
        with self._lock:
            told = self._answer(line)
        if "refused" in told:
            raise InvalidInputError(f"the chat template refuses the messages: {told['refused']}")
        if "failed" in told:
            raise InvalidInputError(f"the chat template fails: {told['failed']}")
        return None if "long" in told else str(told["text"])

    def start(self) -> None:
        """Start the process, if it does not run."""
        with self._lock:
            self._running()

    def _answer(self, line: bytes) -> dict[str, str]:
        late = threading.Event()
        process = self._running()
        reply = self._exchange(process, line, late)
        if reply is None and not late.is_set() and process.wait() == -9:
            process = self._running()  # killed, perhaps not because of the template: try again
            reply = self._exchange(process, line, late)
        if reply is not None:
            return reply
        process.kill()
        ended = process.wait()
        if late.is_set() or ended == -24:  # SIGXCPU
            return {"failed": f"it takes more than {CPU_S} s"}
        return {"failed": f"it ended its process (status {ended}), which has "
                          f"{MEMORY_BYTES >> 20} MiB of memory"}  # fmt: skip

    def _exchange(
        self, process: subprocess.Popen[bytes], line: bytes, late: threading.Event
    ) -> dict[str, str] | None:
        """Send a line and return the answer; None if the process has ended."""
        assert process.stdin is not None
        assert process.stdout is not None

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(WALL_S, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:
            return None
        except BaseException:  # Ctrl-C: the next conversation must not read this answer
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
            process = self._process = _started()
            self._owner = os.getpid()
            self._end = weakref.finalize(self, _end, process, self._owner)
        return process


def _started() -> subprocess.Popen[bytes]:
    jinja2 = need("jinja2", "writing a conversation")
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < _SAFE:
        raise MissingExtraError(
            f"jinja2 {jinja2.__version__} has known escapes from its sandbox",
            hint="pip install 'jinja2>=3.1.6'",
        )
    markupsafe = need("markupsafe", "writing a conversation")
    folders = {str(Path(package.__file__).resolve().parents[1]) for package in (jinja2, markupsafe)}
    limits = [str(MEMORY_BYTES), str(CPU_S)]
    system = {k: v for k, v in os.environ.items() if k.upper() == "SYSTEMROOT"}  # Windows' Python
    try:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise OSError("no Python interpreter was found for a child process")
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WORKER), *limits, *sorted(folders)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=system,
        )  # fmt: skip
    except OSError as error:
        raise VkmnnError(
            f"the process for chat templates cannot be started: {error}",
            hint="write the conversation as a text, and pass that instead of messages",
        ) from error


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner == os.getpid():
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
