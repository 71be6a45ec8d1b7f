"""Nodes of the domain acme.ai, on numpy and on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import vkmnn
from onnx import TensorProto, helper

Array = npt.NDArray[Any]
X = np.array([[0.5, -1, 3], [2, 0, -7]], np.float32)


@pytest.fixture(params=["cpu", "auto"], ids=["numpy", "device"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "auto" and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    return str(request.param)


def run(device: str, op: str, inputs: int = 1, version: int = 1, **attributes: Any) -> Array:
    """Return what one node makes of X, 2 X, …."""
    names = [f"x{index}" for index in range(inputs)]
    node = helper.make_node(op, names, ["y"], "node", domain="acme.ai", **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in names]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([node], "g", values, [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme.ai", version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    with vkmnn.InferenceSession(model, device, require_device=True) as session:
        feeds = {name: X * np.float32(index + 1) for index, name in enumerate(names)}
        result: Array = session.run(None, feeds)[0]
        return result


@pytest.mark.parametrize(("version", "name"), [(1, "alpha"), (2, "beta"), (7, "beta")])
@pytest.mark.parametrize("value", [None, 1.702])
def test_swish(device: str, version: int, name: str, value: float | None) -> None:
    given: dict[str, Any] = {} if value is None else {name: value}
    expected = X * (0.5 + 0.5 * np.tanh(0.5 * (value or 1) * X))
    y = run(device, "Swish", version=version, **given)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("reduction", "factor"), [("sum", 8.0), ("mean", 8.0 / 3)])
def test_weighted(device: str, reduction: str, factor: float) -> None:
    y = run(device, "Weighted", 3, weights=[1.0, -1.0, 3.0], reduction=reduction)
    np.testing.assert_allclose(y, X * factor, rtol=1e-5)


def test_what_cannot_be_parsed() -> None:
    with pytest.raises(vkmnn.UnsupportedOpError, match="3 inputs have 2 weights"):
        run("cpu", "Weighted", 3, weights=[1.0, 2.0])
    with pytest.raises(vkmnn.VkmnnError, match="did you mean 'beta'"):
        run("cpu", "Swish", version=2, bata=1.0)
    with pytest.raises(vkmnn.VkmnnError, match="there is 'weigths'"):
        run("cpu", "Weighted", 1, weigths=[1.0])
