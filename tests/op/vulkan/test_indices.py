"""Indices are divided by a product of floats below a bound, by integers from there on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.ir import Graph, Op
from vkmnn.ir.ops import PoolingAttrs, TransposeAttrs
from vkmnn.testing.case import Case, tensor_info
from vkmnn.testing.runner import run_case
from vkmnn.vulkan.encoder import EXACT_QUOTIENTS

# Just below and just above the bound; the sides are primes.
SIZES = [(1021, 1019), (1021, 1031)]


def test_the_sizes_straddle_the_bound() -> None:
    below, above = (height * width for height, width in SIZES)
    assert below < EXACT_QUOTIENTS < above


@pytest.mark.parametrize("ulps", [-2.5, 0.0, 2.5])
def test_quotients_are_exact_below_the_bound(ulps: float) -> None:
    """Also where the division is as far off as Vulkan allows."""
    rng = np.random.default_rng(0)
    index = np.arange(EXACT_QUOTIENTS, dtype=np.uint32)
    for divisor in [*range(1, 70), *rng.integers(70, EXACT_QUOTIENTS, 60).tolist()]:
        inverse = np.float32(1.0 / divisor * (1 + ulps * 2.0**-23))
        quotient = (index.astype(np.float32) + np.float32(0.5)) * inverse
        np.testing.assert_array_equal(quotient.astype(np.uint32), index // np.uint32(divisor))


@pytest.mark.parametrize("size", SIZES)
def test_both_ways_on_the_device(size: tuple[int, int]) -> None:
    height, width = size
    x = np.random.default_rng(1).standard_normal((1, 1, height, width)).astype(np.float32)
    pool = PoolingAttrs("MAX", (3, 2), (1, 1), (1, 1), (0, 0, 0, 0))
    turned = Op("Transpose", "t", ["x"], ["t"], TransposeAttrs((0, 1, 3, 2)))
    graph = Graph(
        "large",
        [tensor_info("x", x)],
        [
            tensor_info("t", x.transpose(0, 1, 3, 2)),
            tensor_info("p", np.zeros((1, 1, height - 2, width - 1), np.float32)),
        ],
        [turned, Op("Pooling", "p", ["x"], ["p"], pool)],
        {},
    )
    run_case(Case(graph, {"x": x}), device(), {})
