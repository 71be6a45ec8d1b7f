"""Static quantization of rows of -inf: NaN has a defined result among integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession

X = np.float32([-np.inf, np.inf, np.nan, -3.7, 0.0, 1e9, 2.5])


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("scale", [0.5, np.inf, 0.0])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_nan_becomes_the_lower_limit(dtype: str, scale: float, device: str) -> None:
    zero = np.array(3, dtype)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(zero.dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [
            helper.make_tensor_value_info("q", kind, X.shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape),
        ],
        [
            numpy_helper.from_array(np.float32(scale), "scale"),
            numpy_helper.from_array(zero, "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = open_oracle(model)
    with InferenceSession(model, device) as ours:
        for one, other in zip(ours.run(None, {"x": X}), session.run(None, {"x": X}), strict=True):
            np.testing.assert_array_equal(one, other)
