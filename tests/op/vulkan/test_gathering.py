"""Gather and scatter ops on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.errors import InvalidInputError
from vkmnn.ir.ops import (
    AxisAttrs,
    GatherNDAttrs,
    ScatterElementsAttrs,
    ScatterNDAttrs,
)

RNG = np.random.default_rng(0)
REDUCTIONS = ("none", "add", "mul", "max", "min")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(values: object) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(5, 7, 8), (3, 11, 13), (5, 5, 1)])
def test_gather(axis: int, shape: tuple[int, ...]) -> None:
    size = shape[axis]
    check("Gather", AxisAttrs(axis), [floats(*shape), ints(RNG.integers(-size, size, (2, 6)))])


@pytest.mark.parametrize("index", [3, [3], [], [[0], [-1]]])
def test_gather_from_a_vector(index: object) -> None:
    check("Gather", AxisAttrs(0), [floats(5), ints(index)])


def test_gather_moves_bools_and_integers() -> None:
    index = ints([1, 0])
    check("Gather", AxisAttrs(0), [np.array([True, False]), index])
    check("Gather", AxisAttrs(0), [np.array([[7], [250]], np.uint8), index])


def test_index_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"index 5, outside -5 to 4"):
        run_on_device_with_bad_index()


def run_on_device_with_bad_index() -> None:
    from tests.op.vulkan.harness import run_graph
    from vkmnn.ir import DType, Graph, Op, TensorInfo

    graph = Graph(
        "bad",
        [TensorInfo("x", DType.FLOAT32, (5, 3)), TensorInfo("i", DType.INT64, (2,))],
        [TensorInfo("y", DType.FLOAT32, (2, 3))],
        [Op("Gather", "table", ["x", "i"], ["y"], AxisAttrs(0))],
    )
    run_graph(graph, {"x": floats(5, 3), "i": ints([0, 5])})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis: int) -> None:
    check(
        "GatherElements", AxisAttrs(axis), [floats(5, 7, 8), ints(RNG.integers(-5, 5, (3, 4, 5)))]
    )


@pytest.mark.parametrize("axis", [0, 3, 7, -1])
def test_elements_of_eight_axes(axis: int) -> None:
    shape = [2, 3, 1, 2, 2, 1, 3, 2]
    data = floats(*shape)
    shape[axis] = 1
    index = ints(RNG.integers(-data.shape[axis], data.shape[axis], shape))
    check("GatherElements", AxisAttrs(axis), [data, index])
    attrs = ScatterElementsAttrs(axis, "add")
    check("ScatterElements", attrs, [data, index, floats(*shape)])


def test_too_many_alternating_axes_are_left_to_the_backup() -> None:
    data = floats(2, 3, 2, 3, 2, 3, 2)
    index = ints(RNG.integers(0, 2, (1, 2, 1, 2, 1, 2, 1)))
    check("GatherElements", AxisAttrs(0), [data, index])
    data = floats(*[3] * 7)
    index = ints(RNG.integers(0, 2, [2] * 7))
    check("GatherElements", AxisAttrs(0), [data, index], on_device=False)


@pytest.mark.parametrize(
    ("batch", "shape", "index"),
    [(0, (5, 7, 8), (3, 2)), (1, (3, 7, 8), (3, 4, 1)), (0, (5, 7, 8), (3, 3)), (0, (5,), (1,))],
)
def test_gather_nd(batch: int, shape: tuple[int, ...], index: tuple[int, ...]) -> None:
    low = min(shape[batch : batch + index[-1]])
    indices = ints(RNG.integers(-low, low, index))
    check("GatherND", GatherNDAttrs(batch), [floats(*shape), indices])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_scatter_nd(reduction: str, dtype: type) -> None:
    rows = [[1, 2], [3, -1], [0, 0]] if reduction == "none" else [[1, 2], [1, 2], [0, 0], [1, 2]]
    data = (10 * floats(5, 7, 8)).astype(dtype)
    updates = (10 * floats(len(rows), 8)).astype(dtype)
    check("ScatterND", ScatterNDAttrs(reduction), [data, ints(rows), updates])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_elements(reduction: str) -> None:
    lines = [[RNG.permutation(7)[:4] - 3 for _ in range(6)] for _ in range(3)]
    index = ints(lines).swapaxes(1, 2)
    attrs = ScatterElementsAttrs(1, reduction)
    check("ScatterElements", attrs, [floats(5, 7, 8), np.ascontiguousarray(index), floats(3, 4, 6)])


def test_scatter_adds_more_updates_than_one_invocation_may_loop() -> None:
    count = 70_001
    index = ints(RNG.integers(0, 3, (count, 1)))
    updates = np.ones(count, np.int32)
    check("ScatterND", ScatterNDAttrs("add"), [np.zeros(3, np.int32), index, updates])


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis: int) -> None:
    index = ints([[1, -1], [9, 0]])
    check("OneHot", AxisAttrs(axis), [index, ints(5), floats(2)], constant={1})
    check("OneHot", AxisAttrs(axis), [index, ints([5]), ints([2, 7])], constant={1})
