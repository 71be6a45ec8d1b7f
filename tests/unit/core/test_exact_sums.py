"""Sums of quantised values that host nodes get from onnxruntime, on every processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn.bench.engine import Job
from vkmnn.bench.engines.ort import OnnxRuntime
from vkmnn.host.exact_codes import with_exact_codes

A = np.full((1, 4), 255, np.uint8)
W = np.full((4, 2), -127, np.int8)


def products(count: int, constant: bool) -> onnx.ModelProto:
    """Return the sum of some products of bytes, among other nodes."""
    nodes = []
    for number in range(count):
        nodes.append(helper.make_node("Identity", ["a"], [f"a{number}"]))
        nodes.append(helper.make_node("MatMulInteger", [f"a{number}", "w"], [f"y{number}"]))
    nodes.append(helper.make_node("Sum", [f"s{number}" for number in range(count)], ["y"]))
    for number in range(count):
        cast = helper.make_node("Cast", [f"y{number}"], [f"s{number}"], to=TensorProto.FLOAT)
        nodes.insert(-1, cast)
    inputs = [helper.make_tensor_value_info("a", TensorProto.UINT8, A.shape)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.INT8, W.shape))
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(W, "w")] if constant else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_every_product_of_mixed_signs_has_unsigned_weights(count: int, constant: bool) -> None:
    """However many nodes there are: types of weights, not places of objects, decide."""
    model = products(count, constant)
    exact = onnx.shape_inference.infer_shapes(with_exact_codes(model), strict_mode=True)
    types = {one.name: one.type.tensor_type.elem_type for one in exact.graph.value_info}
    found = [node for node in exact.graph.node if node.op_type == "MatMulInteger"]
    assert len(found) == count
    assert all(types[node.input[1]] == TensorProto.UINT8 for node in found)
    onnx.checker.check_model(exact)


@pytest.mark.parametrize("optimised", [True, False])
@pytest.mark.parametrize("constant", [True, False])
def test_the_oracle_is_exact(constant: bool, optimised: bool) -> None:
    """With an emulated processor (`.ci/run`), too: its 16 bits would saturate at -65,536."""
    session = open_oracle(products(1, constant), optimised=optimised)
    feeds = {"a": A} if constant else {"a": A, "w": W}
    (got,) = session.run(None, feeds)
    np.testing.assert_array_equal(got, A.astype(np.int64) @ W.astype(np.int64))


@pytest.mark.parametrize("engine", ["oracle", "bench"])
def test_weights_per_channel_need_no_zero_point(engine: str, tmp_path: Path) -> None:
    """onnxruntime takes such files, but not where it makes their weights uint8."""
    weights = np.arange(-108, 108, dtype=np.int8).reshape(8, 3, 3, 3)
    scales = np.linspace(0.01, 0.02, 8, dtype=np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0),
        helper.make_node("Conv", ["x", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(scales, "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.ones((1, 3, 5, 5), np.float32)}
    if engine == "oracle":
        (got,) = open_oracle(model).run(None, feeds)
    else:
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        bench = OnnxRuntime()
        bench.load(Job(path, feeds, "auto", "", 0, 1, tmp_path))
        (got,) = bench.run()
    sums = weights.reshape(8, -1).sum(1, dtype=np.int64) * scales
    np.testing.assert_allclose(got, np.broadcast_to(sums[:, None, None], (8, 3, 3))[None], 1e-5)
