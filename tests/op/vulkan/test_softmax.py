from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import ROW_GROUPS, check, take_group
from vkmnn.ir import Array
from vkmnn.ir.ops import SoftmaxAttrs
from vkmnn.vulkan.rows.reduction import RowGroup


def random(*shape: int, scale: float = 3.0) -> Array:
    rng = np.random.default_rng(len(shape) + sum(shape))
    return (scale * rng.standard_normal(shape)).astype(np.float32)


SHAPES = [
    ((1,), 0),
    ((5,), 0),
    ((17,), 0),
    ((1, 1), -1),
    ((3, 2), 1),
    ((12, 7, 16), -1),
    ((37, 128), -1),
    ((13, 197), -1),
    ((5, 19), -1),
    ((7, 49), 1),
    ((2, 1000), 1),
    ((3, 1027), 1),
    ((2, 5001), 1),
    ((4, 3, 5), 1),
    ((2, 21, 3, 8), 1),
    ((1, 16, 4, 84), 1),
    ((31, 1), 0),
    ((31, 2, 2), 0),
    ((2, 3, 1), -1),
    ((1, 2, 1, 3, 1, 2, 1, 18), -1),
    ((70_001, 3), -1),
]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...], axis: int, log: bool) -> None:
    check("Softmax", SoftmaxAttrs(axis, log), [random(*shape)], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(axis: int) -> None:
    check("Softmax", SoftmaxAttrs(axis, flatten=True), [random(3, 4, 7)], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1_000_003,), 0), ((2, 70_000), 1), ((25_000, 3), 0), ((30_001, 4), 0)]
)
def test_long_lines(shape: tuple[int, ...], axis: int, log: bool) -> None:
    x = random(*shape)
    (result,) = check("Softmax", SoftmaxAttrs(axis, log), [x], rtol=1e-4, atol=1e-4)
    wide = x.astype(np.float64)
    shifted = wide - wide.max(axis, keepdims=True)
    exact = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    np.testing.assert_allclose(result if log else np.log(result), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (2, 0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    check("Softmax", SoftmaxAttrs(-1), [np.zeros(shape, np.float32)])


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("size", [5, 19, 64, 1100])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values(size: int, axis: int, log: bool) -> None:
    x = random(7, size)
    x[1] = -np.inf
    x[2, size // 2] = np.inf
    x[3, size - 1] = np.nan
    x[4, 0] = -np.inf
    x[5] = 3e38
    x[6] = -3e38
    x = x if axis == 1 else np.ascontiguousarray(x.T)
    check("Softmax", SoftmaxAttrs(axis, log), [x], rtol=2e-6, atol=1e-6)


def test_large_values_do_not_overflow() -> None:
    x = random(8, 100, scale=1e4)
    check("Softmax", SoftmaxAttrs(-1), [x], rtol=2e-6, atol=1e-6)
    check("Softmax", SoftmaxAttrs(-1, log=True), [x], rtol=2e-6, atol=1e-6)


def test_float16() -> None:
    x = random(3, 33).astype(np.float16)
    check("Softmax", SoftmaxAttrs(-1), [x], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("group", ROW_GROUPS, ids=str)
@pytest.mark.parametrize("size", [16, 197, 1100, 5003])
def test_workgroups(size: int, group: RowGroup) -> None:
    takes, x = take_group(group), random(3, size)
    check("Softmax", SoftmaxAttrs(-1), [x], rtol=2e-6, atol=1e-6, takes=takes)
