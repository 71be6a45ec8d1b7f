"""QEMU, as a processor that this machine does not have; fetched where it is not installed."""

from __future__ import annotations

import platform
import shlex
import shutil
from pathlib import Path

from tools import apt, process
from tools.process import CannotError, step

PROGRAMS = ("qemu-x86_64-static", "qemu-x86_64")
PACKAGE = "qemu-user-static"
WITHOUT_VNNI = "Haswell-noTSX"
"""AVX2, and neither AVX-512 nor VNNI."""


def without_vnni() -> str:
    """Return the command that runs a program as on a processor without VNNI.

    Raises:
        CannotError: it cannot be had here.
        TaskError: fetching it failed.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise CannotError("the emulated processor is an x86, and so must be this Python")
    return shlex.join([str(_program()), "-cpu", WITHOUT_VNNI])


def _program() -> Path:
    installed = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if installed is not None:
        return Path(installed)
    folder = process.cache_folder() / "emulator"
    fetched = folder / "content" / "usr" / "bin" / PROGRAMS[0]
    if not fetched.is_file():
        with step("fetching QEMU"):
            apt.unpack(PACKAGE, apt.release().get("VERSION_CODENAME", ""), folder)
    if not fetched.is_file():
        raise CannotError(f"{PACKAGE} has no {PROGRAMS[0]} here")
    return fetched
