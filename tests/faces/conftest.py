"""Small models that every face runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def dense_model() -> onnx.ModelProto:
    """Return y = x @ w + b, z = relu(y), with metadata; b may be fed."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b"], ["y"], name="sum"),
        helper.make_node("Relu", ["y"], ["z"], name="relu"),
    ]
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    graph = helper.make_graph(
        nodes,
        "dense",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, None),
        ],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.ones(3, np.float32), "b"),
        ],
        doc_string="a dense layer",
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="tests",
        doc_string="one layer",
    )
    model.domain = "faces"
    model.model_version = 5
    helper.set_model_props(model, {"names": "{0: 'cat', 1: 'dog', 2: 'fox'}", "stride": "32"})
    return model


def picture_model() -> onnx.ModelProto:
    """Return a small image classifier [N, 3, 8, 8]."""
    random = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["image", "k"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Softmax", ["f"], ["scores"], axis=1),
    ]
    kernel = random.standard_normal((5, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "pictures",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 5])],
        [numpy_helper.from_array(kernel, "k")],
    )
    sets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the image classifier."""
    path = tmp_path_factory.mktemp("faces") / "pictures.onnx"
    onnx.save(picture_model(), path)
    return path


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the dense model."""
    path = tmp_path_factory.mktemp("faces") / "dense.onnx"
    onnx.save(dense_model(), path)
    return path
