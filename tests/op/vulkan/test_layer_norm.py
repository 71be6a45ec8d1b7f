from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import ROW_GROUPS, check, take_group
from vkmnn.ir import Array
from vkmnn.ir.ops import LayerNormAttrs
from vkmnn.vulkan.rows.reduction import RowGroup


def random(*shape: int, offset: float = 0.5) -> Array:
    rng = np.random.default_rng(len(shape) + sum(shape))
    return (rng.standard_normal(shape) + offset).astype(np.float32)


SHAPES = [
    ((1,), 0),
    ((7,), 0),
    ((5, 1), -1),
    ((3, 2), 1),
    ((37, 768), -1),
    ((2, 13, 197), -1),
    ((2, 3, 5, 7), 2),
    ((2, 3, 5, 8), 1),
    ((4, 1031), 1),
    ((3, 2048), 1),
    ((2, 5003), -1),
    ((1, 2, 1, 3, 1, 2, 1, 18), 5),
]


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...], axis: int, rms: bool) -> None:
    inner = shape[axis:]
    inputs = [random(*shape), random(*inner), random(*inner)]
    attrs = LayerNormAttrs(axis, 1e-5, rms)
    for constant in ((), (1, 2)):
        check("LayerNorm", attrs, inputs, constant=constant, outputs=3, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("size", [768, 197])
def test_optional_inputs_and_outputs(size: int) -> None:
    x, scale, bias = random(5, size), random(size), random(size)
    for inputs in ([x], [x, scale], [x, None, bias], [x, scale, bias]):
        for outputs in (1, 2, 3):
            check("LayerNorm", LayerNormAttrs(), inputs, outputs=outputs, atol=2e-6)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (4,), (3, 1), (2, 1, 1), (2, 3, 4), (3, 4)])
def test_broadcast_constants(shape: tuple[int, ...]) -> None:
    x = random(2, 3, 4)
    for axis in (0, 1, 2):
        inputs = [x, random(*shape), random(*shape, offset=2.0)]
        check("LayerNorm", LayerNormAttrs(axis), inputs, constant={1, 2}, atol=2e-6)


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3, 4)])
def test_broadcast_computed_factors(shape: tuple[int, ...]) -> None:
    inputs = [random(2, 3, 4), random(*shape), random(*shape)]
    check("LayerNorm", LayerNormAttrs(2), inputs, atol=2e-6)


def test_factors_that_the_kernels_do_not_know_run_elsewhere() -> None:
    inputs = [random(2, 3, 4), random(3, 1), random(4)]
    check("LayerNorm", LayerNormAttrs(1), inputs, atol=2e-6, on_device=False)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("shape", [(1_000_003,), (3, 70_000)])
def test_long_rows(shape: tuple[int, ...], rms: bool) -> None:
    inputs = [random(*shape, offset=3.0), random(shape[-1]), random(shape[-1])]
    results = check("LayerNorm", LayerNormAttrs(-1, 1e-5, rms), inputs, outputs=3, atol=1e-5)
    if not rms:
        mean = inputs[0].astype(np.float64).mean(-1)
        np.testing.assert_allclose(results[1].reshape(mean.shape), mean, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    check("LayerNorm", LayerNormAttrs(-1), [random(*shape), random(shape[-1])])


def test_large_mean_does_not_cancel() -> None:
    check("LayerNorm", LayerNormAttrs(), [random(7, 512, offset=1000.0)], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values() -> None:
    x = random(4, 33)
    x[0, 3], x[1, 32], x[2] = np.nan, np.inf, 4.0
    check("LayerNorm", LayerNormAttrs(), [x], atol=2e-6)


def test_float16() -> None:
    inputs = [random(3, 40).astype(np.float16), random(40).astype(np.float16)]
    check("LayerNorm", LayerNormAttrs(), inputs, outputs=3, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("group", ROW_GROUPS, ids=str)
@pytest.mark.parametrize("size", [16, 197, 1100, 5003])
def test_workgroups(size: int, group: RowGroup) -> None:
    inputs = [random(3, size), random(size), random(size)]
    check("LayerNorm", LayerNormAttrs(), inputs, outputs=3, atol=2e-6, takes=take_group(group))
