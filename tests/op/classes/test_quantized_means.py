"""Means of quantised values, bit for bit: exact sums, one division, one product, half to even."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import InferenceSession

Array = npt.NDArray[Any]

X_SCALE, Y_SCALE = np.float32(0.5), np.float32(0.25)
SHAPES = [(2, 7, 3, 5), (1, 4, 1, 1), (3, 5, 20, 20), (1, 6, 37), (1, 3, 7, 5, 11), (1, 9, 300, 2)]


def mean_of(x: Array, zero: int, y_zero: int) -> Array:
    """Return the quantised mean over all pixels of dequantised values."""
    axes = tuple(range(2, x.ndim))
    sums = (x.astype(np.int64) - zero).sum(axes, keepdims=True)
    means = (sums / np.prod(x.shape[2:])).astype(np.float32)
    codes = np.rint(means * X_SCALE / Y_SCALE) + y_zero
    return np.clip(codes, 0, 255).astype(np.uint8)


def ran(nodes: list[Any], x: Array, device: str) -> tuple[Array, list[str]]:
    constants = {
        "x_scale": X_SCALE,
        "x_zero": np.uint8(120),
        "y_scale": Y_SCALE,
        "y_zero": np.uint8(99),
        "axes": np.arange(2, x.ndim),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    with InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=8), device
    ) as session:
        return session.run(None, {"x": x})[0], [op.type for op in session.placement()]


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("keepdims", [None, 0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_means_of_planes(shape: tuple[int, ...], keepdims: int | None, device: str) -> None:
    x = np.random.default_rng(shape).integers(0, 256, shape).astype(np.uint8)
    pooled = helper.make_node("GlobalAveragePool", ["f"], ["m"])
    if keepdims is not None:
        pooled = helper.make_node("ReduceMean", ["f", "axes"], ["m"], keepdims=keepdims)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["f"]),
        pooled,
        helper.make_node("QuantizeLinear", ["m", "y_scale", "y_zero"], ["y"]),
    ]
    got, types = ran(nodes, x, device)
    want = mean_of(x, 120, 99)
    np.testing.assert_array_equal(got.reshape(want.shape), want)
    assert "Reduction" not in types


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("count_pads", [0, 1])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 1), (4, 3), (17, 16)])
def test_means_of_windows(size: int, stride: int, count_pads: int, device: str) -> None:
    """Windows of more than 256 elements, too, whose sums are divided once."""
    x = np.random.default_rng(size).integers(0, 256, (2, 5, 40, 33)).astype(np.uint8)
    window = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [1] * 4}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["f"]),
        helper.make_node("AveragePool", ["f"], ["m"], count_include_pad=count_pads, **window),
        helper.make_node("QuantizeLinear", ["m", "y_scale", "y_zero"], ["y"]),
    ]
    got, _ = ran(nodes, x, device)
    inside = np.pad(np.ones(x.shape[2:]), 1, constant_values=count_pads)
    codes = np.pad(x.astype(np.int64) - 120, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros_like(got)
    for row, column in np.ndindex(*got.shape[2:]):
        at = tuple(slice(k * stride, k * stride + size) for k in (row, column))
        means = (codes[(..., *at)].sum((2, 3)) / inside[at].sum()).astype(np.float32)
        want[:, :, row, column] = np.clip(np.rint(means * X_SCALE / Y_SCALE) + 99, 0, 255)
    np.testing.assert_array_equal(got, want)
