"""The pytest plug-in: `pytest --vkmnn-shaders [--vkmnn-device NAME|all]`.

It adds `suite.py`, one test per device and kernel variant, to what is collected, and prints which
variants no test dispatched. Results travel as `user_properties`, so that it works under
pytest-xdist. vkmnn is imported only when the option is given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vkmnn.testing.results import Results

SUITE = Path(__file__).with_name("suite.py")
PROPERTY = "vkmnn-variant"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("vkmnn", "shader regression tests of vkmnn")
    group.addoption(
        "--vkmnn-shaders",
        action="store_true",
        help="run every variant of every kernel against numpy",
    )
    group.addoption(
        "--vkmnn-device",
        action="append",
        metavar="NAME|all",
        help='device to test on (repeatable): as for InferenceSession, or "all"; default "auto"',
    )
    group.addoption(
        "--vkmnn-kernel",
        action="append",
        metavar="PATTERN",
        help="test only variants whose name matches, as conv_* (repeatable)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the suite to what is collected."""
    config.addinivalue_line("markers", "vkmnn_shader: a test of one kernel variant on one device")
    if not config.getoption("--vkmnn-shaders"):
        return
    if str(SUITE) not in config.args:
        config.args.append(str(SUITE))
    if not hasattr(config, "workerinput"):  # the process that hears of all results
        config.pluginmanager.register(_Collector(config), "vkmnn-results")


class _Collector:
    """Gathers what the suite's tests report, and shows it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        from vkmnn.testing.results import Results

        self._config = config
        self._results: Results = Results()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the results out of a test's report."""
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "call":
                self._results.add(json.loads(str(value)), report.outcome)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the coverage table."""
        if self._results:
            terminalreporter.section("kernel variants")
            for line in self._results.coverage_lines():
                terminalreporter.line(line)
