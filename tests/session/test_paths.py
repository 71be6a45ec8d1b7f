"""Parts of a network by names, and sessions of several parts on several backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.session.models import model, value
from vkmnn import Decision, Interpreter, InvalidInputError, NetworkPath, PathNames, ScheduleConfig

DEVICES = ["auto", "cpu"] if vkmnn.devices() else ["cpu"]
PAIRS = [(first, second) for first in DEVICES for second in DEVICES]
RNG = np.random.default_rng(3)
W1 = RNG.standard_normal((3, 4)).astype(np.float32)
W2 = RNG.standard_normal((4, 5)).astype(np.float32)
X = RNG.standard_normal((2, 3)).astype(np.float32)
H = np.maximum(X @ W1, 0)
Y = np.tanh(H @ W2)
Z = H.sum(1, keepdims=True)


def net(rows: object = "N") -> onnx.ModelProto:
    """Return a trunk with two heads, all of whose ops are fused when it is optimised as a whole."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p"], name="trunk"),
        helper.make_node("Relu", ["p"], ["h"], name="trunk_relu"),
        helper.make_node("MatMul", ["h", "w2"], ["q"], name="head"),
        helper.make_node("Tanh", ["q"], ["y"], name="head_tanh"),
        helper.make_node("ReduceSum", ["h", "axes"], ["z"], name="sum"),
    ]
    constants = [
        numpy_helper.from_array(W1, "w1"),
        numpy_helper.from_array(W2, "w2"),
        numpy_helper.from_array(np.array([1]), "axes"),
    ]
    outputs = [value("y", [rows, 5]), value("z", [rows, 1])]
    return model(nodes, [value("x", [rows, 3])], outputs, constants)


def tensors(inputs: str, outputs: str) -> NetworkPath:
    return NetworkPath(tuple(inputs.split()), tuple(outputs.split()), PathNames.TENSOR)


def ops(inputs: str, outputs: str) -> NetworkPath:
    return NetworkPath(tuple(inputs.split()), tuple(outputs.split()))


def results(interpreter: Interpreter, session: Any, **feeds: Any) -> dict[str, Any]:
    for name, array in feeds.items():
        interpreter.resize_tensor(session, session.inputs[name], array.shape)
    interpreter.resize_session(session)
    for name, array in feeds.items():
        session.inputs[name].copy_from(array)
    interpreter.run_session(session)
    return {name: tensor.copy_to() for name, tensor in session.outputs.items()}


def same(found: dict[str, Any], **wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("path", "feeds", "wanted"),
    [
        (tensors("", "y"), {"x": X}, {"y": Y}),
        (tensors("x", "z"), {"x": X}, {"z": Z}),
        (tensors("h", "y"), {"h": H}, {"y": Y}),
        (tensors("h", ""), {"h": H}, {"y": Y, "z": Z}),
        (tensors("p", "q h"), {"p": X @ W1}, {"q": H @ W2, "h": H}),
        (ops("", "trunk_relu"), {"x": X}, {"h": H}),
        (ops("x", "head"), {"x": X}, {"q": H @ W2}),
        (ops("trunk", "sum"), {"p": X @ W1}, {"z": Z}),
        (ops("trunk_relu", "head_tanh sum"), {"h": H}, {"y": Y, "z": Z}),
        (NetworkPath(), {"x": X}, {"y": Y, "z": Z}),
    ],
)
def test_a_part_by_names(device: str, path: NetworkPath, feeds: Any, wanted: Any) -> None:
    interpreter = Interpreter(net())
    with interpreter.create_session(ScheduleConfig(device, path=path)) as session:
        same(results(interpreter, session, **feeds), **wanted)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_parts_on_backends_of_their_own(first: str, second: str) -> None:
    interpreter = Interpreter(net())
    trunk = ScheduleConfig(first, path=tensors("x", "h"))
    head = ScheduleConfig(second, path=tensors("h", "y z"))
    session = interpreter.create_session([trunk, head])
    assert list(session.inputs) == ["x"]
    for rows in (2, 1, 2):
        found = results(interpreter, session, x=X[:rows])
        same(found, h=H[:rows], y=Y[:rows], z=Z[:rows])
    kinds = {"auto": "VULKAN", "cpu": "CPU"}
    info = interpreter.session_info(session)
    assert info.backends == tuple(dict.fromkeys((kinds[first], kinds[second])))
    assert info.flops >= 2 * 2 * (3 * 4 + 4 * 5)
    placed = session.placement()
    assert placed.copies == 1
    assert {op.backend for op in placed.ops} == set(info.backends)
    assert [device.name.startswith("CPU") for device in session.devices] == [
        first == "cpu",
        second == "cpu",
    ]
    session.close()
    with pytest.raises(InvalidInputError, match="closed"):
        interpreter.run_session(session)


def test_a_node_that_became_several_ops() -> None:
    nodes = [
        helper.make_node("Sum", ["x", "x", "x"], ["s"], name="total"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
    ]
    interpreter = Interpreter(model(nodes, [value("x", [2, 3])], [value("y", [2, 3])]))
    first = interpreter.create_session(ScheduleConfig("cpu", path=ops("", "total")))
    same(results(interpreter, first, x=X), s=3 * X)
    second = interpreter.create_session(ScheduleConfig("cpu", path=ops("total", "relu")))
    same(results(interpreter, second, s=X), y=np.maximum(X, 0))


def test_what_is_not_named_is_handed_over_but_not_returned() -> None:
    """Parts without names: the second is what the first leaves, and reads what it needs of it."""
    interpreter = Interpreter(net())
    parts = [
        ScheduleConfig("cpu", path=ops("", "sum")),
        ScheduleConfig("cpu", path=ops("trunk_relu", "head_tanh")),
    ]
    session = interpreter.create_session(parts)
    same(results(interpreter, session, x=X), z=Z, y=Y)


def test_saved_tensors_of_a_part() -> None:
    interpreter = Interpreter(net())
    config = ScheduleConfig("cpu", path=tensors("", "y"), save_tensors=("h",))
    same(results(interpreter, interpreter.create_session(config), x=X), y=Y, h=H)


def test_planned_at_once_where_shapes_are_fixed() -> None:
    interpreter = Interpreter(net(2))
    parts = [
        ScheduleConfig(DEVICES[0], path=tensors("x", "h")),
        ScheduleConfig("cpu", path=tensors("h", "y")),
    ]
    session = interpreter.create_session(parts)
    assert session.state is vkmnn.SessionStatus.READY
    session.inputs["x"].copy_from(X)
    interpreter.run_session(session)
    same({"y": session.outputs["y"].copy_to()}, y=Y)
    session.release_cache()
    assert session.state is vkmnn.SessionStatus.NEEDS_MEMORY


@pytest.mark.parametrize("stop", [None, "head", "trunk"])
def test_callbacks_go_through_all_parts(stop: str | None) -> None:
    interpreter = Interpreter(net(2))
    parts = [
        ScheduleConfig(DEVICES[0], path=tensors("x", "h")),
        ScheduleConfig("cpu", path=tensors("h", "y z")),
    ]
    session = interpreter.create_session(parts)
    session.inputs["x"].copy_from(X)
    seen: list[str] = []

    def before(call: Any, values: Any) -> Decision:
        seen.append(call.source)
        return Decision.STOP if stop and call.source.startswith(stop) else Decision.GO_ON

    interpreter.run_session_with_callback(session, before, lambda *_: None)
    assert any(source.startswith("trunk") for source in seen)
    assert any(source.startswith("head") for source in seen) == (stop != "trunk")
    if stop is None:
        same({name: session.outputs[name].copy_to() for name in ("y", "z")}, y=Y, z=Z)
        return
    with pytest.raises(InvalidInputError, match="no data yet"):
        session.outputs["y"].copy_to()


def test_a_shape_that_only_the_run_tells() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], name="find"),
        helper.make_node("Transpose", ["n"], ["t"], name="turn"),
    ]
    proto = model(nodes, [value("x", ["A", "B"])], [value("t", ["K", 2], TensorProto.INT64)])
    interpreter = Interpreter(proto)
    parts = [
        ScheduleConfig("cpu", path=ops("", "find")),
        ScheduleConfig("cpu", path=ops("find", "turn")),
    ]
    session = interpreter.create_session(parts)
    x = np.array([[0, 1, 2], [3, 0, 0]], np.float32)
    found = results(interpreter, session, x=x)
    np.testing.assert_array_equal(found["t"], np.argwhere(x))
    found = results(interpreter, session, x=x.T.copy())
    np.testing.assert_array_equal(found["t"], np.argwhere(x.T))


def test_a_failure_ends_the_run() -> None:
    """The second part fails in the run: its results are none, and the session runs on."""
    nodes = [
        helper.make_node("Relu", ["i"], ["r"], name="relu"),
        helper.make_node("Gather", ["table", "r"], ["g"], name="look_up"),
    ]
    table = numpy_helper.from_array(np.arange(3, dtype=np.float32), "table")
    kind = TensorProto.INT64
    proto = model(nodes, [value("i", [2], kind)], [value("g", [2])], [table])
    interpreter = Interpreter(proto)
    parts = [
        ScheduleConfig("cpu", path=ops("", "relu")),
        ScheduleConfig(DEVICES[0], path=ops("relu", "look_up")),
    ]
    session = interpreter.create_session(parts)
    with pytest.raises(vkmnn.VkmnnError, match="look_up"):
        results(interpreter, session, i=np.array([0, 7]))
    found = results(interpreter, session, i=np.array([-5, 2]))
    np.testing.assert_array_equal(found["g"], [0, 2])


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        ([tensors("x", "hh")], r"no tensor 'hh'(.|\n)*did you mean 'h'"),
        ([ops("x", "haed")], r"no op 'haed'(.|\n)*did you mean 'head'"),
        ([tensors("y", "h")], "'y' is not read on the way"),
        ([tensors("x", "x")], "no op leads from x to x"),
        (
            [tensors("h", "y"), tensors("x", "h")],
            "0 reads 'h', an output of a later one",
        ),
        ([tensors("x", "h"), tensors("x", "y h")], "1 produces 'h', as one before it does"),
        ([], "needs a configuration"),
    ],
)
def test_paths_that_cannot_be(paths: list[NetworkPath], text: str) -> None:
    interpreter = Interpreter(net())
    with pytest.raises(InvalidInputError, match=text):
        interpreter.create_session([ScheduleConfig("cpu", path=path) for path in paths])
    assert interpreter.sessions == ()


def test_the_other_faces_take_no_path() -> None:
    with pytest.raises(InvalidInputError, match="Interpreter"):
        vkmnn.opening.open_model(net(), ScheduleConfig("cpu", path=tensors("x", "h")))
