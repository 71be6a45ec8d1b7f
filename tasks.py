#!/usr/bin/env python3
"""One command for each job of this repository, with Python's standard library alone.

    python3 tasks.py prepare | demo | test | test-networks | test-ray | test-without-vnni
                     | drivers | compilers | codegen | shaders | bench | kompute | lint | site
                     | release | help

Each task first creates only what it needs: the environment `.venv`, this package with the right
extras in it, and a Vulkan driver if one can be installed. Arguments after the task's name are
passed on (`tasks.py test -k conv`). With Invoke, `inv test` (and `inv test --args="-k conv"`) runs
the same functions. The implementation is in the folder `tools`.

VKMNN_NO_INSTALL=1 forbids every change outside the checkout (no apt-get).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools import compilers as gpu_compilers
from tools import emulator, environment, matrix, process, vulkan
from tools import kompute as kp
from tools import release as releases
from tools.environment import OLDEST_PYTHON
from tools.process import ROOT, WORKERS, TaskError, say

SHADER_REPORT = ROOT / "build" / "shader-report.html"

# Kernels for subgroups of sixteen, which the software device has when it uses 512 bits (any x86
# processor will do; one without AVX-512 splits each vector in two).
WIDE_KERNELS = (
    *("*_rotate_*_16_*", "*_rows_16_*", "*_rows_*_16_*", "group_norm_16_*", "arg_*_16_*"),
    "*_subgroup_16_*",
)
WIDE = {"LP_NATIVE_VECTOR_WIDTH": "512"}

# One test of each kind that multiplies quantised values and compares with onnxruntime.
QUANTIZED = (
    "tests/unit/core/test_exact_sums.py",
    "tests/model/test_quantized_transformers.py::test_ranges_of_a_run_take_a_dispatch_each",
)

THINNER = ("--vkmnn-sample", "--vkmnn-pairs", "--vkmnn-pipelines=", "-k=not coop")
"""Options of the shader suite that leave out variants or cases, but choose no kernels."""

WORKFLOWS, FORMS = ROOT / ".github" / "workflows", ROOT / ".github" / "ISSUE_TEMPLATE"

BESIDE = ("kompute", "mesa-25", "swiftshader")
"""The drivers that `test --all` runs partially, in addition to the default one."""


def demo(args: Sequence[str]) -> int:
    """Recognise handwritten digits on this machine's Vulkan device."""
    python = environment.prepare("codegen")
    vulkan.ensure_vulkan()
    return process.run_loud([python, ROOT / "examples" / "digits" / "demo.py", *args])


def prepare(args: Sequence[str]) -> int:
    """Install the named extras into .venv, all at once."""
    environment.prepare(*args)
    return 0


WANTED = {
    "": "not torch and not soak and not slow",
    "--long": "not torch and not elsewhere",
    "--all": "not torch",
}
"""Option of `test` -> the tests by their markers."""


def test(args: Sequence[str]) -> int:
    """Run the tests; --long: the long ones too; --all: also every kernel variant, other drivers."""
    extent = next((arg for arg in args if arg in WANTED), "")
    everything = extent == "--all"
    chosen = [arg for arg in args if arg not in WANTED]
    python = environment.prepare("test")
    device = vulkan.ensure_vulkan()
    if not chosen and device:
        kp.ensure(python)
    env = matrix.promises(python, device)
    pytest = [python, "-m", "pytest"]
    if chosen:
        env |= matrix.second_driver(fetched=False)
        return process.run_loud([*pytest, *chosen], env)

    env |= matrix.second_driver()
    pytest += ["-q", "-n", str(WORKERS)]
    say("the whole suite on the default device")
    # Few tests take most of the time: a worker that has done its own takes over from others.
    status = process.run_loud([*pytest, "--dist", "worksteal", "-m", WANTED[extent]], env)
    if not everything:
        say("python3 tasks.py test --all adds long tests, every kernel variant and other drivers")
    elif device:
        kernels = [*pytest, "--vkmnn-shaders"]
        say("every variant of every kernel on the default device")
        status = process.run_loud([*kernels, "--vkmnn-report", SHADER_REPORT], env) or status
        status = test_wide_kernels(kernels, env) or status
        status = matrix.run(BESIDE, short=True).status or status
    return status


def test_without_vnni(args: Sequence[str]) -> int:
    """Compare the quantised tests with onnxruntime on an emulated processor without VNNI."""
    python = environment.prepare("test")
    vulkan.ensure_vulkan()
    env = {"VKMNN_ORACLE_EMULATOR": emulator.without_vnni()}
    chosen = list(args) or [*QUANTIZED, "-q"]
    return process.run_loud([python, "-m", "pytest", *chosen], env)


def drivers(args: Sequence[str]) -> int:
    """Run the tests on other Vulkan drivers, downloaded if possible; --list shows them."""
    return matrix.main(args)


def compilers(args: Sequence[str]) -> int:
    """Compile every kernel for GPUs that are not here; see docs/gpu-compilers.md."""
    return gpu_compilers.main(args)


def test_wide_kernels(suite: Sequence[object], env: Mapping[str, str]) -> int:
    """Run the kernels for subgroups of sixteen; most exceed a device with subgroups of eight."""
    say("kernels for subgroups of sixteen")
    chosen = [part for pattern in WIDE_KERNELS for part in ("--vkmnn-kernel", pattern)]
    return process.run_loud([*suite, *chosen], {**env, **WIDE})


def test_networks(args: Sequence[str]) -> int:
    """Run real networks as PyTorch exports them (installs PyTorch)."""
    python = environment.prepare("networks")
    env = {"VKMNN_REQUIRE_VULKAN": "1"} if vulkan.ensure_vulkan() else {}
    return process.run_loud([python, "-m", "pytest", "-m", "torch", *args], env)


def test_ray(args: Sequence[str]) -> int:
    """Run batches and deployments on a local cluster of two nodes (installs Ray)."""
    python = environment.prepare("ray", "test")
    env = {"VKMNN_REQUIRE_VULKAN": "1"} if vulkan.ensure_vulkan() else {}
    return process.run_loud([python, "-m", "pytest", "-m", "ray", *args], env)


def codegen(args: Sequence[str]) -> int:
    """Lock and compile the shaders; --check reports whether the lock is up to date."""
    return process.run_loud([environment.prepare("codegen"), "-m", "vkmnn.codegen", *args])


def shaders(args: Sequence[str]) -> int:
    """Run every shader variant against numpy; a page shows the outcome (docs/shader-tests.md)."""
    python = environment.prepare("test")
    if not vulkan.ensure_vulkan():
        return 1
    vulkan.ensure_validation()
    suite = [python, "-m", "pytest", "-q", "-n", str(WORKERS), "--vkmnn-shaders"]
    status = process.run_loud([*suite, "--vkmnn-report", SHADER_REPORT, *args])
    if all(arg.startswith(THINNER) for arg in args):  # these name no kernels
        status = test_wide_kernels([*suite, *args], {}) or status
    if SHADER_REPORT.is_file():
        say(f"the report: {SHADER_REPORT}")
    return status


def bench(args: Sequence[str]) -> int:
    """Measure networks, overhead, kernels, ... or all; see docs/benchmarks.md."""
    python = environment.prepare("bench")
    try:
        environment.prepare("peers")
    except TaskError as error:  # MNN and ncnn have no packages for every system
        say(f"{error}\n  the comparison goes without MNN and ncnn")
    command = list(args) or ["networks"]
    exports = command[0] not in ("overhead", "gemm", "drivers", "llm") and "--light" not in command
    if exports and not any(arg.endswith(".onnx") or arg == "--help" for arg in command):
        environment.prepare("networks")
    vulkan.ensure_vulkan()
    return process.run_loud([python, "-m", "benchmarks", *command])


def kompute(args: Sequence[str]) -> int:
    """Build Kompute's package `kp`, for the driver of that name, and try it."""
    python = environment.prepare()
    vulkan.ensure_vulkan()
    if not kp.is_installed(python):
        kp.install(python)
    return process.run_loud([python, "-c", kp.CHECK])


def lint(args: Sequence[str]) -> int:
    """Check style, format, types and workflows; --fix repairs what can be repaired."""
    python = environment.prepare("lint")
    fix = "--fix" in args
    schema = [python, "-m", "check_jsonschema", "--builtin-schema"]
    checks = {
        "ruff check": [python, "-m", "ruff", "check", *(["--fix"] if fix else [])],
        "ruff format": [python, "-m", "ruff", "format", *([] if fix else ["--check"])],
        "mypy": [python, "-m", "mypy"],
        "workflows": [*schema, "vendor.github-workflows", *WORKFLOWS.glob("*.yml")],
        "issue forms": [*schema, "vendor.github-issue-forms", *FORMS.glob("[!c]*.yml")],
        "zizmor": [python.parent / "zizmor", "--offline", "-q", WORKFLOWS],
    }
    failed = [name for name, check in checks.items() if process.run_loud(check)]
    say(f"failed: {', '.join(failed)}" if failed else "lint: ok")
    return int(bool(failed))


def site(args: Sequence[str]) -> int:
    """Build the site into build/site, strictly; --serve shows it while pages are written."""
    python = environment.prepare("images", "site", "test")
    command = ["serve"] if "--serve" in args else ["build", "--strict", "-q"]
    status = process.run_loud([python, "-m", "mkdocs", *command], {"NO_MKDOCS_2_WARNING": "1"})
    if not status:
        say(f"the site: {ROOT / 'build' / 'site' / 'index.html'}")
    return status


def release(args: Sequence[str]) -> int:
    """Build and check a release into dist/; --lock renews constraints.txt."""
    return releases.main(args)


TASKS: dict[str, Callable[[Sequence[str]], int]] = {
    "prepare": prepare,
    "demo": demo,
    "test": test,
    "test-networks": test_networks,
    "test-ray": test_ray,
    "test-without-vnni": test_without_vnni,
    "drivers": drivers,
    "compilers": compilers,
    "codegen": codegen,
    "shaders": shaders,
    "bench": bench,
    "kompute": kompute,
    "lint": lint,
    "site": site,
    "release": release,
}


def usage() -> str:
    """Return the list of tasks."""
    lines = ["python3 tasks.py TASK [arguments of the task]", ""]
    lines += [f"  {name:14} {(task.__doc__ or '').splitlines()[0]}" for name, task in TASKS.items()]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run the task that `argv` names; return the exit status."""
    if sys.version_info < OLDEST_PYTHON:  # reported here, since pip's message would come much later
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
