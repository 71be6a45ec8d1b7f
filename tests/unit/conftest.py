"""Unit tests open no device: they pass where there is no Vulkan, and compile no kernel."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from vkmnn.runtime.drivers import DriverUnavailableError
from vkmnn.runtime.drivers.vulkan.instance import Instance
from vkmnn.runtime.drivers.vulkan_driver import VulkanDriver

HINT = "tests that need one belong in tests/runtime, tests/session, tests/op or tests/model"


@contextmanager
def without_devices() -> Iterator[list[str]]:
    """Let no driver list or open a device; the list says what has been asked for."""
    asked: list[str] = []

    def refuse(*arguments: object, **options: object) -> Any:
        asked.append("a test in tests/unit has asked Vulkan for a device")
        raise DriverUnavailableError(asked[-1], HINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VulkanDriver, "enumerate", refuse)
        patch.setattr(Instance, "__init__", refuse)
        yield asked


@pytest.fixture(autouse=True)
def _no_device() -> Iterator[None]:
    """Fail a test that lists or opens devices, whatever it makes of there being none."""
    with without_devices() as asked:
        yield
    if asked:
        pytest.fail(f"{asked[0]}; {HINT}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Do the same for what a module does while it is imported."""
    with without_devices() as asked:
        report = yield
    if asked and isinstance(collector, pytest.Module):
        report.outcome, report.longrepr = "failed", f"{collector.nodeid}: {asked[0]}; {HINT}"
    return report
