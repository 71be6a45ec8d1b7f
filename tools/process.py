"""Commands with visible or captured output, run in the checkout, and their errors."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS = min(os.cpu_count() or 1, 4)  # of a test run; a software driver is threaded too
CANNOT = 3
"""Exit status of a task that this machine lacks something for, which may not be installed."""


class TaskError(Exception):
    """A task that cannot continue; the message says what to do, `status` is the exit status."""

    status = 1


class CannotError(TaskError):
    """Something is missing here that may not or cannot be installed."""

    status = CANNOT


def say(message: str) -> None:
    """Print a line of progress at once, also into a pipe."""
    print(f"tasks: {message}", flush=True)


@contextmanager
def step(message: str) -> Iterator[None]:
    """Announce a slow step, and say how long it took when it went well."""
    say(f"{message} ...")
    start = time.monotonic()
    yield
    say(f"{message}: done in {time.monotonic() - start:.0f} s")


def run_quiet(
    command: Sequence[object], failure: str, env: Mapping[str, str] | None = None
) -> None:
    """Run a command without showing its output, unless it fails; `env` adds to its environment.

    Raises:
        TaskError: `failure` and the end of the output, when the exit status is not 0.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise TaskError(f"{failure}\n  command: {' '.join(map(str, command))}\n{tail}")


def ask(command: Sequence[object], failure: str, env: Mapping[str, str] | None = None) -> str:
    """Return a command's output.

    Raises:
        TaskError: `failure` and what it printed as errors, when the exit status is not 0.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise TaskError(f"{failure}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def run_loud(command: Sequence[object], env: Mapping[str, str] | None = None) -> int:
    """Run a command in the checkout with its output shown; return its exit status."""
    full = {**os.environ, **(env or {})}
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=full, check=False
    ).returncode


def cache_folder() -> Path:
    """Return the cache folder of downloads and builds for all checkouts."""
    chosen = os.environ.get("VKMNN_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base, "vkmnn")
