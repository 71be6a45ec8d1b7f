"""Weights of few bits: onnxruntime's results, on the device, without using more memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle

RANDOM = np.random.default_rng(7)
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
Array = np.ndarray[Any, Any]


def model(
    nodes: Sequence[onnx.NodeProto], constants: dict[str, Any], x: Array, kind: int = FLOAT
) -> onnx.ModelProto:
    tensors = [
        value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
        for name, value in constants.items()
    ]
    given = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        list(nodes),
        "packed",
        [helper.make_tensor_value_info("x", given, [f"n{axis}" for axis in range(x.ndim)])],
        [helper.make_tensor_value_info("y", kind, None)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def wanted(made: onnx.ModelProto, x: Array) -> Array:
    session = open_oracle(made, optimised=False)
    result: Array = session.run(None, {"x": x})[0]
    return result


def check(made: onnx.ModelProto, x: Array, ops: list[str], tolerance: float = 1e-5) -> None:
    expected = wanted(made, x)
    with vkmnn.InferenceSession(made) as session:
        result = session.run(None, {"x": x})[0]
        placed = session.placement()
    assert [op.type for op in placed] == ops
    assert {op.backend for op in placed} == {"VULKAN"}
    assert result.dtype == expected.dtype
    worst = np.abs(expected.astype(np.float64)).max(initial=1e-3)
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * worst)


def n_bits(
    depth: int, columns: int, bits: int, block: int, zeros: str = "", dtype: str = "float32"
) -> tuple[onnx.NodeProto, dict[str, Any]]:
    blocks = -(-depth // block)
    constants: dict[str, Any] = {
        "b": RANDOM.integers(0, 256, (columns, blocks, block * bits // 8), dtype=np.uint8),
        "scales": RANDOM.uniform(0.01, 0.05, (columns, blocks)).astype(dtype),
    }
    if zeros == "packed":
        shape = (columns, -(-blocks * bits // 8))
        constants["zeros"] = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    if zeros == "floats":
        constants["zeros"] = RANDOM.uniform(0, 2**bits, (columns, blocks)).astype(dtype)
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft",
        K=depth, N=columns, bits=bits, block_size=block,
    )  # fmt: skip
    return node, constants


@pytest.mark.parametrize("rows", [(1,), (3,), (2, 9), (40,)])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 32), (8, 128), (2, 16)])
@pytest.mark.parametrize("zeros", ["", "packed"])
def test_matmul_n_bits(rows: tuple[int, ...], bits: int, block: int, zeros: str) -> None:
    node, constants = n_bits(100, 37, bits, block, zeros)
    x = RANDOM.normal(size=(*rows, 100)).astype(np.float32)
    check(model([node], constants, x), x, ["MatMulNBits"])


def test_floating_zero_points_stay_beside_the_weights() -> None:
    node, constants = n_bits(100, 37, 4, 32, "floats")
    x = RANDOM.normal(size=(3, 100)).astype(np.float32)
    check(model([node], constants, x), x, ["MatMulNBits"])


def test_half_precision() -> None:
    node, constants = n_bits(96, 40, 4, 32, "packed", "float16")
    x = RANDOM.normal(size=(3, 96)).astype(np.float16)
    check(model([node], constants, x, HALF), x, ["MatMulNBits"], 2e-3)


def test_an_order_of_groups_runs_on_the_host_or_says_why() -> None:
    node, constants = n_bits(64, 8, 4, 32, "packed")
    node.input.append("groups")
    constants["groups"] = np.arange(64, dtype=np.int32)[::-1].copy() // 32
    x = np.ones((1, 64), np.float32)
    with pytest.raises(vkmnn.UnsupportedOpError, match="g_idx"):
        vkmnn.InferenceSession(model([node], constants, x), unsupported="raise")
    constants["groups"] = np.arange(64, dtype=np.int32) // 32
    with vkmnn.InferenceSession(model([node], constants, x), unsupported="raise") as session:
        session.run(None, {"x": x})
        assert [op.type for op in session.placement()] == ["MatMulNBits"]


@pytest.mark.parametrize("name", ["b", "scales", "zeros"])
def test_wrong_sizes_are_refused(name: str) -> None:
    node, constants = n_bits(64, 8, 4, 32, "packed")
    constants[name] = constants[name][:-1]
    x = np.ones((1, 64), np.float32)
    with pytest.raises(vkmnn.VkmnnError, match="are needed"):
        vkmnn.InferenceSession(model([node], constants, x), unsupported="raise")


def test_the_bias_and_the_activation_after_it_are_part_of_the_product() -> None:
    node, constants = n_bits(64, 40, 4, 32)
    node.output[0] = "product"
    constants["bias"] = RANDOM.normal(size=40).astype(np.float32)
    nodes = [
        node,
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    x = RANDOM.normal(size=(5, 64)).astype(np.float32)
    check(model(nodes, constants, x), x, ["MatMulNBits"])


INTEGERS = {
    "int4": (TensorProto.INT4, -8, 8),
    "uint4": (TensorProto.UINT4, 0, 16),
    "int8": (TensorProto.INT8, -128, 128),
    "uint8": (TensorProto.UINT8, 0, 256),
}


def integers(name: str, dtype: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    kind, low, high = INTEGERS[dtype]
    values = RANDOM.integers(low, high, shape)
    return helper.make_tensor(name, kind, shape, values.reshape(-1).tolist())


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", ["tensor", "column", "block"])
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_dequantized_matrices(dtype: str, kind: str, op: str) -> None:
    depth, columns = 100, 37
    axis, shape = {"tensor": (1, ()), "column": (1, (columns,)), "block": (0, (4, columns))}[kind]
    matrix: tuple[int, ...] = (depth, columns)
    if op == "Gemm":
        axis, shape, matrix = 1 - axis, shape[::-1], matrix[::-1]
    constants: dict[str, Any] = {
        "w": integers("w", dtype, matrix),
        "scale": RANDOM.uniform(0.01, 0.1, shape).astype(np.float32),
        "zero": integers("zero", dtype, shape),
    }
    more = {"block_size": 32} if kind == "block" else {}
    nodes = [helper.make_node("DequantizeLinear", [*constants], ["floats"], axis=axis, **more)]
    if op == "Gemm":
        constants["c"] = RANDOM.normal(size=columns).astype(np.float32)
        nodes.append(helper.make_node("Gemm", ["x", "floats", "c"], ["y"], transB=1))
    else:
        nodes.append(helper.make_node("MatMul", ["x", "floats"], ["y"]))
    x = RANDOM.normal(size=(3, depth)).astype(np.float32)
    check(model(nodes, constants, x), x, ["MatMulNBits"])


def test_scales_along_the_inner_axis_become_floats() -> None:
    constants: dict[str, Any] = {
        "w": integers("w", "int8", (50, 7)),
        "scale": RANDOM.uniform(0.01, 0.1, 50).astype(np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", [*constants], ["floats"], axis=0),
        helper.make_node("MatMul", ["x", "floats"], ["y"]),
    ]
    x = RANDOM.normal(size=(3, 50)).astype(np.float32)
    check(model(nodes, constants, x), x, ["MatMul"])


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 16), (2, 32)])
@pytest.mark.parametrize("zeros", [False, True])
def test_tables(bits: int, block: int, zeros: bool) -> None:
    rows, depth = 50, 100
    blocks = -(-depth // block)
    constants: dict[str, Any] = {
        "data": RANDOM.integers(0, 256, (rows, depth * bits // 8), dtype=np.uint8),
        "scales": RANDOM.uniform(0.01, 0.1, (rows, blocks)).astype(np.float32),
    }
    names = ["data", "x", "scales"]
    if zeros:
        shape = (rows, -(-blocks * bits // 8))
        constants["zeros"] = RANDOM.integers(0, 256, shape, dtype=np.uint8)
        names.append("zeros")
    node = helper.make_node(
        "GatherBlockQuantized", names, ["y"], domain="com.microsoft", bits=bits, block_size=block,
        gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    x = RANDOM.integers(-rows, rows, (2, 5))
    check(model([node], constants, x), x, ["GatherNBits"], 0.0)


def test_rows_of_a_table_that_a_product_reads_too() -> None:
    """As onnxruntime-genai ties the embedding to the head: by a Reshape of its quantised values."""
    _, constants = n_bits(64, 50, 4, 32)
    constants["two"] = np.array([50, 32])
    nodes = [
        helper.make_node("Reshape", ["b", "two"], ["table"]),
        helper.make_node(
            "GatherBlockQuantized", ["table", "x", "scales"], ["y"], domain="com.microsoft",
            bits=4, block_size=32,
        ),
    ]  # fmt: skip
    x = RANDOM.integers(-50, 50, (2, 5))
    check(model(nodes, constants, x), x, ["GatherNBits"], 0.0)


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
@pytest.mark.parametrize(("depth", "columns", "block"), [(64, 24, 16), (50, 7, 64), (5, 3, 16)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_codes_of_bitsandbytes(kind: int, depth: int, columns: int, block: int, dtype: str) -> None:
    size = depth * columns
    constants = {
        "b": RANDOM.integers(0, 256, -(-size // 2), dtype=np.uint8),
        "absmax": RANDOM.uniform(0.01, 0.1, -(-size // block)).astype(dtype),
    }
    node = helper.make_node(
        "MatMulBnb4", ["x", *constants], ["y"], domain="com.microsoft",
        K=depth, N=columns, block_size=block, quant_type=kind,
    )  # fmt: skip
    x = RANDOM.standard_normal((2, 3, depth)).astype(dtype)
    half = dtype == "float16"
    made = model([node], constants, x, HALF if half else FLOAT)
    check(made, x, ["MatMul"], 2e-3 if half else 1e-5)


def test_a_block_longer_than_any_row_takes_no_memory() -> None:
    constants = {
        "data": RANDOM.integers(0, 256, (5, 20), dtype=np.uint8),
        "scales": RANDOM.uniform(0.01, 0.1, (5, 1)).astype(np.float32),
    }
    node = helper.make_node(
        "GatherBlockQuantized", ["data", "x", "scales"], ["y"], domain="com.microsoft",
        bits=4, block_size=1 << 40,
    )  # fmt: skip
    x = np.array([3, -1])
    with vkmnn.InferenceSession(model([node], constants, x), unsupported="raise") as session:
        result = session.run(None, {"x": x})[0]
    codes = np.stack([constants["data"] & 15, constants["data"] >> 4], -1).reshape(5, 40)
    wide = (codes.astype(np.float32) - 8) * constants["scales"]
    np.testing.assert_array_equal(result, wide[x])


def decoder(bits: int) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return two layers of a gated network on rows of a table, quantised and in floats."""
    width, rows, block = 256, 512, 32
    _, constants = n_bits(width, rows, bits, block)
    plain: dict[str, Any] = {"table": RANDOM.normal(size=(rows, width)).astype(np.float32)}
    nodes = [
        helper.make_node(
            "GatherBlockQuantized", ["b", "x", "scales"], ["h0"], domain="com.microsoft",
            bits=bits, block_size=block,
        ),
    ]  # fmt: skip
    constants["b"] = constants["b"].reshape(rows, -1)
    floats = [helper.make_node("Gather", ["table", "x"], ["h0"])]
    for layer in range(2):
        for name in ("gate", "up", "down"):
            node, parts = n_bits(width, width, bits, block)
            own = {f"{key}_{name}{layer}": value for key, value in parts.items()}
            constants |= own
            source = f"h{layer}" if name != "down" else f"m{layer}"
            result = f"{name}{layer}" if name != "down" else f"h{layer + 1}"
            del node.input[:], node.output[:]
            node.input.extend([source, *own])
            node.output.append(result)
            nodes.append(node)
            plain[f"w{name}{layer}"] = RANDOM.normal(size=(width, width)).astype(np.float32)
            floats.append(helper.make_node("MatMul", [source, f"w{name}{layer}"], [result]))
            if name == "up":
                gated = [
                    helper.make_node("Sigmoid", [f"gate{layer}"], [f"s{layer}"]),
                    helper.make_node("Mul", [f"gate{layer}", f"s{layer}"], [f"g{layer}"]),
                    helper.make_node("Mul", [f"g{layer}", f"up{layer}"], [f"m{layer}"]),
                ]
                nodes += gated
                floats += gated
    last = helper.make_node("Identity", ["h2"], ["y"])
    x = np.zeros((1, 1), np.int64)
    return model([*nodes, last], constants, x), model([*floats, last], plain, x)


@pytest.mark.parametrize(("bits", "share"), [(4, 0.16), (8, 0.29)])
def test_a_decoder_takes_the_memory_of_its_bits(bits: int, share: float) -> None:
    packed, floats = decoder(bits)
    x = np.array([[3]])
    sizes, ops = [], []
    for made in (packed, floats):
        with vkmnn.InferenceSession(made) as session:
            result = session.run(None, {"x": x})[0]
            expected = wanted(made, x)
            atol = 1e-4 * float(np.abs(expected).max())
            np.testing.assert_allclose(result, expected, rtol=0, atol=atol)
            assert {op.backend for op in session.placement()} == {"VULKAN"}
            sizes.append(session._session.core.memory().constants)
            ops.append(len(list(session.placement())))
    assert sizes[0] <= share * sizes[1]
    assert ops[0] <= ops[1]
