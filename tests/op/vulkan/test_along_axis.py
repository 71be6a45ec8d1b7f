"""ArgMax, ArgMin, CumSum and TopK on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.ir.ops import ArgReduceAttrs, CumSumAttrs, TopKAttrs

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
