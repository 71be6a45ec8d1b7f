"""Loops on the host that do not end by themselves."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from vkmnn import InferenceSession
from vkmnn.errors import HostError

X = {"x": np.ones(2, np.float32), "go": np.array(True)}


def endless(nodes: list[onnx.NodeProto], going: str, result: str) -> onnx.ModelProto:
    """Return a network of one Loop without a limit, which continues while `go` is true."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes,
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("c", TensorProto.BOOL, []),
            value("v", TensorProto.FLOAT, [2]),
        ],
        [value(going, TensorProto.BOOL, []), value(result, TensorProto.FLOAT, [2])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "go", "x"], ["y"], name="forever", body=body)],
        "g",
        [value("x", TensorProto.FLOAT, [2]), value("go", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS = {
    "some nodes": endless(
        [helper.make_node("Not", ["c"], ["n"]), helper.make_node("Not", ["n"], ["d"])], "d", "v"
    ),
    "no nodes": endless([], "c", "v"),
}


@pytest.mark.parametrize("engine", ["auto", "onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_it_ends_with_the_time(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_HOST_ENGINE", engine)
    monkeypatch.setenv("VKMNN_TIMEOUT", "0.5")
    with InferenceSession(MODELS[name]) as session:
        start = time.monotonic()
        with pytest.raises(HostError, match=r"a loop took more than 0\.5 s") as caught:
            session.run(None, X)
        assert time.monotonic() - start < 30
        assert caught.value.op == "Loop"
        assert "VKMNN_TIMEOUT" in str(caught.value)
        (y,) = session.run(None, {**X, "go": np.array(False)})  # it still works
        assert y.tolist() == [1, 1]


@pytest.mark.parametrize("engine", ["auto", "onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_ctrl_c_ends_it(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_HOST_ENGINE", engine)
    with InferenceSession(MODELS[name]) as session:
        key = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        key.start()
        with pytest.raises(KeyboardInterrupt):
            session.run(None, X)
        key.join()
        (y,) = session.run(None, {**X, "go": np.array(False)})
        assert y.tolist() == [1, 1]
