"""Quantised convolutions, bit for bit: ONNX's definition in integers, and onnxruntime's models."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import InferenceSession
from vkmnn.converter.onnx.quantized.coded import Coded

Array = npt.NDArray[Any]

SHAPES = [
    # x, w, group, strides, pads
    ((2, 3, 7, 5), (5, 3, 3, 2), 1, (2, 1), (1, 0, 2, 1)),
    ((1, 17, 1, 1), (13, 17, 1, 1), 1, (1, 1), (0, 0, 0, 0)),
    ((1, 7, 9, 11), (7, 1, 3, 3), 7, (2, 2), (1, 1, 1, 1)),
    ((2, 6, 5, 4), (9, 2, 2, 3), 3, (1, 2), (0, 2, 1, 0)),
    ((1, 8, 6, 6), (12, 4, 3, 3), 2, (1, 1), (1, 1, 1, 1)),
    ((3, 5, 11), (4, 5, 4), 1, (3,), (2, 1)),
    ((1, 1, 13, 13), (6, 1, 5, 5), 1, (1, 1), (2, 2, 2, 2)),
    ((0, 3, 4, 4), (2, 3, 1, 1), 1, (1, 1), (0, 0, 0, 0)),
]


def integer_sums(x: Array, w: Array, group: int, strides: Any, pads: Any) -> Array:
    """Convolve in int64, one result after the other."""
    axes = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((pads[a], pads[a + axes]) for a in range(axes))])
    size = [(x.shape[a + 2] - w.shape[a + 2]) // strides[a] + 1 for a in range(axes)]
    y = np.zeros((x.shape[0], w.shape[0], *size), np.int64)
    filters = w.shape[0] // group
    for n, o in product(range(x.shape[0]), range(w.shape[0])):
        first = o // filters * w.shape[1]
        for at in np.ndindex(*size):
            window = tuple(
                slice(p * s, p * s + k) for p, s, k in zip(at, strides, w.shape[2:], strict=True)
            )
            part = x[(n, slice(first, first + w.shape[1]), *window)]
            y[(n, o, *at)] = (part * w[o]).sum()
    return y


def requantized(sums: Array, factor: Array, zero: int, dtype: Any) -> Array:
    """Return the quantised sums: multiplied in float32, rounded half to even, then shifted."""
    factor = np.float32(factor).reshape(-1, *(1,) * (sums.ndim - 2))
    limits = np.iinfo(dtype)
    codes = np.rint(sums.astype(np.float32) * factor) + zero
    return np.clip(codes, limits.min, limits.max).astype(dtype)


def ran(nodes: Any, constants: dict[str, Array], x: Array, kind: Any, device: str) -> list[Any]:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with InferenceSession(model, device) as session:
        return [session.run(None, {"x": x})[0], [op.type for op in session.placement()]]


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("types", ["uint8 uint8", "uint8 int8", "int8 int8"])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_qlinear_conv_is_what_onnx_says(number: int, types: str, device: str) -> None:
    shape, filters, group, strides, pads = SHAPES[number]
    rng = np.random.default_rng(number)
    dx, dw = (np.dtype(name) for name in types.split())
    limits = np.iinfo(dx)
    x = rng.integers(limits.min, limits.max + 1, shape).astype(dx)
    w = rng.integers(np.iinfo(dw).min, np.iinfo(dw).max + 1, filters).astype(dw)
    by_channel = number % 2 == 0
    channels = filters[0]
    # Powers of two: many products end with one half exactly.
    exponents = rng.integers(-9, -6, channels if by_channel else 1)
    scales = np.exp2(exponents).astype(np.float32)
    zeros = rng.integers(0, 9, scales.shape).astype(dw) if dw == np.uint8 else scales.astype(dw)
    zero_x, zero_y = rng.integers(limits.min, limits.max + 1, 2)
    bias = rng.integers(-5000, 5000, channels).astype(np.int32)
    constants = {
        "xs": np.float32(0.25), "xz": np.array(zero_x, dx), "w": w,
        "ws": scales if by_channel else scales.reshape(()),
        "wz": zeros if by_channel else zeros.reshape(()),
        "ys": np.float32(0.5), "yz": np.array(zero_y, dx), "b": bias,
    }  # fmt: skip
    node = helper.make_node(
        "QLinearConv", ["x", *constants], ["y"], group=group, strides=strides, pads=pads
    )
    kind = helper.np_dtype_to_tensor_dtype(dx)
    got, types_run = ran([node], constants, x, kind, device)
    centred = w.astype(np.int64) - zeros.reshape(-1, *(1,) * (w.ndim - 1))
    sums = integer_sums(x.astype(np.int64) - zero_x, centred, group, strides, pads)
    sums = sums + bias.reshape(-1, *(1,) * (x.ndim - 2))
    want = requantized(sums, np.float32(0.25) * scales / np.float32(0.5), int(zero_y), dx)
    np.testing.assert_array_equal(got, want)
    assert types_run.count("QuantizedConvolution") == 1
    assert "Convolution" not in types_run


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("clamp", ["", "Relu", "Clip"])
def test_clamps_between_are_bounds(clamp: str, device: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, (2, 5, 6, 7)).astype(np.uint8)
    w = rng.integers(-127, 128, (9, 5, 3, 3)).astype(np.int8)
    scales = np.exp2(rng.integers(-9, -6, 9)).astype(np.float32)
    bias = rng.integers(-900, 900, 9).astype(np.int32)
    constants = {
        "xs": np.float32(0.25), "xz": np.uint8(117), "w": w, "ws": scales,
        "wz": np.zeros(9, np.int8), "b": bias, "bs": np.float32(0.25) * scales,
        "ys": np.float32(0.5), "yz": np.uint8(30),
        "low": np.float32(-3.75), "high": np.float32(6.0),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], axis=0),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["c"], pads=[1, 1, 1, 1]),
    ]
    bounds = {"": [], "Relu": [], "Clip": ["low", "high"]}[clamp]
    if clamp:
        nodes.append(helper.make_node(clamp, ["c", *bounds], ["a"]))
    nodes.append(helper.make_node("QuantizeLinear", ["a" if clamp else "c", "ys", "yz"], ["y"]))
    got, types_run = ran(nodes, constants, x, TensorProto.UINT8, device)
    sums = integer_sums(
        x.astype(np.int64) - 117, w.astype(np.int64), 1, (1, 1), (1, 1, 1, 1)
    ) + bias.reshape(-1, 1, 1)
    want = requantized(sums, np.float32(0.25) * scales / np.float32(0.5), 30, np.uint8)
    limits = {"": (0, 255), "Relu": (30, 255), "Clip": (30 + np.rint(-7.5), 42)}[clamp]
    np.testing.assert_array_equal(got, np.clip(want, *limits).astype(np.uint8))
    assert types_run.count("QuantizedConvolution") == 1


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("channels", [600, 3001])
def test_sums_beyond_float32_are_exact(channels: int, device: str) -> None:
    """Sums of up to 2^28 end between two codes, where a float32 sum would miss by an odd number."""
    rng = np.random.default_rng(channels)
    x = rng.integers(128, 256, (1, channels, 3, 3)).astype(np.uint8)
    w = rng.integers(128, 256, (3, channels, 1, 1)).astype(np.uint8)
    x[:, :2], w[:, :2] = 1, 1
    sums = integer_sums(x.astype(np.int64), w.astype(np.int64), 1, (1, 1), (0, 0, 0, 0))
    # A bias that brings results near the middle of the codes; a factor that keeps the last bits.
    bias = -np.median(sums.reshape(3, -1), axis=1).astype(np.int32)
    bias = np.maximum(bias, -(1 << 23))
    sums = sums + bias.reshape(3, 1, 1)
    factor = np.float32(2.0 ** -round(np.log2(max(np.abs(sums).max() / 100, 1))))
    constants = {
        "xs": np.float32(1), "xz": np.uint8(0), "w": w, "ws": factor,
        "wz": np.uint8(0), "ys": np.float32(1), "yz": np.uint8(128), "b": bias,
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"])
    got, types_run = ran([node], constants, x, TensorProto.UINT8, device)
    np.testing.assert_array_equal(got, requantized(sums, factor, 128, np.uint8))
    assert types_run.count("QuantizedConvolution") == 1


@pytest.mark.parametrize("bounds", [(0, 255), (-128, 127), (-200, 55), (-255, 0), (3, 9)])
def test_no_part_of_a_sum_goes_beyond_its_reach(bounds: tuple[int, int]) -> None:
    low, high = bounds
    weights = np.array([[3, -7, 0, 120], [-1, -128, -5, -2], [9, 8, 7, 6], [0, 0, 0, 0]], np.int8)
    reached = Coded("x", 0, low, high).reach(weights, 1)
    # A pad is zero, and so is what a part leaves out.
    ends = product((min(low, 0), 0, max(high, 0)), repeat=weights.shape[1])
    sums = np.array([weights.astype(np.int64) @ np.array(codes) for codes in ends])
    np.testing.assert_array_equal(reached, np.abs(sums).max(0))


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("depth", [515, 519])
def test_sums_of_one_sign_reach_the_end_of_what_is_exact(
    depth: int, sign: int, device: str
) -> None:
    """Weights of both signs: half of the products can add up, 2^24 in all."""
    w = np.full((1, 2 * depth, 1, 1), 127 * sign, np.int8)
    w[:, ::2] *= -1
    x = np.zeros((1, 2 * depth, 1, 2), np.uint8)
    x[:, 1::2, :, 0] = 255
    x[:, ::2, :, 1] = 255
    x[0, :3, 0, :] = 254
    constants = {
        "xs": np.float32(1), "xz": np.uint8(0), "w": w, "ws": np.float32(1), "wz": np.int8(0),
        "ys": np.float32(2.0**17), "yz": np.uint8(128), "b": np.zeros(1, np.int32),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"])
    got, types = ran([node], constants, x, TensorProto.UINT8, device)
    sums = integer_sums(x.astype(np.int64), w.astype(np.int64), 1, (1, 1), (0, 0, 0, 0))
    np.testing.assert_array_equal(got, requantized(sums, 2.0**-17, 128, np.uint8))
    assert types.count("QuantizedConvolution") == 1
