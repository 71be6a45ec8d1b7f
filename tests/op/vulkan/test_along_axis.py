"""ArgMax, ArgMin, CumSum and TopK on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check, run_graph
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import CumSumAttrs, TopKAttrs

RNG = np.random.default_rng(3)


def ties(*shape: int) -> np.ndarray:
    """Return floats among which many are equal, with a few NaNs."""
    x = RNG.integers(-4, 5, shape).astype(np.float32)
    if x.size > 40:
        x.flat[:: x.size // 3] = np.nan
    return x


@pytest.mark.parametrize("largest", [False, True])
def test_top_k_of_extreme_floats(largest: bool) -> None:
    count = np.array([9], np.int64)
    inf, nan = np.inf, np.nan
    floats = np.array([0.0, -0.0, inf, -inf, nan, -nan, 1e-45, -1e-45, 3e38], np.float32)
    values, _ = check("TopK", TopKAttrs(0, largest), [floats, count], constant={1}, outputs=2)
    op = Op("TopK", "op", ["x", "k"], ["v", "i"], TopKAttrs(0, largest))
    np.testing.assert_array_equal(np.signbit(values), np.signbit(run_op(op, [floats, count])[0]))


@pytest.mark.parametrize("wanted", [0, 1])
def test_one_output_of_top_k(wanted: int) -> None:
    x, k = ties(3, 50), np.array([4], np.int64)
    names = ["", ""]
    names[wanted] = "out"
    op = Op("TopK", "op", ["x", "k"], names, TopKAttrs())
    expected = run_op(op, [x, k])[wanted]
    info = TensorInfo("out", DType.from_numpy(expected.dtype), expected.shape)
    graph = Graph("t", [TensorInfo("x", DType.FLOAT32, x.shape)], [info], [op], {"k": k})
    (result,) = run_graph(graph, {"x": x})
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1_000_003,), (2, 5_003, 3), (1_500, 40)], ids=str)
def test_cum_sum_in_pieces(exclusive: bool, reverse: bool, shape: tuple[int, ...]) -> None:
    axis = np.array(1 if len(shape) == 3 else 0, np.int64)
    attrs = CumSumAttrs(exclusive, reverse)
    check("CumSum", attrs, [RNG.integers(-99, 99, shape).astype(np.int32), axis], constant={1})
    x = RNG.random(shape).astype(np.float32)
    wide = x.astype(np.float64)
    (result,) = check("CumSum", attrs, [x, axis], constant={1}, rtol=1e-3)
    op = Op("CumSum", "op", ["x", "axis"], ["y"], attrs)
    # 25 seeds gave up to 4.3e-6: long sums in float32.
    np.testing.assert_allclose(result, run_op(op, [wide, axis])[0], rtol=1e-5, atol=1e-6)
