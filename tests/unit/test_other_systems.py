"""Import and use on Windows and macOS, as far as a process can pretend to be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRETEND = """
import asyncio, concurrent.futures, ctypes, multiprocessing, subprocess, tempfile, zipfile, tarfile
import importlib, mmap, os, pkgutil, sys, types, webbrowser, http.server, logging.handlers
import cffi, numpy, onnx, platformdirs, rich.console, rich.progress, rich.table, typer, typer.main
import sysconfig, zoneinfo
for name in ("PIL.Image", "typer._adapters"):  # these ask for the system on import
    try:
        importlib.import_module(name)
    except ImportError:
        pass
sysconfig.get_config_vars()

system = SYSTEM
sys.platform = system
for name in ("fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "preadv",
             "pread", "posix_fadvise", "posix_fallocate", "O_DIRECT", "memfd_create"):
    if hasattr(os, name):
        delattr(os, name)
for name in [each for each in dir(mmap) if each.startswith("MADV_")]:
    delattr(mmap, name)
if system == "win32":
    for name in ("getuid", "geteuid", "getgid", "sysconf", "sysconf_names", "O_NONBLOCK",
                 "O_NOFOLLOW", "O_CLOEXEC", "fchmod", "killpg", "setsid", "uname", "nice"):
        if hasattr(os, name):
            delattr(os, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "readline", "pty"):
        sys.modules[name] = None
    held = types.ModuleType("msvcrt")
    held.LK_NBLCK, held.LK_UNLCK = 1, 0
    held.locking = lambda handle, mode, count: None
    sys.modules["msvcrt"] = held
    real = ctypes.CDLL
    class Library(real):
        def __init__(self, name, *more, **options):
            assert name is not None, "Windows has no symbols of the process"
            super().__init__(name, *more, **options)
    ctypes.CDLL = Library
"""

EVERYTHING = """
import vkmnn
optional = []
for found in pkgutil.walk_packages(vkmnn.__path__, "vkmnn."):
    if found.name.endswith("__main__") or ".docs" in found.name:
        continue
    try:
        importlib.import_module(found.name)
    except (ImportError, vkmnn.VkmnnError) as error:
        text = str(error)
        assert not any(f"'{name}'" in text for name in (
            "fcntl", "resource", "pwd", "grp", "termios", "tty", "readline", "pty")), text
        optional.append(found.name)
print(len(optional), "modules need other packages:", *optional)
"""

USE = """
import vkmnn
from pathlib import Path
from vkmnn.cli.app import run_cli

model = "examples/digits/digits.onnx"
with vkmnn.InferenceSession(model, device="cpu") as session:
    session.run(None, {"image": numpy.zeros((2, 1, 8, 8), numpy.float32)})
out = Path(FOLDER)
for line in (
    ["run", model, "-d", "cpu", "-o", str(out / "out.npz")],
    ["info", model],
    ["version"],
    ["convert", model, str(out / "digits.vkmnn"), "-d", "cpu"],
    ["run", str(out / "digits.vkmnn"), "-d", "cpu"],
    ["map", model, str(out / "x.npy"), "-o", str(out / "out.jsonl"), "--devices", "cpu"],
):
    if line[0] == "map":
        numpy.save(out / "x.npy", numpy.zeros((1, 8, 8), numpy.float32))
    assert run_cli(line) == 0, line
"""


@pytest.mark.parametrize("system", ["win32", "darwin"])
@pytest.mark.parametrize("part", [EVERYTHING, USE], ids=["import", "use"])
def test_as_on_another_system(system: str, part: str, tmp_path: Path) -> None:
    code = (PRETEND + part).replace("SYSTEM", repr(system)).replace("FOLDER", repr(str(tmp_path)))
    env = {**os.environ, "VKMNN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_text_files_have_a_declared_encoding() -> None:
    """Windows would read them in the encoding of its region."""
    code = (
        "import sys, warnings; sys.flags.warn_default_encoding or sys.exit('no flag')\n"
        "warnings.simplefilter('error', EncodingWarning)\n"
        "import vkmnn\nfrom vkmnn.cli.app import run_cli\n"
        "for line in (['info', 'examples/digits/digits.onnx'],\n"
        "             ['run', 'examples/digits/digits.onnx', '-d', 'cpu', '--json']):\n"
        "    assert run_cli(line) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", code], cwd=ROOT, capture_output=True,
        text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
