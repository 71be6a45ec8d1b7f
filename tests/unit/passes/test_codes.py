"""Products by quantised weights: joined, gated, of normalised rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vkmnn.converter.passes import optimize
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Activation, Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import (
    AttentionAttrs,
    BinaryAttrs,
    LayerNormAttrs,
    MatMulNBitsAttrs,
    ReshapeAttrs,
    TransposeAttrs,
)

DEPTH = 40


class Net:
    """A graph built op by op."""

    def __init__(self) -> None:
        self.ops: list[Op[Any]] = []
        self.constants: dict[str, Array] = {}
        self.rng = np.random.default_rng(1)

    def op(self, kind: str, inputs: Sequence[str], out: str, attrs: Any) -> str:
        self.ops.append(Op(kind, out, list(inputs), [out], attrs))
        return out

    def product(self, x: str, out: str, columns: int, bias: bool = False, **how: Any) -> str:
        zeros: bool | str = how.pop("zeros", False)
        activation = how.pop("activation", Activation())
        codes = self.rng.integers(0, 256, (columns, 2, 16), dtype=np.uint8)
        self.constants[f"{out}.c"] = codes
        scales = self.rng.standard_normal((columns, 2)).astype(np.float32)
        self.constants[f"{out}.s"] = scales
        inputs = [x, f"{out}.c", "", "", f"{out}.s"]
        if bias:
            self.constants[f"{out}.b"] = self.rng.standard_normal(columns).astype(np.float32)
            inputs[2] = f"{out}.b"
        if zeros:
            found: Array = self.rng.integers(0, 16, (columns, 2), dtype=np.uint8)
            if zeros == "floats":
                found = (found / 2 - 4).astype(np.float32)
            self.constants[f"{out}.z"] = found
            inputs.append(f"{out}.z")
        attrs = MatMulNBitsAttrs(4, 32, DEPTH, columns, activation)
        return self.op("MatMulNBits", inputs, out, attrs)

    def optimized(self, outputs: Sequence[str]) -> Graph:
        infos = [TensorInfo("x", DType.FLOAT32, ("N", 3, DEPTH))]
        ends = [TensorInfo(name, DType.FLOAT32, None) for name in outputs]
        self.graph = Graph("net", infos, ends, self.ops, dict(self.constants))
        return optimize(self.graph, run_op)

    def check(self, better: Graph, outputs: Sequence[str]) -> None:
        x = self.rng.standard_normal((2, 3, DEPTH)).astype(np.float32)
        for name in outputs:
            want, got = (run(graph, x)[name] for graph in (self.graph, better))
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def run(graph: Graph, x: Array) -> dict[str, Array]:
    values: dict[str, Array] = {**graph.constants, "x": x}
    for op in graph.ops:
        results = run_op(op, [values[name] if name else None for name in op.inputs])
        values.update(zip(op.outputs, results, strict=False))
    return values


def types(graph: Graph) -> list[str]:
    return [op.type for op in graph.ops]


def norm(net: Net, x: str, out: str, rms: bool = True, axis: int = -1) -> str:
    net.constants["gain"] = net.rng.standard_normal(DEPTH).astype(np.float32)
    return net.op("LayerNorm", [x, "gain"], out, LayerNormAttrs(axis, 0.1, rms))


def gated(net: Net, x: str, gate: dict[str, Any], up: dict[str, Any]) -> str:
    silu = Activation("SILU")
    a = net.product(x, "gate", **{"columns": 6, "activation": silu, **gate})
    b = net.product(x, "up", **{"columns": 6, **up})
    return net.op("BinaryOp", [a, b], "y", BinaryAttrs("MUL"))


@pytest.mark.parametrize("zeros", [False, True, "floats"])
@pytest.mark.parametrize("bias", [(False, False), (True, False), (True, True)])
def test_a_gate_and_what_it_gates_are_one_product(
    bias: tuple[bool, bool], zeros: bool | str
) -> None:
    net = Net()
    first, second = ({"bias": one, "zeros": zeros} for one in bias)
    gated(net, norm(net, "x", "n"), first, second)
    better = net.optimized(["y"])
    assert types(better) == ["MatMulNBits"]
    assert better.ops[0].attrs.gated
    assert better.ops[0].attrs.columns == 12
    net.check(better, ["y"])


@pytest.mark.parametrize(
    ("gate", "up"),
    [
        ({"columns": 5}, {"columns": 5}),  # an odd number
        ({"zeros": True}, {}),  # codes of another form
        ({"zeros": True}, {"zeros": "floats"}),
        ({}, {"activation": Activation("RELU")}),
    ],
)
def test_products_that_differ_stay_apart(gate: dict[str, Any], up: dict[str, Any]) -> None:
    net = Net()
    gated(net, "x", gate, up)
    better = net.optimized(["y"])
    assert types(better).count("MatMulNBits") == 2
    net.check(better, ["y"])


def test_a_gate_that_is_an_output_stays() -> None:
    net = Net()
    gated(net, "x", {}, {})
    better = net.optimized(["y", "gate"])
    assert types(better) == ["MatMulNBits", "MatMulNBits"]
    net.check(better, ["y", "gate"])


@pytest.mark.parametrize(
    ("rms", "axis", "outputs"), [(False, -1, "y"), (True, 1, "y"), (True, -1, "yn")]
)
def test_rows_that_are_normalised_otherwise_or_read_elsewhere(
    rms: bool, axis: int, outputs: str
) -> None:
    net = Net()
    net.product(norm(net, "x", "n", rms, axis), "y", 6)
    better = net.optimized(list(outputs))
    assert types(better) == ["LayerNorm", "MatMulNBits"]
    net.check(better, list(outputs))


@pytest.mark.parametrize("bias", [False, True])
def test_queries_keys_and_values_are_one_product(bias: bool) -> None:
    net = Net()
    net.constants["by_head"] = np.array([0, 0, 2, 4])
    parts = []
    for number, name in enumerate("qkv"):
        y = net.product("x", name, 8, bias and number != 1)
        y = net.op("Reshape", [y, "by_head"], f"{name}.cut", ReshapeAttrs())
        parts.append(net.op("Transpose", [y], f"{name}.t", TransposeAttrs((0, 2, 1, 3))))
    net.op("Attention", parts, "y", AttentionAttrs(0.5))
    better = net.optimized(["y"])
    assert types(better)[:2] == ["MatMulNBits", "Split"]
    assert types(better).count("MatMulNBits") == 1
    net.check(better, ["y"])


def test_products_that_attention_does_not_read_stay_apart() -> None:
    net = Net()
    first, second = (net.product("x", name, 8) for name in "ab")
    net.op("BinaryOp", [first, second], "y", BinaryAttrs("SUB"))
    better = net.optimized(["y"])
    assert types(better).count("MatMulNBits") == 2
