"""docs/extending/kernel-family.md is correct: its listings result in a family that works."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.codegen.build import build
from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.outputs import write
from vkmnn.ir import Activation, Array
from vkmnn.ir.ops import MatMulAttrs
from vkmnn.testing.case import op_case
from vkmnn.testing.runner import Picker, dispatched_by, run_case

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending" / "kernel-family.md"
_LISTING = re.compile(r"^`(?P<file>[^`]+)`:\n\n```\w+\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def family(
    tmp_path: Path, compiler: Compiler, registrations: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Insert the listings, build the shaders, and import the family."""
    package = tmp_path / "dots"
    listings = {
        found["file"]: found["text"] for found in _LISTING.finditer(PAGE.read_text("utf-8"))
    }
    assert set(listings) >= {"family.py", "shaders/glsl/macro.json"}
    for file, text in listings.items():
        path = package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    write(build(package / "shaders" / "glsl", compiler), package / "shaders")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module("dots.family")
    for name in [name for name in sys.modules if name.split(".")[0] == "dots"]:
        del sys.modules[name]


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("a", "b", "constant"),
    [
        ((7, 16), (9, 16), ()),
        ((2, 3, 7, 24), (2, 3, 12, 24), ()),
        ((2, 3, 7, 24), (3, 12, 24), ()),
        ((5, 13), (66, 13), (0, 1)),
    ],
)
def test_products(
    family: Any, a: tuple[int, ...], b: tuple[int, ...], constant: tuple[int, ...]
) -> None:
    attrs = MatMulAttrs(transpose_b=True, alpha=0.5, activation=Activation("GELU"))
    case = op_case("MatMul", attrs, [floats(*a), floats(*b), floats(b[-2])], constant=constant)
    case = replace(case, takes={"matmul": family.MatMulDots()})
    shaders = dispatched_by(case, device(), Picker({}, case.takes))
    assert shaders == {f"matmul_dots_{4 if b[-2] % 4 == 0 else 1}"}
    assert run_case(case, device(), {}).error <= 1


def test_what_it_does_not_take_goes_to_others(family: Any) -> None:
    case = op_case("MatMul", MatMulAttrs(), [floats(5, 13), floats(13, 9)])
    case = replace(case, takes={"matmul": family.MatMulDots()})
    shaders = dispatched_by(case, device(), Picker({}, case.takes))
    assert not any("dots" in name for name in shaders)
