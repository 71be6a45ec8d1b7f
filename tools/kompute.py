"""Kompute's Python package `kp`, built for the environment and kept between builds."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools import apt, process
from tools.process import WORKERS, CannotError, TaskError, step

PACKAGE = "kp==0.9.0"
PYBIND11 = "pybind11>=3,<4"  # older than 2.12: wrong data with numpy 2, without an error
SWITCHES = {
    "KOMPUTE_OPT_USE_BUILT_IN_FMT": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_PYBIND11": "OFF",
    "KOMPUTE_OPT_INSTALL": "OFF",
    "KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS": "ON",  # else it validates wherever the layer is
}
NEEDS = {  # a program or header of the build -> Debian's package
    "cmake": "cmake",
    "make": "make",
    "c++": "g++",
    "vulkan/vulkan.hpp": "libvulkan-dev",
    "fmt/core.h": "libfmt-dev",
}

# Run by the environment's Python: status 1 with the reason where the driver cannot be used.
CHECK = """
import sys
from vkmnn.errors import VkmnnError
from vkmnn.runtime.device import open_device
try:
    print(open_device(driver="kompute", validation=False).info.name)
except VkmnnError as error:
    sys.exit(str(error))
"""


def is_installed(python: Path) -> bool:
    """Tell whether the environment holds a `kp` of the wanted version that can be imported."""
    wanted = PACKAGE.partition("==")[2]
    code = f"import kp, sys; sys.exit(kp.__version__ != {wanted!r})"
    asked = subprocess.run([str(python), "-c", code], capture_output=True, check=False)
    return asked.returncode == 0


def wheel_folder(python: Path) -> Path:
    """Return the cache folder of the wheel, named by all that decides what it holds."""
    code = "import platform, sys; print(sys.version, platform.platform(), platform.machine())"
    asked = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    libraries = sorted(path.name for path in Path("/usr/lib").glob("*/libfmt.so.*"))
    recipe = (PACKAGE, PYBIND11, SWITCHES, asked.stdout, libraries)
    name = hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]
    return process.cache_folder() / "kompute" / name


def ensure_compiler(python: Path) -> None:
    """Find what the build needs, or install it.

    Raises:
        CannotError: something is missing and may not be installed.
    """
    include = "import sysconfig; print(sysconfig.get_path('include'))"
    asked = subprocess.run([str(python), "-c", include], capture_output=True, text=True, check=True)
    needs = {**NEEDS, asked.stdout.strip() + "/Python.h": "python3-dev"}

    def missing() -> list[str]:
        return [
            package
            for name, package in needs.items()
            if not shutil.which(name) and not Path("/usr/include", name).is_file()
        ]

    if missing() and not (apt.install(missing()) and not missing()):
        names = " ".join(missing())
        raise CannotError(
            f"Kompute cannot be built here: missing are {names}\n"
            f"  On Debian and Ubuntu:  sudo apt-get install {names}"
        )


def build(python: Path) -> Path:
    """Compile `kp` into a wheel; return its folder.

    Raises:
        CannotError: what it is built from cannot be had.
        TaskError: it does not compile.
    """
    ensure_compiler(python)
    folder = wheel_folder(python)  # not before: the libraries that it is named by are there now
    pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as text:
        scratch = Path(text)
        headers = scratch / "pybind11"
        try:
            process.run_quiet([*pip, "install", "--target", headers, PYBIND11], "pip failed")
        except TaskError as error:
            raise CannotError(f"Kompute cannot be built here: no pybind11\n{error}") from error
        # kp's setup.py loses this variable, and CMake would take any Python that it finds.
        tools = scratch / "python.cmake"
        tools.write_text(f'set(PYTHON_EXECUTABLE "{python}" CACHE FILEPATH "")\n', "utf-8")
        env = {
            **SWITCHES,
            "CMAKE_TOOLCHAIN_FILE": str(tools),
            "KOMPUTE_PYTHON_NUM_PARALLEL_THREADS": str(WORKERS),
            "pybind11_DIR": str(headers / "pybind11" / "share" / "cmake" / "pybind11"),
        }
        # PEP 517: older versions of pip would take setuptools of the environment, without wheel.
        wheel = [*pip, "wheel", "--use-pep517", "--no-deps", "--no-cache-dir"]
        wheel += ["--wheel-dir", scratch, PACKAGE]
        with step(f"compiling {PACKAGE} (minutes; the result is kept in {folder})"):
            process.run_quiet(
                wheel, "Kompute does not compile; docs/kompute.md shows the steps", env
            )
        folder.mkdir(parents=True, exist_ok=True)
        for made in scratch.glob("kp-*.whl"):
            shutil.copy(made, folder)
    return folder


def install(python: Path) -> None:
    """Put `kp` into the environment, compiled when no earlier run has done it.

    Raises:
        TaskError: it cannot be built.
    """
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for kept in (True, False):
        folder = wheel_folder(python) if kept else build(python)
        wheels = sorted(folder.glob("kp-*.whl"))
        if wheels:
            # It asks for numpy 1; built against pybind11 3 it works with numpy 2.
            process.run_quiet(
                [*pip, "--no-deps", "--force-reinstall", wheels[0]], "pip cannot install kp"
            )
            if is_installed(python):
                return
    raise TaskError("Kompute was built, but cannot be imported; see docs/kompute.md")


def ensure(python: Path) -> bool:
    """Find `kp`, or build it; False, with the reason in one line, where that cannot be."""
    try:
        if not is_installed(python):
            install(python)
    except TaskError as error:
        reason = str(error).splitlines()[0]
        process.say(f"without the driver kompute: {reason} (python3 tasks.py kompute says more)")
        return False
    return True
