from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.op.vulkan.harness import check, run_graph
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import ConvolutionAttrs, GridSampleAttrs
from vkmnn.shape.resizing import GRID_PADDING_MODES, MODES

CASES = list(product(MODES, GRID_PADDING_MODES, [False, True]))


def random(*shape: int, dtype: str = "float32") -> Array:
    generator = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 100, shape).astype(dtype)


def grid(*shape: int) -> Array:
    return np.random.default_rng(1).uniform(-1.7, 1.7, shape).astype(np.float32)


@pytest.mark.parametrize(("mode", "padding", "align"), CASES)
def test_wild_coordinates(mode: str, padding: str, align: bool) -> None:
    wild = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 0, 1, -1])
    points = np.stack(np.meshgrid(wild, wild), -1)[None]
    op = Op("GridSample", "op", ["x", "g"], ["y"], GridSampleAttrs(mode, padding, align))
    x = random(1, 3, 5, 5)
    with np.errstate(all="ignore"):
        (expected,) = run_op(op, [x, points])
    sampled = np.isfinite(points).all(-1)[0] & (np.abs(points) < 2).all(-1)[0]
    graph = Graph(
        "test",
        [TensorInfo("x", DType.FLOAT32, x.shape), TensorInfo("g", DType.FLOAT32, points.shape)],
        [TensorInfo("y", DType.FLOAT32, expected.shape)],
        [op],
        {},
    )
    feeds = {"x": x, "g": points}
    if mode == "nearest":
        (result,) = run_graph(graph, feeds)
        if padding == "zeros":
            np.testing.assert_array_equal(result, expected)
        assert set(result.reshape(-1)) <= {*x.reshape(-1), np.float32(0)}
    else:
        (result,) = run_graph(graph, feeds)
    np.testing.assert_allclose(result[..., sampled], expected[..., sampled], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_means_of_integers_are_left_to_the_backup(dtype: str) -> None:
    x, points = random(1, 5, 5, 7, dtype=dtype), grid(1, 3, 4, 2)
    check("GridSample", GridSampleAttrs("linear"), [x, points], on_device=False)


def test_four_axes_are_left_to_the_backup() -> None:
    inputs = [random(1, 2, 2, 3, 2, 3), grid(1, 2, 2, 2, 2, 4)]
    check("GridSample", GridSampleAttrs(), inputs, on_device=False, rtol=1e-4, atol=1e-4)


def test_tail_lanes_stay_zero() -> None:
    """A convolution multiplies tail lanes by zero, which NaN would survive."""
    x, points = random(1, 3, 4, 4), grid(1, 2, 2, 2)
    points[0, 0, 0, 0] = np.nan
    weights = np.ones((2, 3, 1, 1), np.float32)
    sample = Op("GridSample", "sample", ["x", "g"], ["a"], GridSampleAttrs("linear", "border"))
    attrs = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    conv = Op("Convolution", "conv", ["a", "w"], ["y"], attrs)
    graph = Graph(
        "test",
        [TensorInfo("x", DType.FLOAT32, x.shape), TensorInfo("g", DType.FLOAT32, points.shape)],
        [TensorInfo("y", DType.FLOAT32, (1, 2, 2, 2))],
        [sample, conv],
        {"w": weights},
    )
    (result,) = run_graph(graph, {"x": x, "g": points})
    (expected,) = run_op(conv, [run_op(sample, [x, points])[0], weights])
    finite = np.isfinite(expected)
    assert finite.sum() == 6
    np.testing.assert_allclose(result[finite], expected[finite], rtol=1e-4, atol=1e-4)
