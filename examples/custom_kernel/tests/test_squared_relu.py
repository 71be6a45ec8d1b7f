"""The Custom op and the pass that makes it: numpy and the device against the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import vkmnn
from onnx import TensorProto, helper

Array = npt.NDArray[Any]

SHAPES = [(), (1,), (0, 3), (7,), (3, 5), (2, 3, 5, 7), (1, 13, 17, 31)]


def model(nodes: list[onnx.NodeProto], rank: int, dtype: int = TensorProto.FLOAT) -> bytes:
    """Return a model for an input of this rank and any size."""
    dims = [f"d{axis}" for axis in range(rank)]
    x = helper.make_tensor_value_info("x", dtype, dims)
    y = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph(nodes, "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("vkmnn", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(made.SerializeToString())


def pattern(second: str = "r") -> list[onnx.NodeProto]:
    """Return relu(x) · relu(x), or a product of something else."""
    relu = helper.make_node("Relu", ["x"], ["r"])
    return [relu, helper.make_node("Mul", ["r", second], ["y"])]


@pytest.fixture(params=["cpu", "auto"], ids=["numpy", "device"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "auto" and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    return str(request.param)


def run(model: bytes, device: str, x: Array) -> tuple[Array, list[tuple[str, str]]]:
    """Return the result, and the type and the kernel's provider of every op."""
    # require_device: where the kernel is not reached, this would be a test of numpy only.
    with vkmnn.InferenceSession(model, device, require_device=True) as session:
        y: Array = session.run(None, {"x": x})[0]
        return y, [(op.type, op.provider) for op in session.placement()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_pattern_becomes_one_op(device: str, shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), np.float32)
    y, ops = run(model(pattern(), len(shape)), device, x)
    np.testing.assert_allclose(y, np.where(x > 0, x, 0) ** 2, rtol=1e-5, atol=1e-6)
    assert y.shape == shape
    if x.size:
        assert ops == [("Custom", "acme" if device == "auto" else "vkmnn")]


def test_other_products_stay(device: str) -> None:
    x = np.array([[1, -2, 3]], np.float32)
    y, ops = run(model(pattern("x"), 2), device, x)
    np.testing.assert_allclose(y, np.maximum(x, 0) * x)
    assert "Custom" not in dict(ops)


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_model_may_name_it(device: str, scale: float) -> None:
    node = helper.make_node(
        "Custom", ["x"], ["y"], domain="vkmnn", type="acme.SquaredRelu", scale=scale
    )
    x = np.array([[-1, 0, 2, np.nan, np.inf]], np.float32)
    y, _ = run(model([node], 2), device, x)
    np.testing.assert_allclose(y, np.array([[0, 0, 4 * scale, np.nan, np.inf]], np.float32))


def test_integers_run_on_numpy() -> None:
    x = np.array([[3, -4]], np.int32)
    with vkmnn.InferenceSession(model(pattern(), 2, TensorProto.INT32)) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], [[9, 0]])
