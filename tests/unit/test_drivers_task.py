"""`tasks.py drivers`: which tests it runs where, without a driver from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tools import apt, debian_root, drivers, environment, kompute, matrix, page, process, suites
from tools.drivers import Driver, Place
from tools.process import CANNOT, CannotError, TaskError
from tools.suites import Outcome, Report

GOOD = Outcome("operators", 10, 0, 2, 61, 0)
BAD = Outcome("driver", 8, 1, 0, 5, 1)


def report(driver: str, *outcomes: Outcome, version: str = "Mesa 25.0.7") -> Report:
    return Report(driver, "llvmpipe", version, "1.3.239", "2030-01-02", outcomes or (GOOD,))


# --- which there are -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "base", "by_kompute"),
    [
        ("system", "system", False),
        ("kompute", "system", True),
        ("mesa-25", "mesa-25", False),
        ("mesa-25+kompute", "mesa-25", True),
    ],
)
def test_a_name_stands_for_a_driver(name: str, base: str, by_kompute: bool) -> None:
    driver, through = drivers.chosen(name)
    assert (driver.name, through) == (base, by_kompute)


@pytest.mark.parametrize("name", ["mesa", "kompute+kompute", "system+", "system+other", ""])
def test_an_unknown_driver_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(TaskError, match=r"mesa-25.*swiftshader.*\+kompute"):
        drivers.chosen(name)


def made(found: Place | None, reason: str | None) -> Driver:
    def fetch() -> Place:
        return Place({"FETCHED": "1"})

    return Driver("mine", "a driver", lambda: found, lambda: reason, fetch)


def test_a_driver_is_fetched_only_where_it_is_not() -> None:
    here = Place({"HERE": "1"})
    assert made(here, "never asked").place() == here
    assert made(None, None).place().env == {"FETCHED": "1"}
    with pytest.raises(CannotError, match="mine cannot be had here: no tools"):
        made(None, "no tools").place()


def test_the_backport_is_unpacked_beside_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path))

    def unpack(package: str, suite: str, folder: Path) -> None:
        assert (package, suite) == ("mesa-vulkan-drivers", "bookworm-backports")
        library = folder / "content/usr/lib/any-linux-gnu/libvulkan_lvp.so"
        library.parent.mkdir(parents=True)
        library.touch()

    monkeypatch.setattr(apt, "unpack", unpack)
    driver = drivers.DRIVERS["mesa-25"]
    assert driver.find() is None
    monkeypatch.setattr(apt, "release", lambda: {"ID": "ubuntu"})
    assert "Debian 12" in str(driver.cannot())
    place = driver.fetch()
    assert place == driver.find()
    icd = Path(place.env["VK_DRIVER_FILES"])
    assert icd.is_relative_to(tmp_path)
    assert "libvulkan_lvp.so" in icd.read_text()


TARGETS = """\
http://a.example/other nodistro
http://mirror.example/security bookworm-security
http://mirror.example/debian bookworm
"""


@pytest.mark.skipif(os.name == "nt", reason="apt is of Debian")
@pytest.mark.parametrize(
    ("system", "targets", "mirror"),
    [
        ({"ID": "debian", "VERSION_CODENAME": "bookworm"}, TARGETS, "http://mirror.example/debian"),
        ({"ID": "debian"}, "http://m.example/debian sid\n", "http://m.example/debian"),
        ({"ID": "debian", "VERSION_CODENAME": "bookworm"}, "", None),
        ({"ID": "ubuntu", "VERSION_CODENAME": "noble"}, TARGETS, None),
    ],
)
def test_the_mirror_is_the_machines_own(
    monkeypatch: pytest.MonkeyPatch, system: dict[str, str], targets: str, mirror: str | None
) -> None:
    def asked(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, stdout=targets)

    monkeypatch.setattr(apt, "release", lambda: system)
    monkeypatch.setattr(apt.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(apt.subprocess, "run", asked)
    if mirror:
        assert apt.mirror() == mirror
    else:
        with pytest.raises(CannotError):
            apt.mirror()


def test_a_root_needs_the_user_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_root.os, "geteuid", lambda: 1000, raising=False)
    assert "user root" in str(debian_root.cannot())


def test_a_root_gets_a_copy_without_what_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, root = tmp_path / "checkout", tmp_path / "root"
    for name in ("tasks.py", ".venv/python", ".git/HEAD", "a/__pycache__/x.pyc", "a/b.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    (root / "project" / ".venv").mkdir(parents=True)
    (root / "project" / ".venv" / "own").touch()
    (root / "project" / "old.py").touch()
    monkeypatch.setattr(process, "ROOT", checkout)
    monkeypatch.setattr(debian_root, "SETTINGS", ())
    monkeypatch.setattr(debian_root, "CERTIFICATES", tmp_path / "none")
    debian_root.copy_checkout(root)
    project = root / "project"
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert files == {"tasks.py", "a/b.py", ".venv/own"}


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_inside_a_root_do_not_lead_to_this_machines_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root's certificates and settings may be links to absolute paths."""
    mine, certificates, root = tmp_path / "mine", tmp_path / "certificates", tmp_path / "root"
    certificates.mkdir()
    (certificates / "a.pem").write_text("trusted here")
    mine.write_text("mine")
    setting = root / mine.relative_to("/")
    for link in (root / "etc/ssl/certs/a.pem", setting):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(mine)
    (tmp_path / "checkout").mkdir()
    (root / "project").mkdir()
    monkeypatch.setattr(process, "ROOT", tmp_path / "checkout")
    monkeypatch.setattr(debian_root, "SETTINGS", (mine,))
    monkeypatch.setattr(debian_root, "CERTIFICATES", certificates)
    debian_root.copy_checkout(root)
    assert mine.read_text() == "mine"
    assert (root / "etc/ssl/certs/a.pem").read_text() == "trusted here"
    assert (setting.read_text(), setting.is_symlink()) == ("mine", False)


# --- what is run ---------------------------------------------------------------------------------


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """The runs that the task asks for: (driver, environment, parts); a driver "bad" fails."""
    seen: list[tuple[str, Any, Any]] = []

    def run(
        driver: str, python: Path, env: Mapping[str, str], parts: Sequence[str], more: Sequence[str]
    ) -> Report:
        seen.append((driver, dict(env), tuple(parts)))
        return report(driver, BAD if driver == "bad" else GOOD)

    def known(name: str, found: Place | None = None, reason: str | None = None) -> Driver:
        return Driver(name, "a driver", lambda: found, lambda: reason, Place)

    table = {
        "system": known("system", Place()),
        "own": known("own", Place({"VK_DRIVER_FILES": "own.json"})),
        "bad": known("bad", Place()),
        "absent": known("absent", reason="not for this machine"),
        "inside": known("inside", Place(root=tmp_path)),
    }
    monkeypatch.setattr(drivers, "DRIVERS", table)
    monkeypatch.setattr(suites, "run", run)
    monkeypatch.setattr(environment, "prepare", lambda *extras: Path("python"))
    monkeypatch.setattr(kompute, "is_installed", lambda python: True)
    monkeypatch.setattr(matrix, "promises", lambda python, device: {"VKMNN_REQUIRE_VULKAN": "1"})
    return seen


def test_each_driver_is_run_with_its_environment(ran: list[Any], capsys: Any) -> None:
    assert matrix.main(["own", "system"]) == 0
    (_, own, parts), (_, system, _) = ran
    assert own == {"VKMNN_REQUIRE_VULKAN": "1", "VK_DRIVER_FILES": "own.json"}
    assert system == {"VKMNN_REQUIRE_VULKAN": "1"}
    assert parts == suites.WHOLE
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("driver", "own", "system", "Mesa 25.0.7", "1.3.239"))


def test_kompute_is_chosen_by_its_variable_and_runs_what_it_can(ran: list[Any]) -> None:
    assert matrix.main(["own+kompute", "--short"]) == 0
    [(name, env, parts)] = ran
    assert name == "own+kompute"
    assert (env["VKMNN_DRIVER"], env["VK_DRIVER_FILES"]) == ("kompute", "own.json")
    assert parts == ("operators, 1 in 40", "networks, two of nine")


@pytest.mark.parametrize(
    ("error", "status"), [(CannotError("no compiler"), 0), (TaskError("does not compile"), 1)]
)
def test_a_kompute_that_does_not_compile_is_a_failure(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, error: TaskError, status: int
) -> None:
    """One that lacks a compiler is not."""

    def install(python: Path) -> None:
        raise error

    monkeypatch.setattr(kompute, "is_installed", lambda python: False)
    monkeypatch.setattr(kompute, "install", install)
    assert matrix.run(["kompute"], short=True).status == status
    assert not ran


def test_a_failure_does_not_keep_the_others_from_being_run(ran: list[Any]) -> None:
    assert matrix.main(["bad", "own"]) == 1
    assert [name for name, *_ in ran] == ["bad", "own"]


def test_a_driver_that_is_not_here_is_said_and_is_no_failure(ran: list[Any], capsys: Any) -> None:
    assert matrix.main(["absent", "own"]) == CANNOT
    assert "absent: NOT HERE, absent cannot be had here: not for this" in capsys.readouterr().out
    assert matrix.run(["absent", "own"], short=True).status == 0


def test_an_unknown_name_stops_before_anything_is_run(ran: list[Any]) -> None:
    with pytest.raises(TaskError, match="no driver 'tset'"):
        matrix.main(["own", "tset"])
    assert not ran


def test_a_root_runs_the_task_itself(ran: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def enter(root: Path, command: Sequence[str], env: Mapping[str, str]) -> int:
        commands.append(list(command))
        (root / "project").mkdir(exist_ok=True)
        suites.save(report("system", GOOD, BAD), root / "project" / matrix.RESULTS)
        return 1

    monkeypatch.setattr(debian_root, "copy_checkout", lambda root: None)
    monkeypatch.setattr(debian_root, "run", enter)
    result = matrix.run(["inside"], short=True)
    assert result.reports == [report("inside", GOOD, BAD)]
    assert result.status == 1
    [command] = commands
    assert command[:4] == ["python3", "tasks.py", "drivers", "system"]
    assert "--short" in command
    assert command[command.index("--called") + 1] == "inside"


def test_a_root_without_a_result_is_a_failure(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian_root, "copy_checkout", lambda root: None)
    monkeypatch.setattr(debian_root, "run", lambda root, command, env: 1)
    result = matrix.run(["inside"], short=True)
    assert result.status == 1
    assert "without a result" in result.broken["inside"]


def test_the_list_says_what_is_here_and_why_not(ran: list[Any], monkeypatch: Any, capsys: Any):
    monkeypatch.setattr(environment, "venv_works", lambda: False)
    monkeypatch.setattr(matrix.vulkan, "probe_vulkan", lambda env: {"devices": [["A", "cpu"]]})
    monkeypatch.setattr(debian_root, "package_version", lambda root, package: "26.2")
    assert matrix.main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert "not here: not for this machine" in shown
    assert "26.2" in shown
    assert not ran


# --- counts and tables ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["0", "1"])
def test_tests_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_a(): pass\n"
        "def test_b(): assert False\n"
        "def test_c(): pytest.skip('not here')\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError\n"
        "def test_d(broken): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(process, "ROOT", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, tmp_path]
    outcome = suites._counted("operators", command, {})
    assert (outcome.passed, outcome.failed, outcome.skipped, outcome.status) == (1, 2, 1, 1)
    assert str(outcome) == "operators: 1 passed, 2 FAILED, 1 skipped"


def test_a_pytest_that_does_not_start_is_a_failure() -> None:
    outcome = suites._counted("operators", [sys.executable, "-c", "raise SystemExit(4)"], {})
    assert outcome.status == 4
    assert "pytest ended with 4" in str(outcome)


def test_a_report_survives_a_file(tmp_path: Path) -> None:
    before = report("mine", GOOD, BAD)
    suites.save(before, tmp_path / "x.json")
    assert suites.load(tmp_path / "x.json") == before
    assert before.status == 1


def test_the_page_keeps_rows_of_drivers_that_were_not_run(tmp_path: Path) -> None:
    path = tmp_path / "drivers.md"
    path.write_text(f"before\n{page.BEGIN}\n{page.END}\nafter\n")
    page.record([report("b"), report("a")], path)
    page.record([report("a", version="Mesa 26.2.6")], path)
    text = path.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 4
    assert rows[2].startswith("| a | llvmpipe | Mesa 26.2.6 |")
    assert rows[3].startswith("| b | llvmpipe | Mesa 25.0.7 |")
    assert "operators: 10 passed, 2 skipped" in rows[3]
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_results_are_recorded_driver_by_driver(
    ran: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is ended in the middle has not run in vain."""
    path = tmp_path / "drivers.md"
    path.write_text(f"{page.BEGIN}\n{page.END}\n")
    monkeypatch.setattr(matrix, "PAGE", path)
    own = suites.run

    def ended(driver: str, *rest: Any) -> Report:
        if driver == "system":
            raise KeyboardInterrupt
        return own(driver, *rest)

    monkeypatch.setattr(suites, "run", ended)
    with pytest.raises(KeyboardInterrupt):
        matrix.main(["own", "system", "--record"])
    assert "| own | llvmpipe |" in path.read_text()


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(TaskError, match="has no lines"):
        page.record([report("a")], tmp_path / "page.md")


def test_the_real_page_has_a_place_for_the_table(tmp_path: Path) -> None:
    copy = tmp_path / "drivers.md"
    copy.write_text(matrix.PAGE.read_text("utf-8"), "utf-8")
    page.record([report("some")], copy)
    assert "| some |" in copy.read_text("utf-8")
