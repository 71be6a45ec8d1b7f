"""The number of multiprocessors that a device reports, by any of the extensions for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vkmnn.runtime.drivers.vulkan.features import _Properties

NONE: dict[str, Any] = {
    "nvidia": SimpleNamespace(shaderSMCount=0),
    "amd": SimpleNamespace(
        shaderEngineCount=0, shaderArraysPerEngineCount=0, computeUnitsPerShaderArray=0
    ),
    "arm": SimpleNamespace(shaderCoreCount=0),
}


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ({}, 0),
        ({"nvidia": SimpleNamespace(shaderSMCount=132)}, 132),
        (
            {
                "amd": SimpleNamespace(
                    shaderEngineCount=6, shaderArraysPerEngineCount=2, computeUnitsPerShaderArray=8
                )
            },
            96,
        ),
        ({"arm": SimpleNamespace(shaderCoreCount=10)}, 10),
    ],
)
def test_whoever_tells(told: dict[str, Any], count: int) -> None:
    others = dict.fromkeys(
        ("base", "subgroup", "ids", "maintenance3", "driver", "size_control", "dots")
    )
    assert _Properties(**others, **{**NONE, **told}).multiprocessors == count
