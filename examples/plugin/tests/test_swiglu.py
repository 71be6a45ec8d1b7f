"""SwiGLU: numpy and the device against its formula, through ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import vkmnn
from onnx import TensorProto, helper
from vkmnn.plugin import Op
from vkmnn.testing.axes import check_axes

from vkmnn_swiglu.swiglu import SwiGLUAttrs

Array = npt.NDArray[Any]

OP = "SwiGLU"
DOMAIN = "vkmnn_swiglu"
INPUTS = ["x0", "x1"]
# 0-d, one element, nothing, odd and prime sizes, more than one workgroup.
SHAPES = [(), (1,), (0, 3), (7,), (3, 5), (2, 3, 5, 7), (1, 13, 17, 31)]
ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {
        "alpha": 1.5,
    },
]


def expected(
    x0: Array,
    x1: Array,
    *,
    alpha: float = 1.0,
) -> Array:
    """Return what the operator is, written without a look at how it does it."""
    return x0 * (0.5 + 0.5 * np.tanh(0.5 * alpha * x0)) * x1


def model(rank: int, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node, for inputs of this rank and any size."""
    dims = [f"d{axis}" for axis in range(rank)]
    node = helper.make_node(OP, INPUTS, ["y"], domain=DOMAIN, **attributes)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in INPUTS]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)
    graph = helper.make_graph([node], OP, inputs, [output])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture(params=["cpu", "auto"], ids=["numpy", "device"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "auto" and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    return str(request.param)


@pytest.mark.parametrize("attributes", ATTRIBUTES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_formula(device: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for _ in INPUTS]
    # require_device: where the kernel is not reached, this would be a test of numpy only.
    session = vkmnn.InferenceSession(model(len(shape), **attributes), device, require_device=True)
    y: Array = session.run(None, dict(zip(INPUTS, arrays, strict=True)))[0]
    assert y.shape == shape
    np.testing.assert_allclose(y, expected(*arrays, **attributes), rtol=1e-5, atol=1e-6)


def test_the_declared_axes() -> None:
    """Compare parts along each axis with the whole, by numpy."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((2, 3, 5)).astype(np.float32) for _ in INPUTS]
    attrs = SwiGLUAttrs(**ATTRIBUTES[0])
    check_axes(Op(OP, "op", INPUTS, ["y"], attrs), arrays)


def test_inputs_of_different_shapes_are_refused() -> None:
    free = model(1, **ATTRIBUTES[0])
    for index, value in enumerate(free.graph.input):
        value.type.tensor_type.shape.dim[0].dim_param = f"n{index}"
    session = vkmnn.InferenceSession(free, "cpu")
    feeds = {name: np.zeros(3 + index, np.float32) for index, name in enumerate(INPUTS)}
    with pytest.raises(vkmnn.ShapeError, match="differ"):
        session.run(None, feeds)


def test_between_convolutions_of_16_bits(device: str) -> None:
    """Channel-blocked operands, with unused lanes in the last block."""
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 5, 6, 7)).astype(np.float32)
    w = random.standard_normal((5, 5, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node(OP, ["a", "a"], ["b"], domain=DOMAIN),
        helper.make_node("Conv", ["b", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "between",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    a = np.einsum("oi,nihw->nohw", w[:, :, 0, 0], x)
    y = np.einsum("oi,nihw->nohw", w[:, :, 0, 0], expected(a, a))
    whole = vkmnn.InferenceSession(proto, device, precision="high")
    half = vkmnn.InferenceSession(proto, device, precision="normal")
    for session, tolerance in ((whole, 1e-4), (half, 0.05)):
        got: Array = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(got, y, tolerance, tolerance)
