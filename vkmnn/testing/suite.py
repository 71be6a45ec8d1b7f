"""The tests that `--vkmnn-shaders` adds: every kernel variant on every chosen device."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from fnmatch import fnmatch

import pytest

from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.testing import cases
from vkmnn.testing.case import Variant, variants
from vkmnn.testing.pytest_plugin import PROPERTY
from vkmnn.testing.runner import run_variant, unusable


@functools.cache
def _device(wanted: str) -> Device:
    return open_device(wanted, validation=True)


def _wanted_devices(config: pytest.Config) -> list[str]:
    chosen: list[str] = config.getoption("--vkmnn-device") or ["auto"]
    if "all" in chosen:
        return [info.name for info in enumerate_devices()]
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test per device and variant."""
    cases.load_all()
    patterns: list[str] = metafunc.config.getoption("--vkmnn-kernel") or ["*"]
    chosen = [v for v in variants() if any(fnmatch(v.name, pattern) for pattern in patterns)]
    devices = _wanted_devices(metafunc.config)
    metafunc.parametrize("variant", chosen, ids=str)
    metafunc.parametrize("wanted", devices, ids=[_slug(device) for device in devices])


def _slug(name: str) -> str:
    return name.split("(")[0].strip().replace(" ", "-").lower()


@pytest.mark.vkmnn_shader
def test_kernel(
    wanted: str, variant: Variant, record_property: Callable[[str, object], None]
) -> None:
    """A variant computes what numpy computes, in every case, and reports which kernels ran."""
    device = _device(wanted)
    reason = unusable(variant, device)
    found: dict[str, object] = {
        "device": device.info.name,
        "variant": variant.name,
        "template": variant.template,
        "reason": reason or "",
        "cases": [],
    }
    try:
        if reason:
            pytest.skip(reason)
        result = run_variant(variant, device)
        found["cases"] = [
            {**dataclasses.asdict(case), "dispatched": sorted(case.dispatched)}
            for case in result.cases
        ]
    finally:
        record_property(PROPERTY, json.dumps(found))
