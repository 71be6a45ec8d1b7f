"""tasks.py: what it decides, without installing anything."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh copy of the module whose checkout is an empty folder."""
    spec = importlib.util.spec_from_file_location("tasks", ROOT / "tasks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "stamp.json")
    return module


@pytest.fixture
def ran(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that the tasks run; each succeeds and does nothing."""
    commands: list[list[str]] = []

    def record(command: Sequence[object], *_: object) -> int:
        commands.append([str(part) for part in command])
        return 0

    monkeypatch.setattr(tasks, "run_quiet", record)
    monkeypatch.setattr(tasks, "run_loud", record)
    return commands


@pytest.fixture
def venv(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that is there already."""
    tasks.VENV.mkdir()
    monkeypatch.setattr(tasks, "venv_works", lambda: True)


def found(devices: Sequence[Sequence[str]] = (), layers: Sequence[str] = ()) -> dict[str, Any]:
    return {"loader": True, "devices": list(devices), "layers": list(layers)}


LAVAPIPE = [["llvmpipe", "software"]]


def test_file_needs_the_standard_library_alone():
    code = "import runpy, sys; runpy.run_path('tasks.py', run_name='x'); print('ok')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "ok", done.stderr


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
        raise tasks.TaskError("do this instead")

    monkeypatch.setitem(tasks.TASKS, "demo", broken)
    assert tasks.main(["demo"]) == 1
    assert "do this instead" in capsys.readouterr().out


def test_run_quiet_shows_the_output_of_a_failure(tasks):
    with pytest.raises(tasks.TaskError, match=r"(?s)no luck.*the reason"):
        tasks.run_quiet(
            [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], "no luck"
        )


def test_status_of_the_command_is_the_status_of_the_task(tasks):
    assert tasks.run_loud([sys.executable, "-c", "raise SystemExit(7)"]) == 7


# --- the environment -----------------------------------------------------------------------------


def test_packages_are_installed_once_for_a_pyproject(tasks, ran, venv):
    tasks.prepare("test")
    tasks.prepare("test")
    tasks.prepare()
    assert [command[-1] for command in ran] == [".[test]"]


def test_new_extras_are_added_to_the_old_ones(tasks, ran, venv):
    tasks.prepare("lint")
    tasks.prepare("test")
    tasks.prepare("lint")
    assert [command[-1] for command in ran] == [".[lint]", ".[lint,test]"]


def test_changed_pyproject_installs_again(tasks, ran, venv):
    tasks.prepare()
    (tasks.ROOT / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    tasks.prepare()
    assert [command[-1] for command in ran] == [".", "."]


def test_damaged_stamp_installs_again(tasks, ran, venv):
    tasks.prepare()
    tasks.STAMP.write_text("{")
    tasks.prepare()
    assert len(ran) == 2


def test_failed_install_leaves_no_stamp(tasks, venv, monkeypatch):
    def fail(command: Sequence[object], failure: str) -> None:
        raise tasks.TaskError(failure)

    monkeypatch.setattr(tasks, "run_quiet", fail)
    with pytest.raises(tasks.TaskError, match="network"):
        tasks.prepare()
    assert not tasks.STAMP.exists()


def test_missing_environment_is_made(tasks, ran):
    tasks.VENV.mkdir()
    tasks.prepare()
    assert ran[0][1:3] == ["-m", "venv"]


def test_python_without_ensurepip_uses_its_pip(tasks, ran, monkeypatch):
    monkeypatch.setattr(tasks.importlib.util, "find_spec", lambda name: name == "pip" or None)
    monkeypatch.setattr(tasks, "apt_install", lambda packages: False)
    tasks.make_venv()
    assert "--without-pip" in ran[0]
    assert ran[1][-1] == "pip"


def test_python_without_ensurepip_and_pip_says_what_to_install(tasks, ran, monkeypatch):
    monkeypatch.setattr(tasks.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tasks, "apt_install", lambda packages: False)
    with pytest.raises(tasks.TaskError, match=r"apt-get install python3\.\d+-venv"):
        tasks.make_venv()


def test_broken_interpreter_is_no_environment(tasks):
    assert not tasks.venv_works()
    tasks.venv_python().parent.mkdir(parents=True)
    tasks.venv_python().write_text("not a program")
    tasks.venv_python().chmod(0o755)
    assert not tasks.venv_works()


# --- packages of the system ----------------------------------------------------------------------


def test_switch_forbids_system_packages(tasks, ran, monkeypatch):
    monkeypatch.setenv("VKMNN_NO_INSTALL", "1")
    assert not tasks.apt_install(["mesa-vulkan-drivers"])
    assert not ran


def test_no_apt_no_system_packages(tasks, ran, monkeypatch):
    monkeypatch.delenv("VKMNN_NO_INSTALL", raising=False)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: None)
    assert not tasks.apt_install(["mesa-vulkan-drivers"])
    assert not ran


@pytest.mark.skipif(os.name == "nt", reason="no users as on Unix")
@pytest.mark.parametrize(
    ("uid", "sudo_status", "prefix"), [(0, None, []), (1000, 0, ["sudo", "-n"]), (1000, 1, None)]
)
def test_who_may_install(tasks, monkeypatch, uid, sudo_status, prefix):
    def asked(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], sudo_status or 0)

    monkeypatch.delenv("VKMNN_NO_INSTALL", raising=False)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(tasks.os, "geteuid", lambda: uid)
    monkeypatch.setattr(tasks.subprocess, "run", asked)
    assert tasks.apt_prefix() == prefix


def test_package_lists_are_read_when_an_install_fails(tasks, monkeypatch):
    steps: list[str] = []

    def run(command: Sequence[str], failure: str) -> None:
        steps.append("update" if "update" in command else "install")
        if steps == ["install"]:
            raise tasks.TaskError(failure)

    monkeypatch.setattr(tasks, "apt_prefix", list)
    monkeypatch.setattr(tasks, "run_quiet", run)
    assert tasks.apt_install(["mesa-vulkan-drivers"])
    assert steps == ["install", "update", "install"]


# --- Vulkan --------------------------------------------------------------------------------------


def test_probe_without_drivers_finds_no_device(tasks, tmp_path):
    nowhere = str(tmp_path / "no.json")
    env = {"VK_DRIVER_FILES": nowhere, "VK_ICD_FILENAMES": nowhere}
    assert tasks.probe_vulkan(env)["devices"] == []


def test_probe_survives_a_driver_that_crashes(tasks, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "PROBE", "import os; os.abort()")
    assert tasks.probe_vulkan() == {"loader": False, "devices": [], "layers": []}
    assert "failed" in capsys.readouterr().out


def test_probe_survives_a_driver_that_talks(tasks, monkeypatch):
    answer = found(LAVAPIPE)
    code = f"print('driver 1.0 loaded'); print({json.dumps(answer)!r})"
    monkeypatch.setattr(tasks, "PROBE", code)
    assert tasks.probe_vulkan() == answer


def test_driver_is_installed_where_none_is(tasks, monkeypatch):
    answers = [found(), found(LAVAPIPE)]
    installed: list[str] = []
    monkeypatch.setattr(tasks, "probe_vulkan", lambda: answers.pop(0))
    monkeypatch.setattr(tasks, "apt_install", lambda names: installed.extend(names) or True)
    assert tasks.ensure_vulkan()
    assert "mesa-vulkan-drivers" in installed


def test_nothing_is_installed_where_a_device_is(tasks, monkeypatch):
    monkeypatch.setattr(tasks, "probe_vulkan", lambda: found(LAVAPIPE))
    monkeypatch.setattr(tasks, "apt_install", lambda names: pytest.fail("installs"))
    assert tasks.ensure_vulkan()


def test_missing_driver_says_what_to_do(tasks, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "probe_vulkan", found)
    monkeypatch.setattr(tasks, "apt_install", lambda names: False)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: name == "dnf" or None)
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")
    assert not tasks.ensure_vulkan()
    shown = capsys.readouterr().out
    assert "dnf install" in shown
    assert "/nowhere.json" in shown


# --- the tasks -----------------------------------------------------------------------------------


@pytest.fixture
def machine(tasks: ModuleType, venv: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the machine has; a test changes it before it runs a task."""
    has: dict[str, Any] = dict.fromkeys(("vulkan", "validation", "spirv_val"), True)
    has["kompute"] = False
    has["swiftshader"] = Path("/icd.json")
    monkeypatch.setattr(tasks, "prepare", lambda *extras: Path("python"))
    monkeypatch.setattr(tasks, "ensure_vulkan", lambda: has["vulkan"])
    monkeypatch.setattr(tasks, "ensure_validation", lambda: has["validation"])
    monkeypatch.setattr(tasks, "ensure_spirv_val", lambda: has["spirv_val"])
    monkeypatch.setattr(tasks, "ensure_swiftshader", lambda: has["swiftshader"])
    monkeypatch.setattr(tasks, "has_kompute", lambda python: has["kompute"])
    return has


@pytest.fixture
def runs(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Any]]:
    """Commands with their environments; the one that holds "fails" fails."""
    seen: list[tuple[list[str], Any]] = []

    def record(command: Sequence[object], env: Any = None) -> int:
        seen.append(([str(part) for part in command], dict(env or {})))
        return 5 if any("fails" in str(part) for part in command) else 0

    monkeypatch.setattr(tasks, "run_loud", record)
    return seen


def test_arguments_are_passed_on(tasks, machine, runs):
    assert tasks.main(["test", "-k", "conv"]) == 0
    assert [command[-2:] for command, _ in runs] == [["-k", "conv"]]


def test_tests_may_not_skip_vulkan_where_it_is(tasks, machine, runs):
    tasks.main(["test"])
    default, kernels, wide, floor, floor_kernels = (env for _, env in runs)
    assert default["VKMNN_REQUIRE_VULKAN"] == "1"
    assert "VK_DRIVER_FILES" not in {**default, **kernels}
    assert wide == {**kernels, "LP_NATIVE_VECTOR_WIDTH": "512"}
    assert floor["VK_DRIVER_FILES"] == str(machine["swiftshader"])
    assert floor_kernels == floor
    assert ["--vkmnn-shaders" in command for command, _ in runs] == [False, True, True, False, True]


@pytest.mark.parametrize("there", [True, False])
def test_shaders_are_validated_where_spirv_val_is(tasks, machine, runs, there):
    machine["spirv_val"] = there
    tasks.main(["test"])
    assert ("VKMNN_REQUIRE_SPIRV_VAL" in runs[0][1]) == there


def test_spirv_val_is_installed_where_that_is_allowed(tasks, monkeypatch, capsys):
    there = [False]
    monkeypatch.setattr(tasks.shutil, "which", lambda name: "/bin/it" if there[0] else None)
    monkeypatch.setattr(tasks, "apt_install", lambda packages: False)
    assert not tasks.ensure_spirv_val()
    assert "package spirv-tools" in capsys.readouterr().out

    def install(packages: list[str]) -> bool:
        assert packages == ["spirv-tools"]
        there[0] = True
        return True

    monkeypatch.setattr(tasks, "apt_install", install)
    assert tasks.ensure_spirv_val()


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
    assert tasks.main(["shaders"]) == 0
    [(everything, _), (wide, env)] = runs
    assert "--vkmnn-kernel" not in everything
    assert wide.count("--vkmnn-kernel") == len(tasks.WIDE_KERNELS)
    assert env["LP_NATIVE_VECTOR_WIDTH"] == "512"


def test_shader_suite_needs_a_device(tasks, machine, runs):
    machine["vulkan"] = False
    assert tasks.main(["shaders"]) == 1
    assert not runs


def test_failure_of_either_run_fails_the_task(tasks, machine, runs, monkeypatch):
    (tasks.ROOT / "fails").mkdir()
    monkeypatch.setattr(tasks, "FLOOR_TESTS", ("fails",))
    assert tasks.main(["test"]) == 5
    assert len(runs) == 5


def test_kompute_is_tested_where_it_is(tasks, machine, runs, capsys):
    tasks.main(["test"])
    assert "tasks.py kompute" in capsys.readouterr().out
    machine["kompute"] = True
    runs.clear()
    tasks.main(["test"])
    default, kernels, _, kompute, floor, floor_kernels = (env for _, env in runs)
    assert kompute["VKMNN_DRIVER"] == "kompute"
    assert "VKMNN_DRIVER" not in {**default, **kernels, **floor, **floor_kernels}
    assert {env["VKMNN_REQUIRE_KOMPUTE"] for _, env in runs} == {"1"}


# --- Kompute -------------------------------------------------------------------------------------


@pytest.fixture
def wheels(tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that build and install `kp`; each works, and `pip wheel` leaves a wheel."""
    commands: list[list[str]] = []

    def record(command: Sequence[object], failure: str, env: Any = None) -> None:
        commands.append([str(part) for part in command])
        if "wheel" in commands[-1]:
            assert env["KOMPUTE_OPT_USE_BUILT_IN_PYBIND11"] == "OFF"
            assert sys.executable in Path(env["CMAKE_TOOLCHAIN_FILE"]).read_text()
            folder = commands[-1][commands[-1].index("--wheel-dir") + 1]
            Path(folder, "kp-0.9.0-any.whl").touch()

    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tasks, "run_quiet", record)
    monkeypatch.setattr(tasks, "ensure_kompute_tools", lambda python: None)
    return commands


def test_kompute_is_compiled_once(tasks, wheels, monkeypatch):
    python = Path(sys.executable)
    monkeypatch.setattr(tasks, "has_kompute", lambda python: True)
    tasks.install_kompute(python)
    assert [command[-1] for command in wheels][:2] == ["pybind11>=3,<4", "kp==0.9.0"]
    assert wheels[2][-1].endswith("kp-0.9.0-any.whl")
    tasks.install_kompute(python)
    assert len(wheels) == 4
    monkeypatch.setitem(tasks.KOMPUTE_SWITCHES, "KOMPUTE_OPT_INSTALL", "ON")
    tasks.install_kompute(python)
    assert len(wheels) == 7, "another recipe, another wheel"


def test_a_wheel_that_cannot_be_imported_is_built_anew(tasks, wheels, monkeypatch):
    monkeypatch.setattr(tasks, "has_kompute", lambda python: len(wheels) > 4)
    with pytest.raises(tasks.TaskError, match="cannot be imported"):
        tasks.install_kompute(Path(sys.executable))
    tasks.install_kompute(Path(sys.executable))
    assert [command[-1] for command in wheels].count("kp==0.9.0") == 2


def test_kompute_without_a_compiler_says_what_to_install(tasks, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "prepare", lambda: Path(sys.executable))
    monkeypatch.setattr(tasks, "ensure_vulkan", lambda: True)
    monkeypatch.setattr(tasks, "has_kompute", lambda python: False)
    monkeypatch.setattr(tasks, "apt_install", lambda packages: False)
    monkeypatch.setattr(tasks, "KOMPUTE_NEEDS", {"no-such-compiler": "g++"})
    assert tasks.main(["kompute"]) == tasks.CANNOT == 3
    assert "apt-get install g++" in capsys.readouterr().out


def test_kompute_without_a_network_cannot_be_built(tasks, wheels, monkeypatch):
    def fails(*_: object) -> None:
        raise tasks.TaskError("no network")

    monkeypatch.setattr(tasks, "run_quiet", fails)
    with pytest.raises(tasks.CannotError, match=r"(?s)no pybind11.*no network"):
        tasks.install_kompute(Path(sys.executable))


def test_lint_runs_every_tool_and_reports_a_failure(tasks, machine, runs, monkeypatch):
    assert tasks.main(["lint"]) == 0
    assert [command[2] for command, _ in runs] == ["ruff", "ruff", "mypy"]
    monkeypatch.setattr(tasks, "prepare", lambda *extras: Path("fails"))
    assert tasks.main(["lint"]) == 1
    assert len(runs) == 6


@pytest.mark.parametrize("name", ["demo", "codegen", "bench", "test-networks"])
def test_each_task_hands_back_its_status(tasks, machine, runs, name):
    assert tasks.main([name]) == 0
    assert tasks.main([name, "--fails"]) == 5


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
    monkeypatch.setattr(tasks, "prepare", lambda *names: prepared.extend(names) or Path("python"))
    monkeypatch.setattr(tasks, "ensure_vulkan", lambda: True)
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
            raise tasks.TaskError("no such package")
        return Path("python")

    monkeypatch.setattr(tasks, "prepare", prepare)
    monkeypatch.setattr(tasks, "ensure_vulkan", lambda: True)
    assert tasks.main(["bench", "overhead"]) == 0
    assert "no such package" in capsys.readouterr().out
    assert len(ran) == 1
