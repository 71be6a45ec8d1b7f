"""ConvInteger and MatMulInteger: sums of 32 bits, exact however many there are."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import InferenceSession
from vkmnn_suite.fuzz.oracle import Oracle

Array = npt.NDArray[Any]
Precision = Literal["high", "normal"]


def model_of(op: str, inputs: dict[str, Array], fed: str, **attributes: Any) -> bytes:
    """Return a model of one node; an absent input has the name ""."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    names = [name if name in inputs else "" for name in ("x", "w", "xz", "wz")]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(n, kinds[n], inputs[n].shape) for n in fed.split()],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(x, name) for name, x in inputs.items() if name not in fed.split()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(made.SerializeToString())


def assert_exact(
    op: str, inputs: dict[str, Array], fed: str, precision: Precision, **attributes: Any
) -> list[str]:
    """Compare with onnxruntime, bit for bit; return the ops, all of which run on the device."""
    model = model_of(op, inputs, fed, **attributes)
    feeds = {name: inputs[name] for name in fed.split()}
    wanted = Oracle().evaluate(onnx.load_from_string(model), feeds)["y"]
    with InferenceSession(model, precision=precision) as session:
        placed = session.placement()
        assert {op.backend for op in placed} == {"VULKAN"}
        np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)
        return [op.type for op in placed]


def codes(seed: int, dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    drawn = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape)
    return np.asarray(drawn).astype(dtype)


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("fed", ["x xz", "x w", "x w xz wz"])
@pytest.mark.parametrize("channels", [3, 31, 200])
def test_convolutions(channels: int, fed: str, precision: Precision) -> None:
    """31 channels of 3 by 3 are more than what 24 bits hold at worst."""
    inputs = {
        "x": codes(1, np.uint8, 1, channels, 5, 7),
        "w": codes(2, np.uint8, 6, channels, 3, 3),
        "xz": np.array(101, np.uint8),
        "wz": np.array(17, np.uint8),
    }
    ops = assert_exact("ConvInteger", inputs, fed, precision, pads=[1, 2, 1, 0])
    assert "QuantizedConvolution" in ops
    assert "Convolution" not in ops


@pytest.mark.parametrize("zero", [None, 3])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_groups_and_absent_zero_points(group: int, zero: int | None) -> None:
    inputs = {"x": codes(3, np.uint8, 2, 4, 6, 5), "w": codes(4, np.int8, 8, 4 // group, 2, 3)}
    if zero is not None:
        inputs["xz"] = np.array(zero, np.uint8)
    assert_exact("ConvInteger", inputs, "x", "normal", group=group, strides=[2, 1])


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("extreme", [False, True])
def test_sums_beyond_24_bits(extreme: bool, precision: Precision) -> None:
    """All weights of one sign: the whole sum has 28 bits, and cannot be told from a float."""
    w = np.full((4, 300, 3, 3), 255, np.uint8) if extreme else codes(5, np.uint8, 4, 300, 3, 3)
    x = codes(6, np.uint8, 1, 300, 4, 4) | np.uint8(128 if extreme else 0)
    inputs = {"x": x, "w": w}
    assert_exact("ConvInteger", inputs, "x", precision, pads=[1] * 4)


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("depth", [1, 67, 300, 3001])
@pytest.mark.parametrize("types", ["uint8 int8", "uint8 uint8", "int8 int8"])
def test_products(types: str, depth: int, precision: Precision) -> None:
    left, right = (np.dtype(name) for name in types.split())
    inputs = {
        "x": codes(7, left, 2, 5, depth),
        "w": codes(8, right, depth, 9),
        "xz": np.array(5, left),
        "wz": codes(9, right, 9),
    }
    ops = assert_exact("MatMulInteger", inputs, "x", precision)
    assert "QuantizedMatMul" in ops


@pytest.mark.parametrize("fed", ["x", "x w xz"])
def test_vectors_and_computed_matrices(fed: str) -> None:
    inputs = {
        "x": codes(10, np.uint8, 13),
        "w": codes(11, np.uint8, 13, 6),
        "xz": np.array(250, np.uint8),
    }
    assert_exact("MatMulInteger", inputs, fed, "high")
    assert_exact("MatMulInteger", {**inputs, "x": codes(12, np.uint8, 7, 13)}, fed, "normal")


def test_a_cast_to_floats_rounds_once() -> None:
    """Sums beyond 24 bits, as floats: what a cast of the exact sum makes."""
    depth = 1021
    x, w = codes(13, np.uint8, 5, depth) | np.uint8(64), codes(14, np.uint8, depth, 7)
    w[:, 0] = 255
    graph = helper.make_graph(
        [
            helper.make_node("MatMulInteger", ["x", "w"], ["s"]),
            helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    exact = x.astype(np.int64) @ w.astype(np.int64)
    assert exact.max() > 1 << 24
    with InferenceSession(model) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], exact.astype(np.float32))
