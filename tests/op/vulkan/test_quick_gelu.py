"""QuickGelu and Swish: numpy and the device against onnxruntime and the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle

pytest.importorskip("onnxruntime")

Array = npt.NDArray[Any]

# 0-d, one element, nothing, odd and prime sizes, more than one workgroup.
SHAPES = [(), (1,), (0, 3), (7,), (3, 5), (2, 3, 5, 7), (1, 13, 17, 31)]
ATTRIBUTES: list[dict[str, Any]] = [{}, {"alpha": 2.202}, {"alpha": 1.0}, {"alpha": -0.5}]


def model(
    rank: int, kind: str = "QuickGelu", dtype: int = TensorProto.FLOAT, **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one node, for inputs of this rank and any size."""
    domain = "com.microsoft" if kind == "QuickGelu" else ""
    dims = [f"d{axis}" for axis in range(rank)]
    node = helper.make_node(kind, ["x"], ["y"], domain=domain, **attributes)
    x = helper.make_tensor_value_info("x", dtype, dims)
    y = helper.make_tensor_value_info("y", dtype, dims)
    graph = helper.make_graph([node], kind, [x], [y])
    opsets = [helper.make_opsetid("", 24 if not domain else 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets[: 1 + bool(domain)], ir_version=10)


def formula(x: Array, alpha: float) -> Array:
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        return wide / (1 + np.exp(-alpha * wide))


@pytest.fixture(params=["cpu", "auto"], ids=["numpy", "device"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "auto" and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    return str(request.param)


def run(proto: onnx.ModelProto, x: Array, device: str) -> Array:
    # require_device: where the kernel is not reached, this would be a test of numpy only.
    session = vkmnn.InferenceSession(proto, device, require_device=True)
    y: Array = session.run(None, {"x": x})[0]
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    return y


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_onnxruntime(
    device: str, shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    x = 3 * np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x = np.asarray(x)
    proto = model(len(shape), **attributes)
    oracle = open_oracle(proto).run(None, {"x": x})[0]
    # onnxruntime's own sigmoid is an approximation.
    np.testing.assert_allclose(run(proto, x, device), oracle, rtol=1e-4, atol=1e-5)
    exact = formula(x, attributes.get("alpha", 1.702))
    np.testing.assert_allclose(run(proto, x, device), exact, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("alpha", [1.0, 1.702])
@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 24, reason="this onnx has no Swish")
def test_swish(device: str, alpha: float) -> None:
    x = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)
    y = run(model(2, "Swish", alpha=alpha), x, device)
    np.testing.assert_allclose(y, formula(x, alpha), rtol=2e-6, atol=1e-7)


def test_half_precision_and_special_values(device: str) -> None:
    x = np.array([0, -0.0, 1, -1, 60000, -60000, np.nan, np.inf], np.float16)
    y = run(model(1, dtype=TensorProto.FLOAT16), x, device)
    np.testing.assert_allclose(y, formula(x, 1.702).astype(np.float16), rtol=1e-3)


def test_between_convolutions(device: str) -> None:
    """Channel-blocked tensors of a number of channels that leaves lanes over."""
    random = np.random.default_rng(2)
    x = random.standard_normal((2, 5, 6, 7)).astype(np.float32)
    weights = [random.standard_normal((5, 5, 3, 3)).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("QuickGelu", ["a"], ["b"], domain="com.microsoft"),
        helper.make_node("Conv", ["b", "w1"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "between",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(w, f"w{index}") for index, w in enumerate(weights)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = vkmnn.InferenceSession(proto, device, require_device=True)
    oracle = open_oracle(proto)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], oracle.run(None, {"x": x})[0], rtol=1e-3, atol=1e-3
    )
