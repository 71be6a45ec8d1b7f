"""Gather and scatter ops on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.errors import InvalidInputError
from vkmnn.ir.ops import (
    AxisAttrs,
)

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(values: object) -> np.ndarray:
    return np.array(values, np.int64)


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


def test_too_many_alternating_axes_are_left_to_the_backup() -> None:
    data = floats(*[3] * 7)
    index = ints(RNG.integers(0, 2, [2] * 7))
    check("GatherElements", AxisAttrs(0), [data, index], on_device=False)
