"""Passes of plug-ins: where they run, and the handling of bad ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkmnn
from vkmnn.base.registry import Snapshot
from vkmnn.converter.passes import optimize
from vkmnn.converter.passes.base import NoMatch, PatternPass
from vkmnn.converter.passes.registered import BEGIN, END, graph_pass
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import PluginError, VkmnnError
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import BinaryAttrs, UnaryAttrs

pytestmark = pytest.mark.usefixtures("registrations")


def network() -> Graph:
    """x · x, then the absolute value."""
    x, y = (TensorInfo(name, DType.FLOAT32, ("N", 4)) for name in "xy")
    ops = [
        Op("BinaryOp", "product", ["x", "x"], ["h"], BinaryAttrs("MUL")),
        Op("UnaryOp", "abs", ["h"], ["y"], UnaryAttrs("ABS")),
    ]
    return Graph("g", [x], [y], ops)


def note(seen: list[str], label: str, where: str) -> None:
    """Register a pass that notes when it runs."""

    class Note:
        name = label

        def run(self, graph: Graph) -> int:
            if label not in seen:
                seen.append(label)
            return 0

    graph_pass(after=where)(Note)


def test_the_order() -> None:
    seen: list[str] = []
    note(seen, "last", END)
    note(seen, "late", "fuse_chains")
    note(seen, "second", "first")
    note(seen, "first", "remove_dead_code")
    note(seen, "early", BEGIN)
    note(seen, "also_early", BEGIN)
    optimize(network(), run_op)
    assert seen == ["early", "also_early", "first", "second", "late", "last"]
    seen.clear()
    optimize(network(), run_op, passes=())
    assert seen == []


@pytest.mark.parametrize("where", [BEGIN, END, "fuse_residual"])
def test_a_pass_rewrites_what_is_loaded(where: str) -> None:
    @graph_pass(after=where)
    class Squares(PatternPass[str]):
        name = "squares"
        roots = frozenset({"BinaryOp"})

        def match(self, op, index):
            same = op.inputs[0] == op.inputs[1]
            return op.inputs[0] if same else NoMatch("two values")

        def rewrite(self, op, match, index):
            index.replace(op, Op("UnaryOp", op.name, [match], op.outputs, UnaryAttrs("SQUARE")))

    before = network()
    if where != END:  # by then a chain of both may be one op
        assert not any(op.type == "BinaryOp" for op in optimize(before, run_op).ops)
    x = np.float32([[1, -2, 3, 0.5]])
    with vkmnn.InferenceSession(before, device="cpu") as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x**2)
    assert [op.type for op in before.ops] == ["BinaryOp", "UnaryOp"]


def test_what_is_no_pass() -> None:
    for kind in (int, type("Nameless", (), {"run": lambda self, graph: 0})):
        with pytest.raises(PluginError, match="not a class of passes"):
            graph_pass(after=BEGIN)(kind)


def test_a_pass_that_fails_or_breaks_the_graph_is_named() -> None:
    class Broken:
        name = "broken"

        def run(self, graph: Graph) -> int:
            graph.ops.pop()
            return 1

    before = Snapshot()
    graph_pass(after=END)(Broken)
    with pytest.raises(PluginError, match="pass broken left an invalid graph"):
        optimize(network(), run_op)
    before.restore()
    Broken.run = lambda self, graph: 1 // 0  # type: ignore[method-assign]
    graph_pass(after=BEGIN)(Broken)
    with pytest.raises(VkmnnError, match="pass broken"):
        optimize(network(), run_op)


FILE = """
from vkmnn.plugin import *

@graph_pass(after={after!r})
class Nothing(IndexedPass):
    name = "nothing"

    def apply(self, index):
        return 0
"""


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("BEGIN", None),
        ("fuse_attention", None),
        ("fuse_atention", "fuse_atention, which does not exist\n.*did you mean fuse_attention"),
        ("nothing", "after itself"),
    ],
)
def test_the_place_is_checked(tmp_path: Path, after: str, message: str | None) -> None:
    path = tmp_path / f"plug_pass_{after}.py"
    path.write_text(FILE.format(after=after), "utf-8")
    before = Snapshot()
    if message is None:
        assert vkmnn.load_plugin(path).registered == ("pass nothing",)
        return
    with pytest.raises(PluginError, match=message):
        vkmnn.load_plugin(path)
    assert before.added() == []
