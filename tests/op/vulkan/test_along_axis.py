"""ArgMax, ArgMin, CumSum and TopK on the device against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.op.vulkan.harness import check, device, run_graph
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import CumSumAttrs, TopKAttrs
from vkmnn.runtime.device_info import DeviceType
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.top_k import TopKExecution

RNG = np.random.default_rng(3)


def ties(*shape: int) -> np.ndarray:
    """Return floats, many of them equal, with a few NaNs."""
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


LINES = [
    ((1, 40_003), -1, 50),
    ((3, 8_400), 1, 300),
    ((2, 2_053, 3), 1, 17),
    ((16, 131), 1, 7),
    ((1_031, 2), 0, 400),
    ((20_011,), 0, 13_000),
    ((13_003,), 0, 13_003),
]


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize(("shape", "axis", "k"), LINES, ids=str)
def test_top_k_of_long_lines(
    shape: tuple[int, ...], axis: int, k: int, dtype: str, largest: bool
) -> None:
    count, attrs = np.array([k], np.int64), TopKAttrs(axis, largest)
    x = RNG.permutation(np.prod(shape)).reshape(shape).astype(dtype)  # ties in narrow types
    if x.dtype.kind == "f":
        x.flat[[3, 9, 27]] = np.nan, -np.inf, np.nan
    check("TopK", attrs, [x, count], constant={1}, outputs=2, rtol=0, atol=0)
    # The best are adjacent, the worst case for blocks that compete.
    x.sort(axis)
    check("TopK", attrs, [x, count], constant={1}, outputs=2, rtol=0, atol=0)


SELECTED = [
    (1, 151_936, 50),
    (1, 160_000, 1),
    (1, 160_000, 1_000),
    (1, 672_000, 300),
    (64, 8_400, 300),
]


@pytest.mark.parametrize("kind", [DeviceType.CPU, DeviceType.DISCRETE])
@pytest.mark.parametrize(("rows", "size", "k"), SELECTED)
def test_top_k_sorts_what_it_keeps(rows: int, size: int, k: int, kind: DeviceType) -> None:
    """Keys are of blocks and of the best blocks; k of each line are sorted, in whole vectors."""
    count = np.array([k], np.int64)
    x = Tensor(TensorInfo("x", DType.FLOAT32, (rows, size)))
    given = Tensor(TensorInfo("k", DType.INT64, (1,)), Usage.CONSTANT, value=count)
    outputs = [Tensor(TensorInfo(name, DType.INT64, (rows, k))) for name in "vi"]
    encoder = VulkanEncoder(replace(device().info, type=kind))
    op = Op("TopK", "op", ["x", "k"], ["v", "i"], TopKAttrs())
    TopKExecution(op, [x, given], outputs, encoder.info).on_encode(encoder)
    looked_at = [
        (one.shader.name, np.prod(one.tensors[0].shape))
        for one in encoder.recording.dispatches
        if "_blocks_" not in one.shader.name and "_expand_" not in one.shader.name
    ]
    sorting = [words for name, words in looked_at if "_rank_" in name or "_merge_" in name]
    assert max(sorting) < rows * (k + 4)
    assert sum(words for _, words in looked_at) < rows * size / 2


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
