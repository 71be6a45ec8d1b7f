"""Quantised products with weights of unknown shape run on the host, and are exact."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkmnn

LARGE = np.full((1, 16, 3, 3), 255, np.uint8)
"""Pairs of these by 127 are beyond 16 bits, in which onnxruntime adds them on some processors."""
SCALE = 0.01


@pytest.mark.parametrize("weight", [127, -128])
@pytest.mark.parametrize("zero_point", [0, 1])
def test_convolution(weight: int, zero_point: int) -> None:
    node = helper.make_node("QLinearConv", [*"xsz", "w", *"tvun"], ["y"])
    constants = {
        "z": np.array(0, np.uint8),
        "t": np.array(SCALE, np.float32),
        "v": np.array(zero_point, np.int8),
        "u": np.array(1.0, np.float32),
        "n": np.array(100, np.uint8),
    }
    graph = helper.make_graph(
        [node],
        "codes",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, LARGE.shape),
            helper.make_tensor_value_info("w", TensorProto.INT8, list("ochw")),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 2, 2, 2])],
        [
            helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape, [a.item()])
            for name, a in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    weights = np.full((2, 16, 2, 2), weight, np.int8)
    feeds = {"x": LARGE, "w": weights, "s": np.array(SCALE, np.float32)}
    with vkmnn.InferenceSession(model.SerializeToString()) as session:
        (got,) = session.run(None, feeds)
        assert [op.backend for op in session.placement()] == ["onnxruntime"]
    exact = 64 * 255 * (weight - zero_point) * SCALE**2 + 100
    assert (got == np.clip(np.rint(exact), 0, 255)).all()
