from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.blocked import check_blocked
from tests.op.vulkan.harness import ROW_GROUPS, check, run_on_device, take_group
from vkmnn.ir import Array
from vkmnn.ir.ops import REDUCTION_KINDS, ReductionAttrs
from vkmnn.vulkan.rows.reduction import RowGroup


def floats(*shape: int, kind: str = "") -> Array:
    x = np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)
    if kind == "PROD":
        x = np.exp(0.1 * x)
    return (np.abs(x) + 0.1 if kind == "LOG_SUM" else x).astype(np.float32)


def integers(*shape: int, kind: str = "", dtype: type = np.int32) -> Array:
    lowest = 1 if kind in ("LOG_SUM", "PROD") else -40
    highest = 3 if kind == "PROD" else 60
    rng = np.random.default_rng(len(shape) + sum(shape))
    return rng.integers(lowest, highest, shape).astype(dtype)


def axes_of(*axes: int) -> Array:
    return np.array(axes, np.int64)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((7,), (0,)),
    ((1,), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (0,)),
    ((13, 197), (-1,)),
    ((5, 64), (1,)),
    ((2, 3, 7), (1,)),
    ((2, 3, 8), (1,)),
    ((2, 31, 12), (0, 1)),
    ((2, 3, 5, 7), (2, 3)),
    ((2, 3, 5, 7), (1, 3)),
    ((2, 3, 4, 2), (0, 3)),
    ((1, 2, 1, 3, 1, 2, 1, 3), (3, 4, 5)),
]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_floats(shape: tuple[int, ...], axes: tuple[int, ...], kind: str, keepdims: bool) -> None:
    inputs = [floats(*shape, kind=kind), axes_of(*axes)]
    attrs = ReductionAttrs(kind, keepdims)
    check("Reduction", attrs, inputs, constant={1}, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_integers(shape: tuple[int, ...], axes: tuple[int, ...], kind: str) -> None:
    inputs = [integers(*shape, kind=kind), axes_of(*axes)]
    on_device = kind != "LOG_SUM_EXP"
    check("Reduction", ReductionAttrs(kind, False), inputs, constant={1}, on_device=on_device)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int8, np.bool_])
@pytest.mark.parametrize("kind", ["MAX", "MIN"])
def test_extrema_of_other_integers(kind: str, dtype: type) -> None:
    x = (integers(3, 20) > 5).astype(dtype)
    check("Reduction", ReductionAttrs(kind), [x, axes_of(1)], constant={1})


def test_sums_wider_than_a_word() -> None:
    x = np.full((3, 50_001), 2**31 - 1, np.int64)
    x[1] *= -1
    x[2, ::2] = -(2**31)
    check("Reduction", ReductionAttrs("MEAN"), [x, axes_of(1)], constant={1})
    x = integers(7, 30_001, dtype=np.int64) * 999
    for kind in ("MEAN", "L2"):
        check("Reduction", ReductionAttrs(kind), [x, axes_of(1)], constant={1})
    x = np.array([[4999 * 5001, 1, 3], [46340, 0, 0], [-2, 1, 2]], np.int32)
    check("Reduction", ReductionAttrs("L2"), [x[1:], axes_of(1)], constant={1})
    check("Reduction", ReductionAttrs("LOG_SUM"), [np.abs(x), axes_of(1)], constant={1})


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_all_axes_and_scalars(kind: str) -> None:
    check("Reduction", ReductionAttrs(kind), [floats(3, 5, kind=kind)], rtol=4e-6, atol=4e-6)
    check("Reduction", ReductionAttrs(kind, False), [floats(kind=kind)], rtol=4e-6, atol=4e-6)
    noop = ReductionAttrs(kind, noop_with_empty_axes=True)
    x = floats(3, 5, kind=kind)
    check("Reduction", noop, [x, axes_of()], constant={1}, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nothing(kind: str) -> None:
    for shape, axes in [((3, 0), (1,)), ((0,), (0,)), ((0, 3), (1,)), ((2, 0, 5), (1,))]:
        inputs: list[Array | None] = [np.zeros(shape, np.float32), axes_of(*axes)]
        check("Reduction", ReductionAttrs(kind), inputs, constant={1})
    if kind not in ("MEAN", "LOG_SUM", "LOG_SUM_EXP"):
        ints = [np.zeros((3, 0), np.int32), axes_of(1)]
        check("Reduction", ReductionAttrs(kind), ints, constant={1})


@pytest.mark.parametrize("kind", ["SUM", "MEAN", "MAX", "L2", "LOG_SUM_EXP", "SUM_SQUARE"])
@pytest.mark.parametrize("shape", [(1_000_003,), (1_000_003, 1), (100_003, 7), (70_001, 8)])
def test_long_lines(shape: tuple[int, ...], kind: str) -> None:
    x = floats(*shape) + np.float32(1)
    (result,) = check(
        "Reduction", ReductionAttrs(kind), [x, axes_of(0)], constant={1}, rtol=1e-6, atol=1e-6
    )
    if kind == "MEAN":
        np.testing.assert_allclose(result[0], x.astype(np.float64).mean(0), rtol=1e-6)


@pytest.mark.parametrize("kind", ["SUM", "MAX", "PROD", "L1"])
def test_long_lines_of_integers(kind: str) -> None:
    x = integers(300_007, kind=kind)
    check("Reduction", ReductionAttrs(kind), [x, axes_of(0)], constant={1})


def test_a_sum_of_integers_wraps() -> None:
    x = np.full((40,), 2**30, np.int32)
    (result,) = run_on_device("Reduction", ReductionAttrs("SUM"), [x, axes_of(0)], constant={1})
    assert int(result[0]) == (40 * 2**30 + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values(kind: str, axis: int) -> None:
    x = floats(7, 19, kind=kind)
    x[1, 3], x[2, 18], x[3, 0], x[4] = np.nan, np.inf, -np.inf, -np.inf
    x[5, 5], x[5, 6] = np.inf, np.nan
    x[6, 0], x[6, 1] = np.inf, -np.inf
    x = x if axis == 1 else np.ascontiguousarray(x.T)
    inputs = [x, axes_of(axis)]
    check("Reduction", ReductionAttrs(kind), inputs, constant={1}, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_pixels_of_channel_blocked_images(kind: str, keepdims: bool) -> None:
    attrs = ReductionAttrs(kind, keepdims)
    for shape in [(1, 7, 5, 3), (3, 5, 2, 2), (2, 8, 9), (1, 3, 97, 101)]:
        inputs = [floats(*shape, kind=kind), axes_of(*range(2, len(shape)))]
        check_blocked("Reduction", attrs, inputs, rtol=4e-6, atol=5e-5)
    check_blocked("Reduction", attrs, [floats(2, 5, 3, 3, kind=kind), axes_of(1)])


@pytest.mark.parametrize("group", ROW_GROUPS, ids=str)
@pytest.mark.parametrize("size", [16, 197, 1100, 5003])
def test_workgroups(size: int, group: RowGroup) -> None:
    takes = take_group(group)
    for kind in ("SUM", "MAX", "LOG_SUM_EXP"):
        inputs = [floats(3, size), axes_of(1)]
        attrs = ReductionAttrs(kind)
        check("Reduction", attrs, inputs, constant={1}, rtol=4e-6, atol=4e-6, takes=takes)
