"""The environment `.venv`, with this package and the extras that a task needs in it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from tools import apt, process
from tools.process import TaskError, step

VENV = process.ROOT / ".venv"
STAMP = VENV / "vkmnn-installed.json"
UNFINISHED = VENV / "vkmnn-installing"
"""Marker of a running pip: an interrupted installation may be beyond repair."""
OLDEST_PYTHON = (3, 10)


def venv_python() -> Path:
    """Return the path of the environment's interpreter."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def venv_works() -> bool:
    """Tell whether `.venv` has pip and an interpreter that starts and is not too old."""
    try:
        asked = subprocess.run(
            [str(venv_python()), "-c", "import pip, sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return False
    return asked.returncode == 0 and tuple(map(int, asked.stdout.split())) >= OLDEST_PYTHON


def make_venv() -> None:
    """Make `.venv` anew with the interpreter that runs this file.

    Raises:
        TaskError: this Python can make no environment, and what is missing may not be installed.
    """
    make = [sys.executable, "-m", "venv", "--clear", VENV]
    failure = "Python could not make the environment .venv"
    version = "{}.{}".format(*sys.version_info[:2])
    if importlib.util.find_spec("ensurepip") or apt.install([f"python{version}-venv"]):
        with step("making the environment .venv"):
            process.run_quiet(make, failure)
    elif importlib.util.find_spec("pip"):  # Debian's python3-pip without its python3-venv
        with step("making the environment .venv with this Python's pip"):
            process.run_quiet(
                [*make, "--without-pip"], "Python could not make the environment .venv"
            )
            pip = [sys.executable, "-m", "pip", "--python", venv_python(), "install", "-q", "pip"]
            process.run_quiet(
                pip, f"install python3-venv:  sudo apt-get install python{version}-venv"
            )
    else:
        raise TaskError(
            f"this Python ({sys.executable}) cannot make environments: its module ensurepip is "
            f"missing.\n  On Debian and Ubuntu:  sudo apt-get install python{version}-venv"
        )


def fingerprint() -> str:
    """Return the hash of everything that determines the packages in `.venv`."""
    return hashlib.sha256((process.ROOT / "pyproject.toml").read_bytes()).hexdigest()


def installed_extras() -> set[str] | None:
    """Return the extras that `.venv` holds of today's pyproject.toml, or None when none fit."""
    try:
        stamp = json.loads(STAMP.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return set(stamp["extras"]) if stamp["pyproject"] == fingerprint() else None


def prepare(*extras: str) -> Path:
    """Make `.venv` hold this package with `extras`; return its interpreter.

    Raises:
        TaskError: no environment, or pip failed.
    """
    if UNFINISHED.exists() or not venv_works():
        make_venv()
    have = installed_extras()
    if have is None or not have.issuperset(extras):
        want = sorted((have or set()).union(extras))
        spec = f".[{','.join(want)}]" if want else "."
        pip = [venv_python(), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e"]
        UNFINISHED.touch()
        with step(f"installing vkmnn with its dependencies into .venv ({spec})"):
            process.run_quiet(
                [*pip, spec], "pip could not install the dependencies (is there a network?)"
            )
        UNFINISHED.unlink(missing_ok=True)
        STAMP.write_text(json.dumps({"pyproject": fingerprint(), "extras": want}), "utf-8")
    return venv_python()
