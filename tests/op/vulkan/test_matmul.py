"""Matrix products on the device against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import check
from vkmnn.ir import Activation
from vkmnn.ir.ops import MatMulAttrs

RNG = np.random.default_rng(2)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


SHAPES = [
    ((5, 7), (7, 3)),
    ((8, 16), (16, 32)),
    ((1, 64), (64, 10)),
    ((2, 3, 5, 7), (2, 3, 7, 11)),
    ((2, 1, 5, 8), (3, 8, 12)),
    ((2, 1, 3, 5, 4), (1, 2, 3, 4, 8)),
    ((7,), (7, 5)),
    ((5, 7), (7,)),
    ((7,), (7,)),
    ((33, 40), (40, 100)),
    ((17, 13), (13, 37)),
    ((3, 4, 37, 64), (3, 4, 64, 64)),
    ((0, 4), (4, 3)),
    ((3, 0), (0, 4)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("constant", [set(), {0}, {1}])
def test_shapes(a: tuple[int, ...], b: tuple[int, ...], constant: set[int]) -> None:
    check("MatMul", MatMulAttrs(), [floats(*a), floats(*b)], constant=constant, rtol=1e-4)


@pytest.mark.parametrize("constant", [set(), {0}, {1}, {2}])
@pytest.mark.parametrize("m", [1, 6])
@pytest.mark.parametrize("n", [8, 9])
def test_transposes_and_epilogue(constant: set[int], m: int, n: int) -> None:
    epilogue = [floats(n), floats(2, m, n)]
    attrs = MatMulAttrs(True, True, 0.5, Activation("LEAKY_RELU", 0.1))
    operands = [floats(2, 5, m), floats(2, n, 5)]
    check("MatMul", attrs, [*operands, *epilogue], constant=constant, rtol=1e-4)
    check(
        "MatMul", MatMulAttrs(True), [floats(2, 5, m), floats(5, n)], constant=constant, rtol=1e-4
    )
    check("MatMul", MatMulAttrs(False, True), [floats(m, 5), floats(n, 5), None, floats(m, n)])


def test_integers() -> None:
    a, b = (
        RNG.integers(-9, 9, (5, 7)).astype(np.int32),
        RNG.integers(-9, 9, (7, 6)).astype(np.int32),
    )
    check("MatMul", MatMulAttrs(), [a, b])


def test_long_inner_axis() -> None:
    check("MatMul", MatMulAttrs(), [floats(3, 20_011), floats(20_011, 5)], rtol=1e-4, atol=1e-3)
