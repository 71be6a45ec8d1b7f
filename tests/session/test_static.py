"""Networks of fixed shapes: shapes and geometry are worked out once, for all plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import vkmnn
from tests.session.models import model, value
from vkmnn.core import plan
from vkmnn.core.static import StaticShapes
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import BinaryAttrs

DEVICES = ["auto", "cpu"] if vkmnn.devices() else ["cpu"]
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def network(first: object) -> Any:
    """Return a network with data movement, two outputs and a constant that is computed."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
        helper.make_node("Concat", ["t", "t"], ["c"], axis=2),
        helper.make_node("Exp", ["k"], ["e"]),
        helper.make_node("Mul", ["c", "e"], ["y"]),
        helper.make_node("Relu", ["t"], ["z"]),
    ]
    constants = [numpy_helper.from_array(np.linspace(0, 1, 6, dtype=np.float32), "k")]
    outputs = [value("y", [4, first, 6]), value("z", [4, first, 3])]
    return model(nodes, [value("x", [first, 3, 4])], outputs, constants)


def answer(x: Any) -> tuple[Any, Any]:
    t = x.transpose(2, 0, 1)
    factor = np.exp(np.linspace(0, 1, 6, dtype=np.float32))
    return np.concatenate([t, t], 2) * factor, np.maximum(t, 0)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with every time that shapes or geometry are worked out."""
    done: list[str] = []

    def counted(name: str) -> Any:
        real = getattr(plan, name)

        def call(*arguments: Any) -> Any:
            done.append(name)
            return real(*arguments)

        return call

    for name in ("resolve", "lower"):
        monkeypatch.setattr(plan, name, counted(name))
    return done


def run(net: vkmnn.Interpreter, session: Any, x: Any = X) -> None:
    net.resize_tensor(session, session.inputs["x"], x.shape)
    net.resize_session(session)
    session.inputs["x"].copy_from(x)
    net.run_session(session)
    for name, wanted in zip("yz", answer(x), strict=True):
        np.testing.assert_allclose(session.outputs[name].copy_to(), wanted, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_fixed_shapes_are_worked_out_once(device: str, worked: list[str]) -> None:
    net = vkmnn.Interpreter(network(2))
    sessions = [net.create_session({"device": device}) for _ in range(3)]
    for session in sessions:
        run(net, session)
    once = ["resolve"] if device == "cpu" else ["resolve", "lower"]
    assert worked == once
    sessions[0].release_cache()
    run(net, sessions[0])  # planned again
    sessions[1].close()
    run(net, sessions[2])
    assert worked == once
    assert sessions[0].core.counters()["plans"] == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("device", DEVICES)
def test_open_shapes_are_worked_out_for_each_plan(device: str, worked: list[str]) -> None:
    net = vkmnn.Interpreter(network("N"))
    for number, x in enumerate((X, X[:1], X), 1):
        run(net, net.create_session({"device": device}), x)
        assert worked.count("resolve") == number


@pytest.mark.parametrize("device", DEVICES)
def test_other_outputs_are_another_network(device: str, worked: list[str]) -> None:
    net = vkmnn.Interpreter(network(2))
    run(net, net.create_session({"device": device}))
    saved = net.create_session({"device": device, "saveTensors": ("c",)})
    run(net, saved)
    np.testing.assert_array_equal(
        saved.outputs["c"].copy_to(), np.concatenate([X.transpose(2, 0, 1)] * 2, 2)
    )
    assert worked.count("resolve") == 2
    changed = net.create_session({"device": device})
    net.get_session_constant(changed, "k").copy_from(np.zeros(6, np.float32))
    net.resize_session(changed)  # other weights: nothing is taken over
    changed.inputs["x"].copy_from(X)
    net.run_session(changed)
    np.testing.assert_array_equal(
        changed.outputs["y"].copy_to(), np.concatenate([X.transpose(2, 0, 1)] * 2, 2)
    )


def planned(graph: Graph, static: StaticShapes, size: int) -> plan.Plan:
    """Return a plan on the numpy backend."""
    inputs = {"x": TensorInfo("x", DType.FLOAT32, (size, 2))}
    return plan.Plan(graph, inputs, {}, CpuBackend(), CpuBackend(), run_op, static=static)


def sums(constant: Array) -> Graph:
    """Return a network that adds a constant to rows of two."""
    x, y = (TensorInfo(name, DType.FLOAT32, ("N", 2)) for name in "xy")
    op = Op("BinaryOp", "add", ["x", "k"], ["y"], BinaryAttrs("ADD"))
    return Graph("sums", [x], [y], [op], {"k": constant})


def test_plans_share_the_constants_of_their_network() -> None:
    graph, static = sums(np.ones(2, np.float32)), StaticShapes()
    one, two = (planned(graph, static, size).commands[0].inputs for size in (3, 4))
    assert one[1] is two[1]
    assert one[0] is not two[0]


def test_another_constant_of_the_same_name_is_not_taken_for_it() -> None:
    static = StaticShapes()
    planned(sums(np.ones(2, np.float32)), static, 3)
    other = planned(sums(np.full((1, 2), 2, np.float32)), static, 3)
    assert other.infos["k"].shape == (1, 2)
    (y,) = other.execute({"x": np.zeros((3, 2), np.float32)}).values()
    np.testing.assert_array_equal(y, np.full((3, 2), 2))
