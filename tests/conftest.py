"""Rules for every test: no stale caches, and no silent skip where Vulkan is promised."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from vkmnn.base.registry import Snapshot

# Machines are shared and slow: the time to generate examples says nothing about a test.
settings.register_profile("vkmnn", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vkmnn")

# If the variable is set (tasks.py sets it if the device or the layer is available), a test skipped
# for such a reason fails instead: a suite that lost its device must not pass. The first matching
# reason applies: without `kp`, no device matches.
_PROMISES = {
    "VKMNN_REQUIRE_KOMPUTE": re.compile(r"kompute|'kp'", re.IGNORECASE),
    "VKMNN_REQUIRE_VULKAN": re.compile(r"no vulkan device|no device matches", re.IGNORECASE),
    "VKMNN_REQUIRE_VALIDATION": re.compile(r"validation", re.IGNORECASE),
    "VKMNN_REQUIRE_SPIRV_VAL": re.compile(r"spirv-val is not installed"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run select a subset of the tests that is the same in every process."""
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="run about one test in N")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that `--one-in` does not choose."""
    every = config.getoption("--one-in")
    left_out = [item for item in items if zlib.crc32(item.nodeid.encode()) % every]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not zlib.crc32(item.nodeid.encode()) % every]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Exempt the collected tests from garbage collection: each pass over them takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests out of the user's cache folder, and Ctrl-C at work under `nohup`.

    Several processes would compile the same shaders: they are compiled in advance.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        _compile_shaders()
    if "VKMNN_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="vkmnn-tests-")
        os.environ["VKMNN_CACHE_DIR"] = folder.name
        config.add_cleanup(folder.cleanup)


def _compile_shaders() -> None:
    """Compile the shaders that have not been compiled yet: two minutes in a fresh checkout."""
    from vkmnn.errors import ShaderError
    from vkmnn.shaders.library import BUILTIN

    try:
        BUILTIN.prepare([name for name, _, _ in BUILTIN.variants()])
    except ShaderError as error:  # of a template, or the lock: tests say which
        sys.stderr.write(f"shaders could not be compiled: {error}\n")


@pytest.fixture(scope="session", autouse=True)
def _no_installed_plugins() -> Iterator[None]:
    """Hide the user's plug-ins; tests announce their own."""
    from vkmnn import discovery
    from vkmnn.discovery import plugin_folders

    with pytest.MonkeyPatch.context() as patch:
        for variable in ("VKMNN_PLUGINS", "VKMNN_PLUGIN_PATH"):
            patch.delenv(variable, raising=False)
        patch.setattr(discovery, "_entry_points", lambda: ())
        patch.setattr(plugin_folders, "in_default_folder", list)
        yield


@pytest.fixture
def registrations() -> Iterator[Snapshot]:
    """Let a test register operators; restore the registries afterwards."""
    import vkmnn.plugin  # noqa: F401 - what registers itself later would be taken back too
    from vkmnn import discovery
    from vkmnn.converter.nodes.registry import FORMATS

    for list_operators in [FORMATS[name] for name in FORMATS]:
        list_operators()  # imports the format's readers
    discovery.load_plugins()
    before, loaded = Snapshot(), dict(discovery._loaded)
    yield before
    before.restore()
    for module in set(discovery._loaded) - set(loaded):
        del discovery._loaded[module]
        sys.modules.pop(module, None)


def _broken_promise(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Return the variable that a skipped test contradicts, if there is one."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    fitting = (variable for variable, skipped in _PROMISES.items() if skipped.search(reason))
    variable = next(fitting, None)
    broken = variable is not None and os.environ.get(variable) == "1"
    return f"{variable}=1, but: {reason}" if broken else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Turn a skip caused by the lack of a promised device into a failure."""
    report = yield
    broken = _broken_promise(report)
    if broken:
        report.outcome, report.longrepr = "failed", broken
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Do the same for a module that skips itself."""
    report = yield
    broken = _broken_promise(report)
    if broken:
        report.outcome, report.longrepr = "failed", broken
    return report
