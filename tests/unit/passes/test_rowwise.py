"""Products of few rows by float weights: gated, of normalised rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vkmnn.converter.passes import optimize, rowwise
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Activation, Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.graph import Dim
from vkmnn.ir.ops import BinaryAttrs, LayerNormAttrs, MatMulAttrs

DEPTH = 20
ROWS: tuple[Dim, ...] = ("N", 3)


class Net:
    """A graph built op by op."""

    def __init__(self, dtype: str = "float32") -> None:
        self.ops: list[Op[Any]] = []
        self.constants: dict[str, Array] = {}
        self.rng = np.random.default_rng(1)
        self.dtype = np.dtype(dtype)

    def op(self, kind: str, inputs: Sequence[str], out: str, attrs: Any) -> str:
        self.ops.append(Op(kind, out, list(inputs), [out], attrs))
        return out

    def constant(self, name: str, *shape: int) -> str:
        self.constants[name] = self.rng.standard_normal(shape).astype(self.dtype)
        return name

    def product(self, x: str, out: str, columns: int, **how: Any) -> str:
        turned = how.get("turned", False)
        shape = (columns, DEPTH) if turned else (DEPTH, columns)
        inputs = [x, self.constant(f"{out}.w", *shape)]
        if how.get("bias"):
            inputs.append(self.constant(f"{out}.b", columns))
        attrs = MatMulAttrs(False, turned, how.get("alpha", 1.0), how.get("act", Activation()))
        return self.op("MatMul", inputs, out, attrs)

    def norm(self, x: str, out: str, rms: bool = True, shift: bool = False, axis: int = -1) -> str:
        inputs = [x, self.constant(f"{out}.gain", DEPTH)]
        if shift:
            inputs.append(self.constant(f"{out}.shift", DEPTH))
        return self.op("LayerNorm", inputs, out, LayerNormAttrs(axis, 0.1, rms))

    def gated(self, x: str, gate: dict[str, Any], up: dict[str, Any]) -> str:
        a = self.product(x, "gate", **{"columns": 6, "act": Activation("SILU"), **gate})
        b = self.product(x, "up", **{"columns": 6, **up})
        return self.op("BinaryOp", [a, b], "y", BinaryAttrs("MUL"))

    def optimized(self, outputs: Sequence[str], rows: tuple[Dim, ...] = ROWS) -> Graph:
        dtype = DType.from_numpy(self.dtype)
        infos = [TensorInfo("x", dtype, (*rows, DEPTH))]
        ends = [TensorInfo(name, dtype, None) for name in outputs]
        self.graph = Graph("net", infos, ends, self.ops, dict(self.constants))
        return optimize(self.graph, run_op)

    def check(self, better: Graph, outputs: Sequence[str], tolerance: float = 1e-4) -> None:
        x = (self.rng.standard_normal((2, 3, DEPTH)) + 1).astype(self.dtype)
        for name in outputs:
            want, got = (run(graph, x)[name] for graph in (self.graph, better))
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def run(graph: Graph, x: Array) -> dict[str, Array]:
    values: dict[str, Array] = {**graph.constants, "x": x}
    for op in graph.ops:
        results = run_op(op, [values[name] if name else None for name in op.inputs])
        values.update(zip(op.outputs, results, strict=False))
    return values


def types(graph: Graph) -> list[str]:
    return [op.type for op in graph.ops]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("rms", [False, True])
def test_a_norm_a_gate_and_what_it_gates_are_one_product(
    rms: bool, bias: tuple[bool, bool], turned: bool
) -> None:
    net = Net()
    first, second = ({"bias": one, "turned": turned} for one in bias)
    net.gated(net.norm("x", "n", rms, shift=not rms), first, second)
    better = net.optimized(["y"])
    assert types(better) == ["NormedMatMul"]
    assert better.ops[0].attrs.gated
    net.check(better, ["y"])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rms", [False, True])
def test_the_factor_of_a_product_goes_into_its_weights(rms: bool, turned: bool) -> None:
    net = Net()
    net.product(
        net.norm("x", "n", rms, shift=not rms), "y", 5, bias=True, alpha=0.25, turned=turned
    )
    better = net.optimized(["y"])
    assert types(better) == ["NormedMatMul"]
    net.check(better, ["y"])


def test_half_floats_whose_factors_are_too_large_for_them() -> None:
    for factor, kind in ((2.0, np.float16), (60_000.0, np.float32)):
        net = Net("float16")
        net.product(net.norm("x", "n"), "y", 5, bias=True)
        net.constants["n.gain"] = np.full(DEPTH, factor, np.float16)
        net.constants["y.w"][0] = 2.0
        better = net.optimized(["y"])
        assert types(better) == ["NormedMatMul"]
        assert better.constants[better.ops[0].inputs[1]].dtype == kind
        if kind == np.float16:
            net.check(better, ["y"], 3e-2)


@pytest.mark.parametrize(
    ("gate", "up"),
    [
        ({"columns": 5}, {"columns": 5}),  # an odd number
        ({"turned": True}, {}),
        ({"alpha": 0.5}, {}),
        ({}, {"act": Activation("RELU")}),
    ],
)
def test_products_that_differ_stay_apart(gate: dict[str, Any], up: dict[str, Any]) -> None:
    net = Net()
    net.gated("x", gate, up)
    better = net.optimized(["y"])
    assert types(better) == ["MatMul", "MatMul"]
    net.check(better, ["y"])


@pytest.mark.parametrize("rows", [(9,), (3, "N", 4)])
def test_products_of_many_rows_stay_apart(rows: tuple[Dim, ...]) -> None:
    net = Net()
    net.gated(net.norm("x", "n"), {}, {})
    assert types(net.optimized(["y"], rows)) == ["LayerNorm", "MatMul", "MatMul"]


@pytest.mark.parametrize(("axis", "outputs"), [(1, ["y"]), (-1, ["y", "n"])])
def test_rows_that_are_normalised_otherwise_or_read_elsewhere(
    axis: int, outputs: list[str]
) -> None:
    net = Net()
    net.product(net.norm("x", "n", axis=axis), "y", 6)
    better = net.optimized(outputs)
    assert types(better) == ["LayerNorm", "MatMul"]


def test_two_products_normalise_the_same_rows_each_for_itself() -> None:
    for count, kinds in ((2, ["NormedMatMul"] * 2), (3, ["LayerNorm", *["MatMul"] * 3])):
        net = Net()
        net.norm("x", "n")
        names = [net.product("n", f"y{number}", 6 + number) for number in range(count)]
        better = net.optimized(names)
        assert types(better) == kinds
        net.check(better, names)


def test_weights_that_two_products_share_are_not_copied() -> None:
    net = Net()
    first, second = net.norm("x", "n"), net.norm("x", "m", rms=False)
    net.product(first, "y", 6)
    net.op("MatMul", [second, "y.w"], "z", MatMulAttrs())
    better = net.optimized(["y", "z"])
    assert types(better).count("MatMul") == 2


def test_weights_that_devices_may_not_bind_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, kinds in ((64 * 32, ["NormedMatMul"]), (64 * 32 - 1, ["LayerNorm", "MatMul"])):
        monkeypatch.setattr(rowwise, "MAX_WEIGHTS", limit)
        net = Net()
        net.product(net.norm("x", "n"), "y", 33)  # two panels of columns, one of rows
        assert types(net.optimized(["y"])) == kinds


def test_plain_weights_are_gone() -> None:
    """The gain is in a copy of them, which is what the products read."""
    net = Net()
    net.product(net.norm("x", "n", rms=False, shift=True), "y", 8, bias=True)
    graph = net.optimized(["y"])
    assert [op.type for op in graph.ops] == ["NormedMatMul"]
    assert set(graph.constants) == {name for op in graph.ops for name in op.inputs} - {"x", ""}
