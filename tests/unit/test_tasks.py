"""tasks.py: its decisions, without installing anything."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tasks as tasks_module
from tools import (
    apt,
    emulator,
    environment,
    kompute,
    matrix,
    process,
    vulkan,
)
from tools.process import CannotError, TaskError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, in a checkout that is an empty folder."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(process, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(environment, "UNFINISHED", tmp_path / ".venv" / "installing")
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "cache"))
    return tasks_module


@pytest.fixture
def ran(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that the tasks run; each succeeds and does nothing."""
    commands: list[list[str]] = []

    def record(command: Sequence[object], *_: object) -> int:
        commands.append([str(part) for part in command])
        return 0

    monkeypatch.setattr(process, "run_quiet", record)
    monkeypatch.setattr(process, "run_loud", record)
    return commands


@pytest.fixture
def venv(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing environment."""
    environment.VENV.mkdir()
    monkeypatch.setattr(environment, "venv_works", lambda: True)


def found(devices: Sequence[Sequence[str]] = (), layers: Sequence[str] = ()) -> dict[str, Any]:
    return {"loader": True, "devices": list(devices), "layers": list(layers)}


LAVAPIPE = [["llvmpipe", "software"]]


def test_file_needs_the_standard_library_alone():
    command = [sys.executable, "-S", "-E", "-s", "tasks.py", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


@pytest.mark.parametrize("argv", [[], ["help"], ["--help"]])
def test_help_lists_every_task(tasks, capsys, argv):
    assert tasks.main(argv) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("demo", "test", "codegen", "bench", "lint"))


def test_unknown_task_is_refused(tasks, capsys):
    assert tasks.main(["tset"]) == 2
    assert "tset" in capsys.readouterr().out


def test_old_python_is_refused(tasks, capsys, monkeypatch):
    monkeypatch.setattr(tasks, "OLDEST_PYTHON", (99, 0))
    assert tasks.main(["demo"]) == 2
    assert "99.0" in capsys.readouterr().out


def test_task_error_becomes_a_message_and_status_1(tasks, capsys, monkeypatch):
    def broken(args: Sequence[str]) -> int:
        raise TaskError("do this instead")

    monkeypatch.setitem(tasks.TASKS, "demo", broken)
    assert tasks.main(["demo"]) == 1
    assert "do this instead" in capsys.readouterr().out


def test_run_quiet_shows_the_output_of_a_failure(tasks):
    with pytest.raises(TaskError, match=r"(?s)no luck.*the reason"):
        process.run_quiet(
            [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], "no luck"
        )


def test_status_of_the_command_is_the_status_of_the_task(tasks):
    assert process.run_loud([sys.executable, "-c", "raise SystemExit(7)"]) == 7


# --- the environment -----------------------------------------------------------------------------


def test_packages_are_installed_once_for_a_pyproject(tasks, ran, venv):
    environment.prepare("test")
    environment.prepare("test")
    environment.prepare()
    assert [command[-1] for command in ran] == [".[test]"]


def test_new_extras_are_added_to_the_old_ones(tasks, ran, venv):
    environment.prepare("lint")
    environment.prepare("test")
    environment.prepare("lint")
    assert [command[-1] for command in ran] == [".[lint]", ".[lint,test]"]


def test_changed_pyproject_installs_again(tasks, ran, venv):
    environment.prepare()
    (process.ROOT / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    environment.prepare()
    assert [command[-1] for command in ran] == [".", "."]


def test_damaged_stamp_installs_again(tasks, ran, venv):
    environment.prepare()
    environment.STAMP.write_text("{")
    environment.prepare()
    assert len(ran) == 2


def test_failed_install_leaves_no_stamp(tasks, venv, monkeypatch):
    def fail(command: Sequence[object], failure: str) -> None:
        raise TaskError(failure)

    monkeypatch.setattr(process, "run_quiet", fail)
    with pytest.raises(TaskError, match="network"):
        environment.prepare()
    assert not environment.STAMP.exists()


def test_interrupted_install_makes_the_environment_anew(tasks, venv, ran, monkeypatch):
    def interrupt(command, failure, env=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process, "run_quiet", interrupt)
        with pytest.raises(KeyboardInterrupt):
            environment.prepare()
    assert ran == []
    environment.prepare()
    assert [command[2] for command in ran] == ["venv", "pip"]
    environment.prepare()
    assert len(ran) == 2


def test_missing_environment_is_made(tasks, ran):
    environment.VENV.mkdir()
    environment.prepare()
    assert ran[0][1:3] == ["-m", "venv"]


def test_python_without_ensurepip_uses_its_pip(tasks, ran, monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: name == "pip" or None)
    monkeypatch.setattr(apt, "install", lambda packages: False)
    environment.make_venv()
    assert "--without-pip" in ran[0]
    assert ran[1][-1] == "pip"


def test_python_without_ensurepip_and_pip_says_what_to_install(tasks, ran, monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(apt, "install", lambda packages: False)
    with pytest.raises(TaskError, match=r"apt-get install python3\.\d+-venv"):
        environment.make_venv()


def test_broken_interpreter_is_no_environment(tasks):
    assert not environment.venv_works()
    environment.venv_python().parent.mkdir(parents=True)
    environment.venv_python().write_text("not a program")
    environment.venv_python().chmod(0o755)
    assert not environment.venv_works()


# --- packages of the system ----------------------------------------------------------------------


def test_switch_forbids_system_packages(tasks, ran, monkeypatch):
    monkeypatch.setenv("VKMNN_NO_INSTALL", "1")
    assert not apt.install(["mesa-vulkan-drivers"])
    assert not ran


def test_no_apt_no_system_packages(tasks, ran, monkeypatch):
    monkeypatch.delenv("VKMNN_NO_INSTALL", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not apt.install(["mesa-vulkan-drivers"])
    assert not ran


@pytest.mark.skipif(os.name == "nt", reason="no users as on Unix")
@pytest.mark.parametrize(
    ("uid", "sudo_status", "prefix"), [(0, None, []), (1000, 0, ["sudo", "-n"]), (1000, 1, None)]
)
def test_who_may_install(tasks, monkeypatch, uid, sudo_status, prefix):
    def asked(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], sudo_status or 0)

    monkeypatch.delenv("VKMNN_NO_INSTALL", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(subprocess, "run", asked)
    assert apt.prefix() == prefix


@pytest.mark.parametrize("update_works", [True, False])
def test_package_lists_are_read_when_an_install_fails(tasks, monkeypatch, capsys, update_works):
    """An outdated mirror fails the update, though its packages can be installed."""
    steps: list[str] = []

    def run(command: Sequence[str], failure: str) -> None:
        steps.append("update" if "update" in command else "install")
        if steps == ["install"] or (steps[-1] == "update" and not update_works):
            raise TaskError(failure)

    monkeypatch.setattr(apt, "prefix", list)
    monkeypatch.setattr(process, "run_quiet", run)
    assert apt.install(["mesa-vulkan-drivers"])
    assert steps == ["install", "update", "install"]
    assert ("lists at hand" in capsys.readouterr().out) != update_works


# --- Vulkan --------------------------------------------------------------------------------------


def test_probe_without_drivers_finds_no_device(tasks, tmp_path):
    nowhere = str(tmp_path / "no.json")
    env = {"VK_DRIVER_FILES": nowhere, "VK_ICD_FILENAMES": nowhere}
    assert vulkan.probe_vulkan(env)["devices"] == []


def test_probe_survives_a_driver_that_crashes(tasks, monkeypatch, capsys):
    monkeypatch.setattr(vulkan, "PROBE", "import os; os.abort()")
    assert vulkan.probe_vulkan() == {"loader": False, "devices": [], "layers": []}
    assert "failed" in capsys.readouterr().out


def test_probe_survives_a_driver_that_talks(tasks, monkeypatch):
    answer = found(LAVAPIPE)
    code = f"print('driver 1.0 loaded'); print({json.dumps(answer)!r})"
    monkeypatch.setattr(vulkan, "PROBE", code)
    assert vulkan.probe_vulkan() == answer


def test_driver_is_installed_where_none_is(tasks, monkeypatch):
    answers = [found(), found(LAVAPIPE)]
    installed: list[str] = []
    monkeypatch.setattr(vulkan, "probe_vulkan", lambda: answers.pop(0))
    monkeypatch.setattr(apt, "install", lambda names: installed.extend(names) or True)
    assert vulkan.ensure_vulkan()
    assert "mesa-vulkan-drivers" in installed


def test_nothing_is_installed_where_a_device_is(tasks, monkeypatch):
    monkeypatch.setattr(vulkan, "probe_vulkan", lambda: found(LAVAPIPE))
    monkeypatch.setattr(apt, "install", lambda names: pytest.fail("installs"))
    assert vulkan.ensure_vulkan()


@pytest.mark.parametrize(("loader", "installed"), [(True, []), (False, ["libvulkan1"])])
def test_loader_is_installed_where_none_is(tasks, monkeypatch, loader, installed):
    seen: list[str] = []
    monkeypatch.setattr(vulkan, "probe_vulkan", lambda: {**found(), "loader": loader})
    monkeypatch.setattr(apt, "install", lambda names: seen.extend(names) or True)
    vulkan.ensure_loader()
    assert seen == installed


def test_missing_loader_says_what_to_do(tasks, monkeypatch):
    monkeypatch.setattr(vulkan, "probe_vulkan", lambda: {**found(), "loader": False})
    monkeypatch.setattr(apt, "install", lambda names: False)
    with pytest.raises(CannotError, match="loader"):
        vulkan.ensure_loader()


def test_missing_driver_says_what_to_do(tasks, monkeypatch, capsys):
    monkeypatch.setattr(vulkan, "probe_vulkan", found)
    monkeypatch.setattr(apt, "install", lambda names: False)
    monkeypatch.setattr(shutil, "which", lambda name: name == "dnf" or None)
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")
    assert not vulkan.ensure_vulkan()
    shown = capsys.readouterr().out
    assert "dnf install" in shown
    assert "/nowhere.json" in shown


# --- the tasks -----------------------------------------------------------------------------------


@pytest.fixture
def machine(tasks: ModuleType, venv: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The properties of the machine; a test changes them before it runs a task."""
    has: dict[str, Any] = dict.fromkeys(("vulkan", "validation", "spirv_val"), True)
    has["kompute"] = False
    has["swiftshader"] = True
    monkeypatch.setattr(environment, "prepare", lambda *extras: Path("python"))
    monkeypatch.setattr(vulkan, "ensure_vulkan", lambda: has["vulkan"])
    monkeypatch.setattr(vulkan, "ensure_validation", lambda: has["validation"])
    monkeypatch.setattr(vulkan, "ensure_spirv_val", lambda: has["spirv_val"])
    icd = {"VKMNN_SWIFTSHADER_ICD": "/icd.json"}
    monkeypatch.setattr(
        matrix, "second_driver", lambda fetched=True: icd if has["swiftshader"] else {}
    )
    monkeypatch.setattr(kompute, "is_installed", lambda python: has["kompute"])
    monkeypatch.setattr(kompute, "ensure", lambda python: has["kompute"])
    return has


@pytest.fixture
def runs(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Any]]:
    """Commands with their environments; the one that contains "fails" fails."""
    seen: list[tuple[list[str], Any]] = []

    def record(command: Sequence[object], env: Any = None) -> int:
        seen.append(([str(part) for part in command], dict(env or {})))
        return 5 if any("fails" in str(part) for part in command) else 0

    monkeypatch.setattr(process, "run_loud", record)
    return seen


def test_arguments_are_passed_on(tasks, machine, runs):
    assert tasks.main(["test", "-k", "conv"]) == 0
    assert [command[-2:] for command, _ in runs] == [["-k", "conv"]]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The other drivers that a task runs; their status is 0 unless a test changes it."""
    seen: dict[str, Any] = {"names": [], "short": None, "status": 0}

    class Result:
        status = property(lambda self: seen["status"])

    def run(names: Sequence[str], *, short: bool) -> Result:
        seen.update(names=list(names), short=short)
        return Result()

    monkeypatch.setattr(matrix, "run", run)
    return seen


def test_tests_run_on_the_default_device(tasks, machine, runs, beside, capsys):
    assert tasks.main(["test"]) == 0
    [(command, env)] = runs
    assert "--vkmnn-shaders" not in command
    assert env["VKMNN_REQUIRE_VULKAN"] == env["VKMNN_REQUIRE_VALIDATION"] == "1"
    assert env["VKMNN_SWIFTSHADER_ICD"] == "/icd.json"
    assert "VK_DRIVER_FILES" not in env
    assert not beside["names"]
    assert "test --all" in capsys.readouterr().out


def test_long_adds_the_long_tests_that_nothing_else_covers(tasks, machine, runs, beside):
    assert tasks.main(["test"]) == tasks.main(["test", "--long"]) == 0
    usual, long = (command[command.index("-m", 3) + 1] for command, _ in runs)
    assert (usual, long) == ("not torch and not soak and not slow", "not torch and not elsewhere")
    assert not beside["names"]


def test_checks_install_everything_at_once(tasks, machine, monkeypatch):
    """Each installation resolves all packages anew."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(environment, "prepare", lambda *extras: asked.append(extras))
    run = (ROOT / ".ci" / "run").read_text("utf-8")
    (line,) = re.findall(r"tasks\.py prepare (.*)", run)
    assert tasks.main(["prepare", *line.split()]) == 0
    (extras,) = asked
    called = re.findall(r"python3 tasks\.py ([\w-]+)", run)
    needed = {
        extra for name in called for extra in re.findall(r'"(\w+)"', _prepared(tasks.TASKS[name]))
    }
    assert needed == set(extras)


def _prepared(task: object) -> str:
    """Return the arguments with which a task prepares the environment."""
    found = re.search(r"environment\.prepare\((.*?)\)", inspect.getsource(task))
    return found[1] if found else ""


def test_all_adds_every_variant_and_other_drivers(tasks, machine, runs, beside):
    assert tasks.main(["test", "--all"]) == 0
    (_, default), (kernels, env), (_, wide) = runs
    assert "--vkmnn-shaders" in kernels
    assert env == default
    assert wide == {**env, "LP_NATIVE_VECTOR_WIDTH": "512"}
    assert beside["names"] == ["kompute", "mesa-25", "swiftshader"]
    assert beside["short"]


@pytest.mark.parametrize("there", [True, False])
def test_shaders_are_validated_where_spirv_val_is(tasks, machine, runs, there):
    machine["spirv_val"] = there
    tasks.main(["test"])
    assert ("VKMNN_REQUIRE_SPIRV_VAL" in runs[0][1]) == there


def test_spirv_val_is_installed_where_that_is_allowed(tasks, monkeypatch, capsys):
    there = [False]
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/it" if there[0] else None)
    monkeypatch.setattr(apt, "install", lambda packages: False)
    assert not vulkan.ensure_spirv_val()
    assert "package spirv-tools" in capsys.readouterr().out

    def install(packages: list[str]) -> bool:
        assert packages == ["spirv-tools"]
        there[0] = True
        return True

    monkeypatch.setattr(apt, "install", install)
    assert vulkan.ensure_spirv_val()


def test_tests_run_without_vulkan(tasks, machine, runs):
    machine.update(vulkan=False, swiftshader=None)
    assert tasks.main(["test"]) == 0
    ((_, env),) = runs
    assert "VKMNN_REQUIRE_VULKAN" not in env


def test_shader_suite_writes_its_report(tasks, machine, runs):
    assert tasks.main(["shaders", "--vkmnn-device", "all"]) == 0
    [(command, _)] = runs
    assert "--vkmnn-shaders" in command
    assert command[command.index("--vkmnn-report") + 1].endswith("shader-report.html")
    assert command[-2:] == ["--vkmnn-device", "all"]


def test_shader_suite_runs_kernels_for_wide_vectors(tasks, machine, runs):
    thinner = {"--vkmnn-pairs", "--vkmnn-pipelines=2"}
    assert tasks.main(["shaders", *sorted(thinner)]) == 0
    [(everything, _), (wide, env)] = runs
    assert "--vkmnn-kernel" not in everything
    assert thinner <= set(everything)
    assert thinner <= set(wide)
    assert wide.count("--vkmnn-kernel") == len(tasks.WIDE_KERNELS)
    assert env["LP_NATIVE_VECTOR_WIDTH"] == "512"


def test_shader_suite_needs_a_device(tasks, machine, runs):
    machine["vulkan"] = False
    assert tasks.main(["shaders"]) == 1
    assert not runs


def test_failure_of_another_driver_fails_the_task(tasks, machine, runs, beside):
    beside["status"] = 5
    assert tasks.main(["test", "--all"]) == 5
    assert len(runs) == 3


def test_kompute_is_built_for_the_tests_where_it_can_be(tasks, machine, runs, monkeypatch):
    built: list[Path] = []

    def build(python: Path) -> bool:
        built.append(python)
        machine["kompute"] = True
        return True

    tasks.main(["test", "-k", "conv"])
    assert "VKMNN_REQUIRE_KOMPUTE" not in runs.pop()[1]
    monkeypatch.setattr(kompute, "ensure", build)
    tasks.main(["test"])
    assert built == [Path("python")]
    assert runs[0][1]["VKMNN_REQUIRE_KOMPUTE"] == "1"


# --- Kompute -------------------------------------------------------------------------------------


@pytest.fixture
def wheels(tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that build and install `kp`; each succeeds, and `pip wheel` writes a wheel."""
    commands: list[list[str]] = []

    def record(command: Sequence[object], failure: str, env: Any = None) -> None:
        commands.append([str(part) for part in command])
        if "wheel" in commands[-1]:
            assert env["KOMPUTE_OPT_USE_BUILT_IN_PYBIND11"] == "OFF"
            assert sys.executable in Path(env["CMAKE_TOOLCHAIN_FILE"]).read_text()
            folder = commands[-1][commands[-1].index("--wheel-dir") + 1]
            Path(folder, "kp-0.9.0-any.whl").touch()

    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(process, "run_quiet", record)
    monkeypatch.setattr(kompute, "ensure_compiler", lambda python: None)
    return commands


def test_kompute_is_compiled_once(tasks, wheels, monkeypatch):
    python = Path(sys.executable)
    monkeypatch.setattr(kompute, "is_installed", lambda python: True)
    kompute.install(python)
    assert [command[-1] for command in wheels][:2] == ["pybind11>=3,<4", "kp==0.9.0"]
    assert wheels[2][-1].endswith("kp-0.9.0-any.whl")
    kompute.install(python)
    assert len(wheels) == 4
    monkeypatch.setitem(kompute.SWITCHES, "KOMPUTE_OPT_INSTALL", "ON")
    kompute.install(python)
    assert len(wheels) == 7, "another recipe, another wheel"


def test_a_wheel_that_cannot_be_imported_is_built_anew(tasks, wheels, monkeypatch):
    monkeypatch.setattr(kompute, "is_installed", lambda python: len(wheels) > 4)
    with pytest.raises(TaskError, match="cannot be imported"):
        kompute.install(Path(sys.executable))
    kompute.install(Path(sys.executable))
    assert [command[-1] for command in wheels].count("kp==0.9.0") == 2


def test_kompute_without_a_compiler_says_what_to_install(tasks, monkeypatch, capsys):
    monkeypatch.setattr(environment, "prepare", lambda: Path(sys.executable))
    monkeypatch.setattr(vulkan, "ensure_vulkan", lambda: True)
    monkeypatch.setattr(kompute, "is_installed", lambda python: False)
    monkeypatch.setattr(apt, "install", lambda packages: False)
    monkeypatch.setattr(kompute, "NEEDS", {"no-such-compiler": "g++"})
    assert tasks.main(["kompute"]) == process.CANNOT == 3
    assert "apt-get install g++" in capsys.readouterr().out


def test_tests_go_without_a_kompute_that_cannot_be_built(tasks, monkeypatch, capsys):
    def fails(python: Path) -> None:
        raise CannotError("Kompute cannot be built here: missing are g++\n  more")

    monkeypatch.setattr(kompute, "is_installed", lambda python: False)
    monkeypatch.setattr(kompute, "install", fails)
    assert not kompute.ensure(Path("python"))
    [line] = capsys.readouterr().out.splitlines()
    assert "missing are g++" in line


def test_kompute_without_a_network_cannot_be_built(tasks, wheels, monkeypatch):
    def fails(*_: object) -> None:
        raise TaskError("no network")

    monkeypatch.setattr(process, "run_quiet", fails)
    with pytest.raises(CannotError, match=r"(?s)no pybind11.*no network"):
        kompute.install(Path(sys.executable))


def test_lint_runs_every_tool_and_reports_a_failure(tasks, machine, runs, monkeypatch):
    assert tasks.main(["lint"]) == 0
    names = [Path(str(command[0])).name for command, _ in runs]
    modules = [command[2] for command, _ in runs if command[1] == "-m"]
    assert modules == ["ruff", "ruff", "mypy", "check_jsonschema", "check_jsonschema"]
    assert names[-1] == "zizmor"
    monkeypatch.setattr(environment, "prepare", lambda *extras: Path("fails"))
    assert tasks.main(["lint"]) == 1
    assert len(runs) == 12


@pytest.mark.parametrize("name", ["demo", "codegen", "bench", "test-networks", "test-ray"])
def test_each_task_hands_back_its_status(tasks, machine, runs, name):
    assert tasks.main([name]) == 0
    assert tasks.main([name, "--fails"]) == 5


def test_oracles_run_on_a_processor_without_vnni(tasks, machine, runs, monkeypatch):
    monkeypatch.setattr(emulator, "_program", lambda: Path("/qemu x"))
    assert tasks.main(["test-without-vnni"]) == 0
    ((command, env),) = runs
    assert env["VKMNN_ORACLE_EMULATOR"] == "'/qemu x' -cpu Haswell-noTSX"
    root = Path(__file__).resolve().parents[2]
    assert all((root / part.partition("::")[0]).exists() for part in command[3:-1])
    monkeypatch.setattr(emulator.platform, "machine", lambda: "aarch64")
    assert tasks.main(["test-without-vnni"]) == CannotError.status


@pytest.mark.parametrize(
    ("arguments", "extras", "command"),
    [
        ([], ["bench", "peers", "networks"], ["networks"]),
        (["all", "--output", "folder"], ["bench", "peers", "networks"], None),
        (["networks", "--light"], ["bench", "peers"], None),
        (["overhead"], ["bench", "peers"], None),
        (["gemm", "--largest", "512"], ["bench", "peers"], None),
        (["kernels", "model.onnx"], ["bench", "peers"], None),
    ],
)
def test_bench_installs_what_it_needs(
    tasks: ModuleType,
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    extras: list[str],
    command: list[str] | None,
) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(
        environment, "prepare", lambda *names: prepared.extend(names) or Path("python")
    )
    monkeypatch.setattr(vulkan, "ensure_vulkan", lambda: True)
    assert tasks.main(["bench", *arguments]) == 0
    assert prepared == extras
    assert ran == [["python", "-m", "benchmarks", *(command or arguments)]]


def test_bench_goes_without_ncnn_where_it_cannot_be_installed(
    tasks: ModuleType,
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def prepare(name: str) -> Path:
        if name == "peers":
            raise TaskError("no such package")
        return Path("python")

    monkeypatch.setattr(environment, "prepare", prepare)
    monkeypatch.setattr(vulkan, "ensure_vulkan", lambda: True)
    assert tasks.main(["bench", "overhead"]) == 0
    assert "no such package" in capsys.readouterr().out
    assert len(ran) == 1
