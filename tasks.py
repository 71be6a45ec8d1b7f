#!/usr/bin/env python3
"""One command for each job of this repository, with Python's standard library alone.

    python3 tasks.py demo | test | test-networks | codegen | shaders | bench | kompute | lint | help

Each task first makes what it needs and no more: the environment `.venv`, this package with the
right extras in it, and a Vulkan driver where one can be installed. What follows the task's name is
passed on (`tasks.py test -k conv`). With Invoke, `inv test` (and
`inv test --args="-k conv"`) runs the same functions.

VKMNN_NO_INSTALL=1 forbids every change outside the checkout (no apt-get).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "vkmnn-installed.json"
OLDEST_PYTHON = (3, 10)
WORKERS = min(os.cpu_count() or 1, 4)  # of the whole test-suite; a software driver is threaded too

SHADER_REPORT = ROOT / "build" / "shader-report.html"

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
SWIFTSHADER_ICD = Path("/usr/lib/chromium/vk_swiftshader_icd.json")  # Debian's chromium-common
SWIFTSHADER_LIBRARY = "./usr/lib/chromium/libvk_swiftshader.so"

# What only a Vulkan device can show; run once more on SwiftShader, the feature floor.
FLOOR_TESTS = (
    "tests/op/vulkan",
    "tests/op/operators",
    "tests/shader",
    "tests/model",
    "tests/memory",
)

# Kernels for subgroups of sixteen, which the software device has when it uses 512 bits (any x86
# processor will do; one without AVX-512 takes each vector in two).
WIDE_KERNELS = ("*_rotate_*_16_*", "*_rows_16_*", "*_rows_*_16_*", "group_norm_16_*", "arg_*_16_*")
WIDE = {"LP_NATIVE_VECTOR_WIDTH": "512"}

# What is run once more on the driver `kompute`, where `tasks.py kompute` has built its package.
KOMPUTE_TESTS = ("tests/op/vulkan", "tests/op/operators", "tests/model/test_light.py")
KOMPUTE = "kp==0.9.0"
KOMPUTE_PYBIND11 = "pybind11>=3,<4"  # older than 2.12: wrong data with numpy 2, without an error
KOMPUTE_SWITCHES = {
    "KOMPUTE_OPT_USE_BUILT_IN_FMT": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_PYBIND11": "OFF",
    "KOMPUTE_OPT_INSTALL": "OFF",
    "KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS": "ON",  # else it validates wherever the layer is
}
KOMPUTE_NEEDS = {  # a program or header of the build -> Debian's package
    "cmake": "cmake",
    "make": "make",
    "c++": "g++",
    "vulkan/vulkan.hpp": "libvulkan-dev",
    "fmt/core.h": "libfmt-dev",
}
CANNOT = 3
"""Exit status of a task that this machine lacks something for, which may not be installed."""

NO_VULKAN_HINT = {
    "apt-get": "sudo apt-get install libvulkan1 mesa-vulkan-drivers",
    "dnf": "sudo dnf install vulkan-loader mesa-vulkan-drivers",
    "pacman": "sudo pacman -S vulkan-icd-loader vulkan-swrast",
    "apk": "sudo apk add vulkan-loader mesa-vulkan-swrast",
    "zypper": "sudo zypper install libvulkan1 libvulkan_lvp",
    "brew": "brew install vulkan-loader molten-vk",
}


class TaskError(Exception):
    """A task that cannot go on; the message says what to do, `status` is the exit status."""

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


def run_loud(command: Sequence[object], env: Mapping[str, str] | None = None) -> int:
    """Run a command in the checkout with its output shown; return its exit status."""
    full = {**os.environ, **(env or {})}
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=full, check=False
    ).returncode


# --- packages of the system ----------------------------------------------------------------------


def apt_prefix() -> list[str] | None:
    """Return what makes `apt-get install` work here ([] or sudo), or None where it may not."""
    if os.environ.get("VKMNN_NO_INSTALL") or not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
        if asked.returncode == 0:
            return ["sudo", "-n"]
    return None


def apt_install(packages: Sequence[str]) -> bool:
    """Install Debian packages where that is allowed; False (with the reason said) where not."""
    prefix = apt_prefix()
    if prefix is None:
        return False
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    apt += ["-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=2"]
    install = [*apt, "install", "--no-install-recommends", *packages]
    names = " ".join(packages)
    try:
        with step(f"installing {names} with apt-get"):
            try:
                run_quiet(install, "")
            except TaskError:  # a fresh image has no package lists, an old one has stale lists
                run_quiet([*apt, "update"], "apt-get cannot read its package lists")
                run_quiet(install, f"apt-get cannot install {names}")
    except TaskError as error:
        say(str(error))
        return False
    return True


# --- the environment -----------------------------------------------------------------------------


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
    version = "{}.{}".format(*sys.version_info[:2])
    if importlib.util.find_spec("ensurepip") or apt_install([f"python{version}-venv"]):
        with step("making the environment .venv"):
            run_quiet(make, "Python could not make the environment .venv")
    elif importlib.util.find_spec("pip"):  # Debian's python3-pip without its python3-venv
        with step("making the environment .venv with this Python's pip"):
            run_quiet([*make, "--without-pip"], "Python could not make the environment .venv")
            pip = [sys.executable, "-m", "pip", "--python", venv_python(), "install", "-q", "pip"]
            run_quiet(pip, f"install python3-venv:  sudo apt-get install python{version}-venv")
    else:
        raise TaskError(
            f"this Python ({sys.executable}) cannot make environments: its module ensurepip is "
            f"missing.\n  On Debian and Ubuntu:  sudo apt-get install python{version}-venv"
        )


def fingerprint() -> str:
    """Return the hash of what decides which packages `.venv` holds."""
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


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
    if not venv_works():
        make_venv()
    have = installed_extras()
    if have is None or not have.issuperset(extras):
        want = sorted((have or set()).union(extras))
        spec = f".[{','.join(want)}]" if want else "."
        pip = [venv_python(), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e"]
        with step(f"installing vkmnn with its dependencies into .venv ({spec})"):
            run_quiet([*pip, spec], "pip could not install the dependencies (is there a network?)")
        STAMP.write_text(json.dumps({"pyproject": fingerprint(), "extras": want}), "utf-8")
    return venv_python()


# --- Vulkan --------------------------------------------------------------------------------------

# Asks the Vulkan loader through ctypes. Run in a child process, since a broken driver may crash it.
PROBE = r"""
import ctypes as c, json, sys

NAMES = {"win32": ["vulkan-1.dll"], "darwin": ["libvulkan.1.dylib", "libMoltenVK.dylib"]}
TYPES = ["other", "integrated", "discrete", "virtual", "software"]

def load():
    for name in NAMES.get(sys.platform, ["libvulkan.so.1"]):
        try:
            return c.CDLL(name)
        except OSError:
            pass

class InstanceInfo(c.Structure):
    _fields_ = [("s_type", c.c_int), ("next", c.c_void_p), ("flags", c.c_uint32),
                ("app", c.c_void_p), ("layer_count", c.c_uint32), ("layers", c.c_void_p),
                ("extension_count", c.c_uint32), ("extensions", c.POINTER(c.c_char_p))]

found = {"loader": False, "devices": [], "layers": []}
vk = load()
if vk:
    found["loader"] = True
    count = c.c_uint32()
    vk.vkEnumerateInstanceLayerProperties(c.byref(count), None)
    layers = c.create_string_buffer(520 * count.value)  # sizeof(VkLayerProperties)
    vk.vkEnumerateInstanceLayerProperties(c.byref(count), layers)
    for i in range(count.value):
        found["layers"].append(layers.raw[520 * i:][:256].split(b"\0")[0].decode())
    info = InstanceInfo(s_type=1)
    if sys.platform == "darwin":  # MoltenVK is a portability driver: it must be asked for
        info.flags, info.extension_count = 1, 1
        info.extensions = (c.c_char_p * 1)(b"VK_KHR_portability_enumeration")
    instance = c.c_void_p()
    if vk.vkCreateInstance(c.byref(info), None, c.byref(instance)) == 0:
        vk.vkEnumeratePhysicalDevices(instance, c.byref(count), None)
        devices = (c.c_void_p * count.value)()
        vk.vkEnumeratePhysicalDevices(instance, c.byref(count), devices)
        for device in devices:
            raw = c.create_string_buffer(4096)  # VkPhysicalDeviceProperties, with room to spare
            vk.vkGetPhysicalDeviceProperties(c.c_void_p(device), raw)
            kind = int.from_bytes(raw.raw[16:20], sys.byteorder)
            name = raw.raw[20:276].split(b"\0")[0].decode(errors="replace")
            found["devices"].append([name, TYPES[kind] if kind < len(TYPES) else "other"])
print(json.dumps(found))
"""


def probe_vulkan(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what Vulkan offers: {"loader": bool, "devices": [[name, type]], "layers": [name]}."""
    nothing = {"loader": False, "devices": [], "layers": []}
    try:
        asked = subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say("the Vulkan driver did not answer for 60 s")
        return nothing
    if asked.returncode:
        say(f"the Vulkan driver failed (status {asked.returncode}): {asked.stderr.strip()[-300:]}")
        return nothing
    # A driver may write to the standard output too: the answer is the last line.
    answer: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return answer


def vulkan_hint() -> str:
    """Return the command that installs a Vulkan driver on a system like this."""
    for tool, command in NO_VULKAN_HINT.items():
        if shutil.which(tool):
            return f"{command}    (a software driver; for a GPU, its vendor's driver)"
    return "install the driver of your GPU's vendor: it brings Vulkan"


def ensure_vulkan() -> bool:
    """Find a Vulkan device, or install Mesa's drivers; False, with what to do said, without one."""
    found = probe_vulkan()
    if not found["devices"] and apt_install(["libvulkan1", "mesa-vulkan-drivers"]):
        found = probe_vulkan()
    for name, kind in found["devices"]:
        say(f"Vulkan device: {name} ({kind})")
    if found["devices"]:
        return True
    say("no Vulkan device: " + ("no driver" if found["loader"] else "no loader (libvulkan)"))
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        if variable in os.environ:
            say(f"{variable}={os.environ[variable]} decides which drivers are seen")
    say(f"to get one:  {vulkan_hint()}")
    return False


def ensure_validation() -> bool:
    """Find the Khronos validation layer, or install it; False, with the loss said, without it."""
    if VALIDATION_LAYER in probe_vulkan()["layers"]:
        return True
    if apt_install(["vulkan-validationlayers"]) and VALIDATION_LAYER in probe_vulkan()["layers"]:
        return True
    say("no Khronos validation layer (package vulkan-validationlayers): its tests are skipped")
    return False


def ensure_spirv_val() -> bool:
    """Find spirv-val, or install it; False, with the loss said, without it."""
    if shutil.which("spirv-val") or (apt_install(["spirv-tools"]) and shutil.which("spirv-val")):
        return True
    say("no spirv-val (package spirv-tools): the test that validates the shaders is skipped")
    return False


def ensure_swiftshader() -> Path | None:
    """Return the driver file of SwiftShader; fetched into `.venv` from Debian's chromium-common.

    Nothing is installed: one library is taken out of the package.
    """
    own = VENV / "swiftshader"
    for icd in (SWIFTSHADER_ICD, own / "icd.json"):
        if icd.is_file():
            return icd
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        with tempfile.TemporaryDirectory() as folder:
            script = (
                f'cd "{folder}" && apt-get -q download chromium-common && '
                "dpkg-deb --fsys-tarfile chromium-common_*.deb | "
                f'tar -xO "{SWIFTSHADER_LIBRARY}" > libvk_swiftshader.so'
            )
            try:
                with step("fetching SwiftShader (the feature floor; 30 MB)"):
                    run_quiet(["bash", "-o", "pipefail", "-c", script], "")
                own.mkdir(exist_ok=True)
                shutil.copy(Path(folder) / "libvk_swiftshader.so", own)
            except TaskError:
                pass  # not on Ubuntu, or no package lists: said below
            else:
                driver = {"library_path": "./libvk_swiftshader.so", "api_version": "1.1.0"}
                content = {"file_format_version": "1.0.0", "ICD": driver}
                (own / "icd.json").write_text(json.dumps(content), "utf-8")
                return own / "icd.json"
    say(
        "no SwiftShader (Debian's package chromium-common): the run on the feature floor is skipped"
    )
    return None


# --- Kompute -------------------------------------------------------------------------------------

# Run by the environment's Python: status 1 with the reason where the driver cannot be used.
KOMPUTE_CHECK = """
import sys
from vkmnn.errors import VkmnnError
from vkmnn.runtime.device import open_device
try:
    print(open_device(driver="kompute", validation=False).info.name)
except VkmnnError as error:
    sys.exit(str(error))
"""


def has_kompute(python: Path) -> bool:
    """Tell whether the environment holds a `kp` of the wanted version that can be imported."""
    wanted = KOMPUTE.partition("==")[2]
    code = f"import kp, sys; sys.exit(kp.__version__ != {wanted!r})"
    asked = subprocess.run([str(python), "-c", code], capture_output=True, check=False)
    return asked.returncode == 0


def kompute_folder(python: Path) -> Path:
    """Return the cache folder of the wheel, named by all that decides what it holds."""
    code = "import platform, sys; print(sys.version, platform.platform(), platform.machine())"
    asked = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    libraries = sorted(path.name for path in Path("/usr/lib").glob("*/libfmt.so.*"))
    recipe = (KOMPUTE, KOMPUTE_PYBIND11, KOMPUTE_SWITCHES, asked.stdout, libraries)
    base = os.environ.get("VKMNN_CACHE_DIR") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vkmnn"
    )
    return Path(base, "kompute", hashlib.sha256(repr(recipe).encode()).hexdigest()[:16])


def ensure_kompute_tools(python: Path) -> None:
    """Find what the build needs, or install it.

    Raises:
        CannotError: something is missing and may not be installed.
    """
    include = "import sysconfig; print(sysconfig.get_path('include'))"
    asked = subprocess.run([str(python), "-c", include], capture_output=True, text=True, check=True)
    needs = {**KOMPUTE_NEEDS, asked.stdout.strip() + "/Python.h": "python3-dev"}

    def missing() -> list[str]:
        return [
            package
            for name, package in needs.items()
            if not shutil.which(name) and not Path("/usr/include", name).is_file()
        ]

    if missing() and not (apt_install(missing()) and not missing()):
        names = " ".join(missing())
        raise CannotError(
            f"Kompute cannot be built here: missing are {names}\n"
            f"  On Debian and Ubuntu:  sudo apt-get install {names}"
        )


def build_kompute(python: Path, folder: Path) -> None:
    """Compile `kp` into a wheel in `folder`.

    Raises:
        CannotError: what it is built from cannot be had.
        TaskError: it does not compile.
    """
    ensure_kompute_tools(python)
    pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as text:
        scratch = Path(text)
        headers = scratch / "pybind11"
        try:
            run_quiet([*pip, "install", "--target", headers, KOMPUTE_PYBIND11], "pip failed")
        except TaskError as error:
            raise CannotError(f"Kompute cannot be built here: no pybind11\n{error}") from error
        # kp's setup.py loses this variable, and CMake would take any Python that it finds.
        tools = scratch / "python.cmake"
        tools.write_text(f'set(PYTHON_EXECUTABLE "{python}" CACHE FILEPATH "")\n', "utf-8")
        env = {
            **KOMPUTE_SWITCHES,
            "CMAKE_TOOLCHAIN_FILE": str(tools),
            "KOMPUTE_PYTHON_NUM_PARALLEL_THREADS": str(WORKERS),
            "pybind11_DIR": str(headers / "pybind11" / "share" / "cmake" / "pybind11"),
        }
        wheel = [*pip, "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", scratch, KOMPUTE]
        with step(f"compiling {KOMPUTE} (minutes; the result is kept in {folder})"):
            run_quiet(wheel, "Kompute does not compile; docs/kompute.md shows the steps", env)
        folder.mkdir(parents=True, exist_ok=True)
        for made in scratch.glob("kp-*.whl"):
            shutil.copy(made, folder)


def install_kompute(python: Path) -> None:
    """Put `kp` into the environment, compiled when no earlier run has done it.

    Raises:
        TaskError: it cannot be built.
    """
    folder = kompute_folder(python)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for fresh in (False, True):
        if fresh:
            build_kompute(python, folder)
        wheels = sorted(folder.glob("kp-*.whl"))
        if wheels:
            # It asks for numpy 1; built against pybind11 3 it works with numpy 2.
            run_quiet([*pip, "--no-deps", "--force-reinstall", wheels[0]], "pip cannot install kp")
            if has_kompute(python):
                return
    raise TaskError("Kompute was built, but cannot be imported; see docs/kompute.md")


# --- the tasks -----------------------------------------------------------------------------------


def demo(args: Sequence[str]) -> int:
    """Recognise handwritten digits on this machine's Vulkan device."""
    python = prepare()
    ensure_vulkan()
    return run_loud([python, ROOT / "examples" / "digits" / "demo.py", *args])


def test(args: Sequence[str]) -> int:
    """Run the tests; without arguments all of them, on SwiftShader too."""
    python = prepare("test")
    env = {}
    if ensure_vulkan():
        env["VKMNN_REQUIRE_VULKAN"] = "1"  # a test that finds no device fails, not skips
        if ensure_validation():
            env["VKMNN_REQUIRE_VALIDATION"] = "1"
    if ensure_spirv_val():
        env["VKMNN_REQUIRE_SPIRV_VAL"] = "1"
    kompute = has_kompute(python)
    if kompute:
        env["VKMNN_REQUIRE_KOMPUTE"] = "1"
    pytest = [python, "-m", "pytest"]
    if args:
        return run_loud([*pytest, *args], env)

    icd = ensure_swiftshader()
    if icd:
        env["VKMNN_SWIFTSHADER_ICD"] = str(icd)
    pytest += ["-q", "-n", str(WORKERS), "-m"]
    say("the whole suite on the default device")
    status = run_loud([*pytest, "not torch"], env)
    kernels = [python, "-m", "pytest", "-q", "-n", str(WORKERS), "--vkmnn-shaders"]
    if "VKMNN_REQUIRE_VULKAN" in env:
        say("every variant of every kernel on the default device")
        status = run_loud([*kernels, "--vkmnn-report", SHADER_REPORT], env) or status
        status = test_wide_kernels(kernels, env) or status
    if kompute:
        say("operators and networks on the driver kompute")
        present = [place for place in KOMPUTE_TESTS if (ROOT / place).exists()]
        own = {**env, "VKMNN_DRIVER": "kompute"}
        status = run_loud([*pytest, "not torch and not slow", *present], own) or status
    else:
        say("without the driver kompute; python3 tasks.py kompute adds it")
    if icd:
        env.update(VKMNN_REQUIRE_VULKAN="1", VK_DRIVER_FILES=str(icd), VK_ICD_FILENAMES=str(icd))
        say("the device tests on SwiftShader, the feature floor")
        present = [folder for folder in FLOOR_TESTS if (ROOT / folder).is_dir()]
        status = run_loud([*pytest, "not torch and not slow", *present], env) or status
        say("kernel variants on SwiftShader")
        # Kernels that rotate subgroups of eight are beyond it, and it takes minutes to compile an
        # emulated one.
        status = run_loud([*kernels, "-k", "not rotate"], env) or status
    return status


def test_wide_kernels(suite: Sequence[object], env: Mapping[str, str]) -> int:
    """Run the kernels for subgroups of sixteen; most are beyond a device that has eight."""
    say("kernels for subgroups of sixteen")
    chosen = [part for pattern in WIDE_KERNELS for part in ("--vkmnn-kernel", pattern)]
    return run_loud([*suite, *chosen], {**env, **WIDE})


def test_networks(args: Sequence[str]) -> int:
    """Run real networks as PyTorch exports them (installs PyTorch)."""
    python = prepare("networks")
    env = {"VKMNN_REQUIRE_VULKAN": "1"} if ensure_vulkan() else {}
    return run_loud([python, "-m", "pytest", "-m", "torch", *args], env)


def codegen(args: Sequence[str]) -> int:
    """Generate the shaders; --check says whether the committed ones are up to date."""
    return run_loud([prepare("codegen"), "-m", "vkmnn.codegen", *args])


def shaders(args: Sequence[str]) -> int:
    """Run every shader variant against numpy; a page shows the outcome (docs/shader-tests.md)."""
    python = prepare("test")
    if not ensure_vulkan():
        return 1
    ensure_validation()
    suite = [python, "-m", "pytest", "-q", "-n", str(WORKERS), "--vkmnn-shaders"]
    status = run_loud([*suite, "--vkmnn-report", SHADER_REPORT, *args])
    if not args:
        status = test_wide_kernels(suite, {}) or status
    if SHADER_REPORT.is_file():
        say(f"the report: {SHADER_REPORT}")
    return status


def bench(args: Sequence[str]) -> int:
    """Measure networks, overhead, kernels, ... or all; see docs/benchmarks.md."""
    python = prepare("bench")
    try:
        prepare("peers")
    except TaskError as error:  # ncnn has no package for every system
        say(f"{error}\n  the comparison goes without ncnn")
    command = list(args) or ["networks"]
    exports = command[0] not in ("overhead", "gemm", "drivers") and "--light" not in command
    if exports and not any(arg.endswith(".onnx") or arg == "--help" for arg in command):
        prepare("networks")
    ensure_vulkan()
    return run_loud([python, "-m", "benchmarks", *command])


def kompute(args: Sequence[str]) -> int:
    """Build Kompute's package `kp`, for the driver of that name, and try it."""
    python = prepare()
    ensure_vulkan()
    if not has_kompute(python):
        install_kompute(python)
    return run_loud([python, "-c", KOMPUTE_CHECK])


def lint(args: Sequence[str]) -> int:
    """Check style, format and types; --fix repairs what can be repaired."""
    python = prepare("lint")
    fix = "--fix" in args
    commands = (
        ["ruff", "check", *(["--fix"] if fix else [])],
        ["ruff", "format", *([] if fix else ["--check"])],
        ["mypy"],
    )
    failed = [command[0] for command in commands if run_loud([python, "-m", *command])]
    say(f"failed: {', '.join(failed)}" if failed else "lint: all well")
    return int(bool(failed))


TASKS: dict[str, Callable[[Sequence[str]], int]] = {
    "demo": demo,
    "test": test,
    "test-networks": test_networks,
    "codegen": codegen,
    "shaders": shaders,
    "bench": bench,
    "kompute": kompute,
    "lint": lint,
}


def usage() -> str:
    """Return the list of tasks."""
    lines = ["python3 tasks.py TASK [arguments of the task]", ""]
    lines += [f"  {name:14} {(task.__doc__ or '').splitlines()[0]}" for name, task in TASKS.items()]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run the task that `argv` names; return the exit status."""
    if sys.version_info < OLDEST_PYTHON:  # said here, since pip's message would come much later
        say("vkmnn needs Python {}.{} or newer".format(*OLDEST_PYTHON))
        return 2
    if not argv or argv[0] in ("help", "-h", "--help"):
        print(usage())
        return 0
    if argv[0] not in TASKS:
        say(f"there is no task '{argv[0]}'\n\n{usage()}")
        return 2
    try:
        return TASKS[argv[0]](argv[1:])
    except TaskError as error:
        say(str(error))
        return error.status
    except KeyboardInterrupt:
        return 130


try:
    import invoke
except ImportError:
    pass
else:

    def _for_invoke(name: str) -> Any:
        def body(context: Any, args: str = "") -> None:
            raise SystemExit(main([name, *shlex.split(args)]))

        body.__doc__ = TASKS[name].__doc__
        return invoke.task(body, name=name)

    namespace = invoke.Collection(*map(_for_invoke, TASKS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
