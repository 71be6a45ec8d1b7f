"""Quantised products, bit for bit: ONNX's definition in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import InferenceSession

Array = npt.NDArray[Any]


def requantized(sums: Array, factor: Array, zero: int, dtype: Any) -> Array:
    """Return the quantised sums: multiplied in float32, rounded half to even, then shifted."""
    limits = np.iinfo(dtype)
    codes = np.rint(sums.astype(np.float32) * np.float32(factor)) + zero
    return np.clip(codes, limits.min, limits.max).astype(dtype)


def ran(
    nodes: Any, constants: dict[str, Array], feeds: dict[str, Array], kind: Any, device: str
) -> tuple[Array, list[str]]:
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in feeds.items()
        ],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with InferenceSession(model, device) as session:
        return session.run(None, feeds)[0], [op.type for op in session.placement()]


def codes(rng: Any, dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max + 1, shape)).astype(dtype)


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("types", ["uint8 uint8", "uint8 int8", "int8 int8"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "fed"),
    [((7, 13), (13, 5), False), ((2, 3, 17), (17, 8), False), ((2, 5, 9), (2, 9, 4), True)],
)
def test_qlinear_matmul_is_what_onnx_says(
    a_shape: Any, b_shape: Any, fed: bool, types: str, device: str
) -> None:
    rng = np.random.default_rng(len(a_shape) + b_shape[-1])
    da, db = (np.dtype(name) for name in types.split())
    a, b = codes(rng, da, *a_shape), codes(rng, db, *b_shape)
    columns = b_shape[-1]
    by_column = not fed and columns == 5
    scale = np.exp2(rng.integers(-9, -6, columns)).astype(np.float32)
    scale = scale if by_column else scale[:1]
    b_zero = rng.integers(0, 9, scale.shape).astype(db)
    constants = {
        "as": np.float32(0.25), "az": np.array(77, da),
        "bs": scale if by_column else scale.reshape(()),
        "bz": b_zero if by_column else b_zero.reshape(()),
        "ys": np.float32(0.5), "yz": np.array(30, da),
    }  # fmt: skip
    feeds = {"a": a}
    (feeds if fed else constants)["b"] = b
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    node = helper.make_node("QLinearMatMul", names, ["y"])
    kind = helper.np_dtype_to_tensor_dtype(da)
    got, types_run = ran([node], constants, feeds, kind, device)
    sums = np.matmul(a.astype(np.int64) - 77, b.astype(np.int64) - b_zero)
    want = requantized(sums, np.float32(0.25) * scale / np.float32(0.5), 30, da)
    np.testing.assert_array_equal(got, want)
    assert types_run.count("QuantizedMatMul") == 1
    assert "MatMul" not in types_run


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("form", ["Gemm", "QGemm"])
def test_gemm_with_a_bias_in_codes(form: str, down: bool, device: str) -> None:
    rng = np.random.default_rng(5)
    a, b = codes(rng, np.uint8, 6, 19), codes(rng, np.int8, 19, 11)
    bias = rng.integers(-900, 900, 11).astype(np.int32)
    constants = {
        "as": np.float32(0.25), "az": np.uint8(100), "bs": np.float32(2.0**-8),
        "bz": np.int8(0), "b": b.T.copy() if down else b, "c": bias,
        "cs": np.float32(2.0**-10), "ys": np.float32(0.5), "yz": np.uint8(17),
    }  # fmt: skip
    if form == "Gemm":
        nodes = [
            helper.make_node("DequantizeLinear", ["a", "as", "az"], ["af"]),
            helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"]),
            helper.make_node("DequantizeLinear", ["c", "cs"], ["cf"]),
            helper.make_node("Gemm", ["af", "bf", "cf"], ["f"], transB=int(down)),
            helper.make_node("Relu", ["f"], ["r"]),
            helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"]),
        ]
    else:
        names = ["a", "as", "az", "b", "bs", "bz", "c", "ys", "yz"]
        nodes = [helper.make_node("QGemm", names, ["y"], domain="com.microsoft", transB=int(down))]
    got, types_run = ran(nodes, constants, {"a": a}, TensorProto.UINT8, device)
    sums = (a.astype(np.int64) - 100) @ b.astype(np.int64) + bias
    want = requantized(sums, np.float32(2.0**-9), 17, np.uint8)
    np.testing.assert_array_equal(got, np.maximum(want, 17) if form == "Gemm" else want)
    assert types_run.count("QuantizedMatMul") == 1


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("op", ["QLinearSoftmax", "QLinearReduceMean"])
def test_operators_that_are_compared_with_numpy(op: str, device: str) -> None:
    rng = np.random.default_rng(2)
    x = codes(rng, np.uint8, 3, 5, 7)
    made = np.float32(1 / 255 if op == "QLinearSoftmax" else 0.01)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(100), "ys": made, "yz": np.uint8(3),
    }  # fmt: skip
    attributes = {"axis": 1, "opset": 13} if op == "QLinearSoftmax" else {"axes": [1]}
    node = helper.make_node(op, ["x", *constants], ["y"], domain="com.microsoft", **attributes)
    got, _ = ran([node], constants, {"x": x}, TensorProto.UINT8, device)
    values = (x.astype(np.float64) - 100) * 0.02
    if op == "QLinearSoftmax":
        values = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    else:
        values = values.mean(1, keepdims=True)
    want = np.clip(np.rint(values / made) + 3, 0, 255)
    assert np.abs(got.astype(int) - want).max() <= 1
    assert (got == want).mean() > 0.9


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_scales_of_results_become_part_of_the_product(device: str) -> None:
    rng = np.random.default_rng(9)
    a, b = codes(rng, np.int8, 4, 24), codes(rng, np.int8, 24, 6)
    constants = {
        "as": np.float32(0.25), "z": np.int8(0), "bs": np.float32(2.0**-9), "b": b,
        "ys": np.float32(0.5),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "as", "z"], ["af"]),
        helper.make_node("DequantizeLinear", ["b", "bs", "z"], ["bf"]),
        helper.make_node("MatMul", ["af", "bf"], ["f"]),
        helper.make_node("QuantizeLinear", ["f", "ys", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "z"], ["y"]),
    ]
    got, types_run = ran(nodes, constants, {"a": a}, TensorProto.FLOAT, device)
    sums = a.astype(np.int64) @ b.astype(np.int64)
    want = requantized(sums, np.float32(2.0**-10), 0, np.int8).astype(np.float32) * 0.5
    np.testing.assert_array_equal(got, want)
    assert [name for name in types_run if name not in ("Cast", "ConvertTensor")] == [
        "QuantizedMatMul"
    ]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_sums_beyond_float32_are_exact(device: str) -> None:
    rng = np.random.default_rng(4)
    a = rng.integers(100, 256, (5, 2001)).astype(np.uint8)
    b = rng.integers(-128, 128, (2001, 6)).astype(np.int8)
    b[:, ::2] = np.maximum(b[:, ::2], 60)
    sums = a.astype(np.int64) @ b.astype(np.int64)
    factor = np.float32(2.0**-18)
    constants = {
        "as": np.float32(1), "az": np.uint8(0), "b": b, "bs": factor, "bz": np.int8(0),
        "ys": np.float32(1), "yz": np.uint8(100),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["a", *constants], ["y"])
    got, types_run = ran([node], constants, {"a": a}, TensorProto.UINT8, device)
    np.testing.assert_array_equal(got, requantized(sums, factor, 100, np.uint8))
    assert types_run.count("QuantizedMatMul") == 2
