from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check, run_on_device
from vkmnn.ir import Array
from vkmnn.ir.ops import ReductionAttrs
from vkmnn.testing.shapes import floats, integers
from vkmnn_suite.cases.reduction import AXES


def axes_of(*axes: int) -> Array:
    return np.array(axes, np.int64)


@pytest.mark.parametrize("kind", ["SUM", "MEAN", "MAX", "L2", "LOG_SUM_EXP", "SUM_SQUARE"])
@pytest.mark.parametrize("shape", [(1_000_003,), (1_000_003, 1), (100_003, 7), (70_001, 8)])
def test_long_lines(shape: tuple[int, ...], kind: str) -> None:
    x = floats(*shape) + np.float32(1)
    (result,) = check(
        "Reduction", ReductionAttrs(kind), [x, axes_of(0)], constant={1}, rtol=1e-6, atol=1e-6
    )
    if kind == "MEAN":
        np.testing.assert_allclose(result[0], x.astype(np.float64).mean(0), rtol=1e-6)


def test_a_sum_of_integers_wraps() -> None:
    x = np.full((40,), 2**30, np.int32)
    (result,) = run_on_device("Reduction", ReductionAttrs("SUM"), [x, axes_of(0)], constant={1})
    assert int(result[0]) == (40 * 2**30 + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(("shape", "axes"), AXES, ids=str)
def test_exponentials_of_integers_are_left_to_the_backup(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    inputs = [integers(*shape), axes_of(*axes)]
    check("Reduction", ReductionAttrs("LOG_SUM_EXP", False), inputs, constant={1}, on_device=False)
