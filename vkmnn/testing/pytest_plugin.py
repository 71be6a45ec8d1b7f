"""The pytest plug-in: `pytest --vkmnn-shaders [--vkmnn-device NAME|all]`.

It adds `suite.py`, one test per device and kernel variant, and reports at the end which variants no
test dispatched. Results travel as `user_properties`, so it works under pytest-xdist. vkmnn is
imported only if the option is given.

pytest rewrites the assertions of a plug-in's whole distribution, so the plug-in excludes vkmnn
itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vkmnn.testing.settings import VALIDATION, Settings

if TYPE_CHECKING:
    from types import ModuleType

    from vkmnn.testing.session import ShaderSession

SUITE = Path(__file__).with_name("suite.py")
PROPERTY = "vkmnn-variant"

_ALONE = pytest.StashKey[bool]()
_WORKER = "vkmnn-shaders"

_MAIN = "--vkmnn-shaders"
_OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    (
        "--vkmnn-device",
        "append",
        "NAME|all",
        'device to test on (repeatable): as for InferenceSession, or "all"; default "auto"',
    ),
    (
        "--vkmnn-kernel",
        "append",
        "PATTERN",
        "test only variants whose name matches, as conv_* (repeatable)",
    ),
    (
        "--vkmnn-sample",
        "store_true",
        "",
        "test only as many variants as show every value of every axis of each kernel",
    ),
    (
        "--vkmnn-pairs",
        "store_true",
        "",
        "test only as many variants as show every pair of values of two axes of each kernel",
    ),
    (
        "--vkmnn-pipelines",
        "store",
        "N",
        "run only as many cases of a variant as N pipelines of it can: compilers take most time",
    ),
    ("--vkmnn-report", "store", "FILE.html", "write what was found as a page for the browser"),
    ("--vkmnn-results", "store", "FILE.json", "write what was found for programs"),
    (
        "--vkmnn-perf-baseline",
        "store",
        "FILE.json",
        "time every variant and compare with the times in this file; never fails",
    ),
    ("--vkmnn-perf", "store_true", "", "time every variant"),
    (
        "--vkmnn-perf-update",
        "store_true",
        "",
        "write the times into the file of --vkmnn-perf-baseline instead of comparing",
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("vkmnn", "shader regression tests of vkmnn")
    group.addoption(
        _MAIN, action="store_true", help="run every variant of every kernel against numpy"
    )
    for name, action, metavar, text in _OPTIONS:
        extra: dict[str, Any] = {"metavar": metavar} if metavar else {}
        if metavar == "N":
            extra["type"] = _at_least_one
        group.addoption(name, action=action, help=text, **extra)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"a number from 1 on was expected, not '{text}'")
    return int(text)


class _AsWritten(MetaPathFinder):
    """Finds the modules of vkmnn before pytest does, which would rewrite them.

    A session imports in two threads, and before 3.11.8 CPython may not parse in two threads at once
    (its issue 106905). Besides, it is slow.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find modules that are neither tests nor test helpers."""
        if not fullname.startswith("vkmnn.") or fullname.startswith("vkmnn.testing."):
            return None
        return PathFinder.find_spec(fullname, path, target)


def _import_as_written(config: pytest.Config) -> None:
    finder = _AsWritten()

    def remove() -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)

    sys.meta_path.insert(0, finder)
    config.add_cleanup(remove)


def pytest_configure(config: pytest.Config) -> None:
    """Find devices and files; refuse impossible options at once."""
    _import_as_written(config)
    config.addinivalue_line("markers", "vkmnn_shader: a test of one kernel variant on one device")
    given = [name for name, *_ in _OPTIONS if config.getoption(name)]
    if not config.getoption(_MAIN):
        if given:
            raise pytest.UsageError(f"{given[0]} needs {_MAIN}")
        return
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:  # the process that hears of all results
        _configure_main(config)
    else:
        config.stash[_ALONE], config.stash[VALIDATION] = worker[_WORKER]


def _configure_main(config: pytest.Config) -> None:
    from vkmnn.errors import VkmnnError
    from vkmnn.testing.session import ShaderSession

    config.stash[_ALONE] = config.args_source is not pytest.Config.ArgsSource.ARGS
    config.stash[VALIDATION] = False
    try:
        session = ShaderSession(Settings.of(config))
    except VkmnnError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[VALIDATION] = session.validation
    if not config.getoption("collectonly"):
        config.pluginmanager.register(_Reporter(config, session), "vkmnn-reporter")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the findings to a worker of pytest-xdist."""
    stash = node.config.stash
    if VALIDATION in stash:
        node.workerinput[_WORKER] = (stash[_ALONE], stash[VALIDATION])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a project's other tests if no paths are given: only the suite was requested.

    Its folders are still looked into, since their conftest.py may register cases.
    """
    if not config.stash.get(_ALONE, False):
        return None
    return True if collection_path.is_file() and collection_path != SUITE else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the suite, unless its path was given.

    It cannot be added to the paths: pytest skips files in a folder that is also a path, and never
    searches a virtual environment there.
    """
    if not config.getoption(_MAIN):
        return
    _check_cases(config)
    if not any(item.path == SUITE for item in items):
        module = pytest.Module.from_parent(session, path=SUITE)
        items.extend(session.genitems(module))


def _check_cases(config: pytest.Config) -> None:
    """Refuse a run without cases here: a conftest.py anywhere may have registered some."""
    from vkmnn.errors import VkmnnError

    try:
        Settings.of(config).variants()
    except VkmnnError as error:
        raise pytest.UsageError(str(error)) from error


class _Reporter:
    """Forwards the tests' reports, and shows the outcome."""

    def __init__(self, config: pytest.Config, session: ShaderSession) -> None:
        self._config = config
        self._session = session

    def pytest_report_header(self) -> list[str]:
        """Name the devices."""
        return self._session.header()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remove the results from a test's report."""
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "call":
                self._session.add(json.loads(str(value)), report.outcome)
                return
        if report.failed and "test_kernel[" in report.nodeid:  # as when a worker crashed
            self._session.crashed(report.nodeid, report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Time the variants, write the files, and fail where a variant was not dispatched."""
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            return
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        say = terminal.write_line if terminal else lambda line: None
        complete = self._session.finish(restricted=_restricted(self._config), say=say)
        if not complete and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the coverage table, the times that changed and where the files are."""
        lines = self._session.summary()
        if lines:
            terminalreporter.section("kernel variants")
            for line in lines:
                terminalreporter.line(line)


def _restricted(config: pytest.Config) -> bool:
    """Return whether some tests were deselected on purpose."""
    options = (
        "--vkmnn-kernel",
        "--vkmnn-sample",
        "--vkmnn-pairs",
        "keyword",
        "markexpr",
        "deselect",
        "maxfail",
        "lf",
        "stepwise",
    )
    return any(config.getoption(name, None) for name in options) or any(
        "::" in arg for arg in config.args
    )
