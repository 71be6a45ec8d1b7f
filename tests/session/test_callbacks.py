"""Runs that callers observe: every op with its inputs and outputs, skipped, stopped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.session.test_host_nodes import F, L, S, X, model, node, oracle, value
from vkmnn import Decision, Interpreter, InvalidInputError, OpCall

DEVICES = ["auto", "cpu"] if vkmnn.devices() else ["cpu"]


def net() -> Any:
    """Two products with a branch, a shape that depends on data, and a string node at the end."""
    return model(
        [
            node("MatMul", "x w", "a"),
            node("Softmax", "a", "b"),
            node("NonZero", "b", "n"),
            node("Add", "a b", "y"),
        ],
        [value("x", F, ["N", 4])],
        [value("y", F), value("n", L)],
        {"w": np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)},
    )


def opened(proto: Any, device: str) -> tuple[Interpreter, Any]:
    interpreter = Interpreter(proto)
    session = interpreter.create_session({"device": device})
    interpreter.resize_tensor(session, session.inputs["x"], X.shape)
    session.inputs["x"].copy_from(X)
    interpreter.resize_session(session)
    return interpreter, session


@pytest.mark.parametrize("device", DEVICES)
def test_every_op_is_seen(device: str) -> None:
    proto = net()
    interpreter, session = opened(proto, device)
    calls: list[tuple[str, str]] = []
    seen: dict[str, Any] = {}

    def before(call: OpCall, values: Any) -> None:
        calls.append(("before", call.type))
        seen.update({name: np.array(a) for name, a in values.items()})

    def after(call: OpCall, values: Any) -> bool:
        calls.append(("after", call.type))
        seen.update({name: np.array(a) for name, a in values.items()})
        assert call.source
        assert call.flops == 2 * 3 * 4 * 5 or call.type != "MatMul"
        return True

    for _ in range(2):  # the second time, everything is planned
        calls.clear()
        interpreter.run_session_with_callback(session, before, after)
        assert [kind for when, kind in calls if when == "before"] == [
            kind for when, kind in calls if when == "after"
        ]
        assert {kind for _, kind in calls} >= {"MatMul", "Softmax"}
    y, n = oracle(proto, {"x": X})
    np.testing.assert_allclose(session.outputs["y"].copy_to(), y, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(session.outputs["n"].copy_to(), n)
    np.testing.assert_allclose(
        seen["a"], X @ np.linspace(-1, 1, 20).reshape(4, 5), rtol=1e-4, atol=1e-5
    )
    # An ordinary run afterwards gives the same.
    interpreter.run_session(session)
    np.testing.assert_allclose(session.outputs["y"].copy_to(), y, rtol=1e-5, atol=1e-5)
    session.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("answer", [Decision.SKIP, False])
def test_skipped_ops_give_zeros(device: str, answer: object) -> None:
    interpreter, session = opened(net(), device)

    def before(call: OpCall, values: Any) -> object:
        return answer if call.type == "Softmax" else None

    after: list[str] = []
    interpreter.run_session_with_callback(
        session, before, lambda call, values: after.append(call.type)
    )
    assert "Softmax" not in after
    a = X @ np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_allclose(session.outputs["y"].copy_to(), a, rtol=1e-4, atol=1e-5)
    assert session.outputs["n"].copy_to().shape == (2, 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("early", [False, True])
def test_a_run_may_be_stopped(device: str, early: bool) -> None:
    interpreter, session = opened(net(), device)
    ran: list[str] = []

    def before(call: OpCall, values: Any) -> object:
        ran.append(call.type)
        return Decision.STOP if early else True

    interpreter.run_session_with_callback(
        session, before, lambda call, values: call.type != "MatMul"
    )
    assert ran == ["MatMul"]
    with pytest.raises(InvalidInputError, match="no data yet"):
        session.outputs["y"].copy_to()
    interpreter.run_session_with_callback(session, lambda *_: None, lambda *_: None)
    assert session.outputs["y"].copy_to().shape == (3, 5)


def test_an_exception_of_a_callback_ends_the_run() -> None:
    interpreter, session = opened(net(), DEVICES[0])

    def before(call: OpCall, values: Any) -> None:
        raise KeyError(call.type)

    with pytest.raises(KeyError, match="MatMul"):
        interpreter.run_session_with_callback(session, before, lambda *_: None)
    interpreter.run_session(session)
    assert session.outputs["y"].copy_to().shape == (3, 5)


def test_nodes_of_the_host_are_seen_but_not_skipped() -> None:
    proto = model(
        [
            node("Cast", "x", "t", to=TensorProto.STRING),
            node("StringConcat", "t t", "u"),
        ],
        [value("x", F, [3, 4])],
        [value("u", S)],
    )
    interpreter, session = opened(proto, DEVICES[0])
    seen = []
    interpreter.run_session_with_callback(
        session, lambda call, values: seen.append(call.type), lambda *_: None
    )
    assert "StringConcat" in seen
    with pytest.raises(InvalidInputError, match="cannot be skipped"):
        interpreter.run_session_with_callback(session, lambda *_: False, lambda *_: None)


def test_input_must_be_there() -> None:
    interpreter = Interpreter(net())
    session = interpreter.create_session({"device": DEVICES[0]})
    with pytest.raises(InvalidInputError, match="resize_session"):
        interpreter.run_session_with_callback(session, lambda *_: None, lambda *_: None)


def test_branches_are_one_op() -> None:
    """An If is seen as a whole; its branches run as always."""
    then = helper.make_graph([node("Neg", "x", "p")], "then", [], [value("p", F)])
    other = helper.make_graph([node("Abs", "x", "q")], "other", [], [value("q", F)])
    proto = model(
        [
            node("ReduceSum", "x", "s", keepdims=0),
            node("Less", "s zero", "c"),
            helper.make_node(
                "If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other
            ),
        ],
        [value("x", F, [3, 4])],
        [value("y", F)],
        {"zero": np.float32(0)},
    )
    interpreter, session = opened(proto, DEVICES[0])
    interpreter.run_session_with_callback(session, lambda *_: None, lambda *_: None)
    (want,) = oracle(proto, {"x": X})
    np.testing.assert_allclose(session.outputs["y"].copy_to(), want, rtol=1e-6)
