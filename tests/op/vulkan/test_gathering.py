"""Gather and scatter ops on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check, run_graph, run_on_device
from vkmnn.errors import InvalidInputError
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import AxisAttrs, ScatterElementsAttrs, ScatterNDAttrs
from vkmnn.testing.case import op_case
from vkmnn.vulkan.sorting.scatter import AtOnce, InOrder, last_updates, updates_by_row

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(values: object) -> np.ndarray:
    return np.array(values, np.int64)


def test_index_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"index 5, outside -5 to 4"):
        run_on_device_with_bad_index()


def run_on_device_with_bad_index() -> None:
    graph = Graph(
        "bad",
        [TensorInfo("x", DType.FLOAT32, (5, 3)), TensorInfo("i", DType.INT64, (2,))],
        [TensorInfo("y", DType.FLOAT32, (2, 3))],
        [Op("Gather", "table", ["x", "i"], ["y"], AxisAttrs(0))],
    )
    run_graph(graph, {"x": floats(5, 3), "i": ints([0, 5])})


def test_too_many_alternating_axes_are_left_to_the_backup() -> None:
    data = floats(*[3] * 7)
    index = ints(RNG.integers(0, 2, [2] * 7))
    check("GatherElements", AxisAttrs(0), [data, index], on_device=False)


WAYS = [InOrder(), AtOnce()]
DTYPES = ["float32", "float16", "int32", "int64", "uint8", "bool"]


def repeated(count: int, rows: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return data, indices that are mostly repeated many times, and updates that differ."""
    values = RNG.integers(0, 2 if dtype == "bool" else 100, (rows + count, 3)).astype(dtype)
    return values[:rows], ints(RNG.integers(-rows, rows, (count, 1))), values[rows:]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_last_of_repeated_updates_stays(dtype: str, way: object) -> None:
    data, index, updates = repeated(5_000, 10, dtype)
    expected = data.copy()
    for place, update in zip(index[:, 0], updates, strict=True):
        expected[place] = update
    inputs, takes = [data, index, updates], {"scatter": way}
    for _ in range(5):
        (result,) = check("ScatterND", ScatterNDAttrs(), inputs, rtol=0, atol=0, takes=takes)
        np.testing.assert_array_equal(result, expected)
    (result,) = run_on_device("ScatterND", ScatterNDAttrs(), inputs, constant={1})
    np.testing.assert_array_equal(result, expected)
    line = [data[:, 0].copy(), index[:, 0], updates[:, 0].copy()]
    attrs = ScatterElementsAttrs(0)
    (result,) = check("ScatterElements", attrs, line, rtol=0, atol=0, takes=takes)
    np.testing.assert_array_equal(result, expected[:, 0])


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("rows", [1, 7, 3_000])
def test_updates_at_once_combine_as_in_order(reduction: str, rows: int) -> None:
    """Every run adds floats in the same order: `check` compares two runs bit by bit."""
    index = ints(RNG.integers(-rows, rows, (20_001, 1)))
    data, updates = floats(rows), floats(20_001)
    if reduction == "mul":
        updates = np.exp2(RNG.integers(-1, 2, 20_001)).astype(np.float32) if rows > 7 else updates
        updates[np.abs(updates) > 4] = 1
    takes = {"scatter": AtOnce()}
    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    inputs = [data, index, updates]
    check("ScatterND", ScatterNDAttrs(reduction), inputs, takes=takes, **tolerance)
    inputs[1] = index[:, 0]
    check("ScatterElements", ScatterElementsAttrs(0, reduction), inputs, takes=takes, **tolerance)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_constant_tuple_outside_is_refused_when_planned(reduction: str) -> None:
    inputs = [floats(5, 4, 3), ints([[0, 1], [4, -5]]), floats(2, 3)]
    good = [inputs[0], ints([[0, 1], [4, -4]]), inputs[2]]
    check("ScatterND", ScatterNDAttrs(reduction), good, constant={1})
    case = op_case("ScatterND", ScatterNDAttrs(reduction), good, constant={1})
    case.graph.constants["in1"] = inputs[1]
    with pytest.raises(InvalidInputError, match=r"index -5, outside -4 to 3") as caught:
        run_graph(case.graph, dict(case.feeds))
    assert caught.value.op == "ScatterND"


def test_what_constant_indices_leave_to_do() -> None:
    rows = ints([3, 1, 3, 0, 1, 3])
    numbers, places = last_updates(rows)
    assert dict(zip(places.tolist(), numbers.tolist(), strict=True)) == {0: 3, 1: 4, 3: 5}
    numbers, places = updates_by_row(rows)
    assert numbers.tolist() == [3, 1, 4, 0, 2, 5]
    assert places.tolist() == [0, 1, 1, 3, 3, 3]
