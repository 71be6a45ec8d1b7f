"""Ops on tensors of more than 128 MiB, which many devices do not bind at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.model.oracle import assert_agree
from tests.onnxruntime_oracle import open_oracle


def one_node(
    op: str, shape: tuple[int, ...], constants: dict[str, np.ndarray[Any, Any]], **attributes: Any
) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", *constants], ["y"], **attributes)
    given = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        op,
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, None)],
        given,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


# 128 MiB are 2**25 floats.
LARGE: dict[str, tuple[str, tuple[int, ...], dict[str, np.ndarray[Any, Any]], dict[str, Any]]] = {
    "one element too many": ("Relu", (2**25 + 1,), {}, {}),
    "a result": (
        "Conv",
        (1, 3, 1600, 1600),
        {"w": weights(16, 3, 3, 3)},
        {"pads": [1, 1, 1, 1]},
    ),
    "activations": ("MatMul", (300001, 128), {"w": weights(128, 5)}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_more_than_devices_must_bind(name: str) -> None:
    op, shape, constants, attributes = LARGE[name]
    model = one_node(op, shape, constants, **attributes)
    x = np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
    expected = open_oracle(model).run(None, {"x": x})
    with vkmnn.InferenceSession(model, require_device=True) as session:
        assert_agree(session.run(None, {"x": x}), expected, what=name)
