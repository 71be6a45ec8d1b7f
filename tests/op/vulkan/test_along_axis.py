"""ArgMax, ArgMin, CumSum and TopK on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import ROW_GROUPS, check, run_graph, take_group
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import ArgReduceAttrs, CumSumAttrs, TopKAttrs
from vkmnn.vulkan.rows.reduction import RowGroup

RNG = np.random.default_rng(3)


def ties(*shape: int) -> np.ndarray:
    """Return floats among which many are equal, with a few NaNs."""
    x = RNG.integers(-4, 5, shape).astype(np.float32)
    if x.size > 40:
        x.flat[:: x.size // 3] = np.nan
    return x


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((3, 5, 7), 0), ((3, 5, 7), 1), ((3, 5, 7), -1)])
def test_arg_reduce(kind: str, last: bool, shape: tuple[int, ...], axis: int) -> None:
    for keep in (False, True):
        attrs = ArgReduceAttrs(axis, keep, last)
        check(kind, attrs, [ties(*shape)])
        check(kind, attrs, [RNG.integers(-4, 5, shape).astype(np.int64)])


@pytest.mark.parametrize("shape", [(1,), (13,), (0, 3)])
def test_arg_reduce_edges(shape: tuple[int, ...]) -> None:
    check("ArgMax", ArgReduceAttrs(-1), [ties(*shape)])


def test_arg_reduce_of_a_line_longer_than_a_loop_may_be() -> None:
    x = RNG.standard_normal((2, 130_003)).astype(np.float32)
    x[0, 129_999] = x[1, 65_536] = 9
    check("ArgMax", ArgReduceAttrs(1), [x])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 5, 7), 0), ((3, 5, 7), -1), ((1,), 0), ((0, 3), 1)]
)
def test_cum_sum(exclusive: bool, reverse: bool, shape: tuple[int, ...], axis: int) -> None:
    attrs = CumSumAttrs(exclusive, reverse)
    where = np.array(axis, np.int64)
    check("CumSum", attrs, [RNG.standard_normal(shape).astype(np.float32), where], constant={1})
    check("CumSum", attrs, [RNG.integers(-9, 9, shape), where], constant={1})


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cum_sum_of_a_line_longer_than_a_loop_may_be(exclusive: bool, reverse: bool) -> None:
    x = RNG.integers(-3, 4, (130_003,)).astype(np.int32)
    check("CumSum", CumSumAttrs(exclusive, reverse), [x, np.array(0, np.int64)], constant={1})


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [((3, 5, 7), 0, 2), ((3, 5, 7), 1, 5), ((3, 5, 7), -1, 1), ((13,), 0, 13), ((4, 3), 1, 0)],
)
def test_top_k(largest: bool, shape: tuple[int, ...], axis: int, k: int) -> None:
    attrs = TopKAttrs(axis, largest)
    count = np.array([k], np.int64)
    check("TopK", attrs, [ties(*shape), count], constant={1}, outputs=2)
    check("TopK", attrs, [RNG.integers(-9, 9, shape), count], constant={1}, outputs=2)


@pytest.mark.parametrize(("length", "k"), [(5_003, 5), (20_011, 3), (5_003, 1_500)])
def test_top_k_of_long_lines(length: int, k: int) -> None:
    x = RNG.integers(0, 1000, (2, length)).astype(np.float32)
    check("TopK", TopKAttrs(-1), [x, np.array([k], np.int64)], constant={1}, outputs=2)


@pytest.mark.parametrize("k", [1, 64, 65, 300, 70_001])
def test_top_k_of_a_line_longer_than_a_loop_may_be(k: int) -> None:
    for attrs in (TopKAttrs(-1), TopKAttrs(-1, largest=False, sorted=False)):
        x = RNG.integers(-30_000, 30_000, (70_001,)).astype(np.float32)
        x[[5, 40_000, 70_000]] = np.nan
        x[[7, 50_000]] = np.inf, -np.inf
        check("TopK", attrs, [x, np.array([k], np.int64)], constant={1}, outputs=2)


@pytest.mark.parametrize("largest", [False, True])
def test_top_k_of_many_long_lines_in_the_middle(largest: bool) -> None:
    x = ties(3, 1_201, 5)
    check("TopK", TopKAttrs(1, largest), [x, np.array([700], np.int64)], constant={1}, outputs=2)


@pytest.mark.parametrize("largest", [False, True])
def test_top_k_of_extreme_values(largest: bool) -> None:
    count = np.array([9], np.int64)
    lowest, highest = -(2**31), 2**31 - 1
    ints = np.array([0, highest, lowest, -1, lowest, highest, 1, 0, lowest + 1], np.int64)
    check("TopK", TopKAttrs(0, largest), [ints, count], constant={1}, outputs=2)
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


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(1_000_003,), (3, 20_000), (2, 101, 3)], ids=str)
def test_arg_reduce_by_workgroups(kind: str, last: bool, shape: tuple[int, ...]) -> None:
    x = RNG.integers(-9, 10, shape).astype(np.float32)
    check(kind, ArgReduceAttrs(1 if len(shape) > 1 else 0, True, last), [x])
    check(kind, ArgReduceAttrs(1 if len(shape) > 1 else 0, False, last), [x.astype(np.int32)])
    x[..., 2] = x[..., -1] = np.nan
    check(kind, ArgReduceAttrs(1 if len(shape) > 1 else 0, True, last), [x])


def test_arg_reduce_of_extreme_values() -> None:
    lowest, highest = -(2**31), 2**31 - 1
    x = np.array([[0, highest, lowest], [lowest, lowest, lowest], [highest, 1, highest]], np.int32)
    inf = np.inf
    y = np.array([[-inf, -inf, -inf], [inf, inf, 1], [-0.0, 0.0, -0.0]], np.float32)
    for kind in ("ArgMax", "ArgMin"):
        for last in (False, True):
            check(kind, ArgReduceAttrs(1, True, last), [x])
            check(kind, ArgReduceAttrs(1, True, last), [y])


@pytest.mark.parametrize("group", ROW_GROUPS, ids=str)
def test_workgroups(group: RowGroup) -> None:
    takes = take_group(group)
    for last in (False, True):
        check("ArgMax", ArgReduceAttrs(1, True, last), [ties(3, 1_003)], takes=takes)


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
