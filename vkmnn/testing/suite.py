"""The tests that `--vkmnn-shaders` adds: every kernel variant on every chosen device."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vkmnn.runtime.device import Device
from vkmnn.testing.case import Case, Variant
from vkmnn.testing.devices import Target, targets
from vkmnn.testing.emulation import Bench, bench_for
from vkmnn.testing.pytest_plugin import PROPERTY
from vkmnn.testing.runner import Picks, fits, reach, run_case
from vkmnn.testing.selection import id_of
from vkmnn.testing.settings import Settings
from vkmnn.testing.thinning import thinned


@functools.cache
def _device(target: Target, validation: bool) -> Device:
    return target.open(validation=validation)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create one test per device and variant."""
    settings = Settings.of(metafunc.config)
    pairs = [
        pytest.param(target, variant, id=id_of(variant.name, target))
        for target in targets(settings.devices)
        for variant in settings.variants()
    ]
    metafunc.parametrize(("target", "variant"), pairs)


@pytest.mark.vkmnn_shader
def test_kernel(
    target: Target,
    variant: Variant,
    record_property: Callable[[str, object], None],
    pytestconfig: pytest.Config,
) -> None:
    """Test that a variant computes numpy's results in every case; reports the kernels that ran."""
    found: dict[str, Any] = {
        "device": target.label,
        "variant": variant.name,
        "template": variant.template,
        "axes": dict(variant.axes),
        "cases": [],
    }
    try:
        device = _device(target, Settings.of(pytestconfig).validation)
        bench = bench_for(variant, device)
        if isinstance(bench, str):
            found["reason"] = bench
            pytest.skip(bench)
        found["emulated"] = bench.emulated
        _run(variant, bench, found, Settings.of(pytestconfig).pipelines)
    except Exception as error:
        found["message"] = f"{type(error).__name__}: {error}".strip()
        raise
    finally:
        record_property(PROPERTY, json.dumps(found))


def _run(variant: Variant, bench: Bench, found: dict[str, Any], pipelines: int) -> None:
    """Run all cases, or as many as `pipelines` allows; add known facts to a failure."""
    device, most_texels = bench.device, bench.most_texels
    cases = reach(variant, device)
    found["reached"] = True
    if most_texels is not None:
        cases = [one for one in cases if fits(*one, device, most_texels)]
    if pipelines:
        cases = thinned(cases, variant, device, pipelines)
    most = -1
    for case, picks in cases:
        result = run_case(case, device, picks)
        found["cases"].append(
            {**dataclasses.asdict(result), "dispatched": sorted(result.dispatched)}
        )
        if found["emulated"]:
            continue  # whose time differs from the kernel's
        if variant.name in result.dispatched and _elements(case) > most:
            most = _elements(case)
            found["largest"] = _job(case, picks)


def _elements(case: Case) -> int:
    arrays = [*case.feeds.values(), *case.graph.constants.values()]
    return sum(int(array.size) for array in arrays)


def _job(case: Case, picks: Picks) -> Mapping[str, Any]:
    return {"case": str(case), "picks": dict(picks)}
