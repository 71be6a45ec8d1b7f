"""Every op type of vkmnn is declared in one place, and whole."""

from __future__ import annotations

import ast
from pathlib import Path

from vkmnn.cpu_fallback.registry import EXECUTIONS
from vkmnn.ir import OP_TYPES
from vkmnn.shape.registry import COMPUTERS

PACKAGE = Path(__file__).resolve().parents[2] / "vkmnn"
VOCABULARY = "ir/ops.py"


def declared(source: str) -> list[str]:
    """Return the names in all calls of `op_type`, in whatever way it was imported."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        argument.value
        for call in calls
        if ast.unparse(call.func).split(".")[-1] == "op_type"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    ]


def test_all_declarations_stand_in_one_file():
    places = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := declared(path.read_text("utf-8")))
    }
    assert set(places) == {VOCABULARY}
    names = places[VOCABULARY]
    assert len(names) == len(set(names))
    assert set(names) <= set(OP_TYPES)
    assert len(names) > 50


def test_nothing_else_fills_the_registry():
    here = [path for path in PACKAGE.rglob("*.py") if "OP_TYPES.register" in path.read_text()]
    assert [path.relative_to(PACKAGE).as_posix() for path in here] == ["ir/op_type.py"]


def test_every_op_can_be_computed():
    names = declared((PACKAGE / VOCABULARY).read_text("utf-8"))
    assert not [name for name in names if name not in EXECUTIONS]
    # Whoever makes one of these knows its output.
    without = {"Raster", "StridedAttention", "ConvertTensor"}
    assert {name for name in names if name not in COMPUTERS} <= without
