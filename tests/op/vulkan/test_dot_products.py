"""Quantised products by integer dot products, from ONNX models: bit for bit as ONNX defines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.op.vulkan.harness import device
from vkmnn.ir.ops import DynamicQuantizeMatMulAttrs, QuantizedMatMulAttrs
from vkmnn.opening import load_network
from vkmnn.testing.case import Case
from vkmnn.testing.runner import run_case
from vkmnn.vulkan.gemm.families.dot import PRODUCT_TILES, MatMulDot
from vkmnn_suite.fuzz.oracle import Oracle

Array = npt.NDArray[Any]
TILES = pytest.mark.parametrize("tile", PRODUCT_TILES, ids=lambda tile: str(tile.name))


def codes(seed: int, kind: Any, *shape: int) -> Array:
    limits = np.iinfo(kind)
    drawn = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape)
    return np.asarray(drawn).astype(kind)


def requantized(sums: Array, factor: Array, zero: int, kind: Any) -> Array:
    """Return the quantised sums: multiplied in float32, rounded half to even, then shifted."""
    limits = np.iinfo(kind)
    rounded = np.rint(sums.astype(np.float32) * factor.astype(np.float32)) + zero
    made: Array = np.clip(rounded, limits.min, limits.max).astype(kind)
    return made


def made_of(
    nodes: Any, constants: Mapping[str, Array], feeds: Mapping[str, Array], kind: int
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def assert_dots(
    model: onnx.ModelProto, feeds: Mapping[str, Array], tile: Any, want: Array
) -> list[QuantizedMatMulAttrs | DynamicQuantizeMatMulAttrs]:
    """Run a model with a tile of dot products; return the products' attributes."""
    if "integer_dot" not in device().info.features:
        pytest.skip("no integer dot products")
    graph = load_network(model.SerializeToString()).graph
    takes = {"matmul": MatMulDot(tile)}
    case = Case(graph, feeds, 0, 0, takes=takes)
    result = run_case(case, device(), {}, expected=[want])
    assert any(name.startswith(f"matmul_dot_{tile.name}_") for name in result.dispatched)
    kinds = QuantizedMatMulAttrs | DynamicQuantizeMatMulAttrs
    return [op.attrs for op in graph.ops if isinstance(op.attrs, kinds)]


@TILES
@pytest.mark.parametrize("types", ["uint8 uint8", "uint8 int8", "int8 uint8", "int8 int8"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "fed"),
    [((67, 131), (131, 37), False), ((2, 3, 16), (16, 36), False), ((2, 5, 9), (2, 9, 5), True)],
)
def test_qlinear_products(a_shape: Any, b_shape: Any, fed: bool, types: str, tile: Any) -> None:
    """Scales and zero points by column where the right operand is constant and rows are odd."""
    left, right = (np.dtype(name) for name in types.split())
    a, b = codes(1, left, *a_shape), codes(2, right, *b_shape)
    columns = b_shape[-1]
    by_column = columns == 37
    rng = np.random.default_rng(3)
    scale = np.exp2(rng.integers(-13, -10, columns if by_column else 1)).astype(np.float32)
    # Near the middle of the type, so that bytes hold all weights less their zero points.
    middle = 128 if right == np.uint8 else 0
    b_zero = np.full(scale.shape, middle, right) if by_column else codes(4, right, 1)
    if by_column:
        b = np.clip(b, middle - 120, middle + 119).astype(right)
        b_zero = (b_zero + rng.integers(-7, 8, columns)).astype(right)
    zero = int(codes(5, left, 1)[0])
    shape = scale.shape if by_column else ()
    constants = {
        "as": np.float32(0.25), "az": np.array(zero, left),
        "bs": scale.reshape(shape), "bz": b_zero.reshape(shape),
        "ys": np.float32(0.5), "yz": np.array(30, left),
    }  # fmt: skip
    feeds = {"a": a}
    (feeds if fed else constants)["b"] = b
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    node = helper.make_node("QLinearMatMul", names, ["y"])
    model = made_of([node], constants, feeds, helper.np_dtype_to_tensor_dtype(left))
    sums = np.matmul(a.astype(np.int64) - zero, b.astype(np.int64) - b_zero)
    want = requantized(sums, np.float32(0.25) * scale / np.float32(0.5), 30, left)
    assert len(assert_dots(model, feeds, tile, want)) == 1


@TILES
@pytest.mark.parametrize("down", [False, True])
def test_gemm_between_codes(down: bool, tile: Any) -> None:
    """A bias in units of the products, and what ReLU leaves."""
    a, b = codes(6, np.uint8, 35, 70), codes(7, np.int8, 70, 41)
    bias = np.random.default_rng(8).integers(-900, 900, 41).astype(np.int32)
    constants = {
        "as": np.float32(0.25), "az": np.uint8(100), "bs": np.float32(2.0**-11),
        "bz": np.int8(0), "b": b.T.copy() if down else b, "c": bias,
        "cs": np.float32(2.0**-13), "ys": np.float32(0.5), "yz": np.uint8(17),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "as", "az"], ["af"]),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"]),
        helper.make_node("DequantizeLinear", ["c", "cs"], ["cf"]),
        helper.make_node("Gemm", ["af", "bf", "cf"], ["f"], transB=int(down)),
        helper.make_node("Relu", ["f"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]
    model = made_of(nodes, constants, {"a": a}, TensorProto.UINT8)
    sums = (a.astype(np.int64) - 100) @ b.astype(np.int64) + bias
    want = np.maximum(requantized(sums, np.float32(2.0**-12), 17, np.uint8), 17)
    assert_dots(model, {"a": a}, tile, want)


@TILES
@pytest.mark.parametrize("types", ["uint8 int8", "uint8 uint8", "int8 int8"])
@pytest.mark.parametrize("point", ["constant", "fed", "absent"])
def test_products_of_integers(point: str, types: str, tile: Any) -> None:
    """A zero point that is not known when a network is planned is one more number."""
    left, right = (np.dtype(name) for name in types.split())
    inputs = {"a": codes(9, left, 2, 33, 71), "b": codes(10, right, 71, 35)}
    if point != "absent":
        inputs["az"] = np.array(101, left)
    feeds = {name: inputs[name] for name in ("a", "az") if name == "a" or point == "fed"}
    constants = {name: x for name, x in inputs.items() if name not in feeds}
    node = helper.make_node("MatMulInteger", ["a", "b", *(["az"] if "az" in inputs else [])], ["y"])
    model = made_of([node], constants, feeds, TensorProto.INT32)
    zero = 0 if point == "absent" else 101
    want = np.matmul(inputs["a"].astype(np.int32) - zero, inputs["b"].astype(np.int32))
    if point == "fed" and left == np.int8:
        with pytest.raises(AssertionError):  # which bytes hold is not known
            assert_dots(model, feeds, tile, want)
        return
    assert_dots(model, feeds, tile, want)


@TILES
@pytest.mark.parametrize("depth", [5, 128, 1021])
def test_dynamic_quantisation(depth: int, tile: Any) -> None:
    """Ranges of each run; sums of the longest have more than 24 bits, and are two products."""
    x = np.random.default_rng(11).standard_normal((34, depth)).astype(np.float32)
    constants = {"w": codes(12, np.uint8, depth, 33) | np.uint8(64), "wz": np.uint8(3)}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["c", "s", "z"]),
        helper.make_node("MatMulInteger", ["c", "w", "z", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    model = made_of(nodes, constants, {"x": x}, TensorProto.FLOAT)
    want = Oracle().evaluate(model, {"x": x})["y"]
    products = assert_dots(model, {"x": x}, tile, want)
    assert len(products) == (2 if depth > 1000 else 1)
