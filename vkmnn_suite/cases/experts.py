"""Cases of products by the weights of chosen experts."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import ExpertMatMulAttrs
from vkmnn.testing.case import Case, Variant, op_case, shader_cases
from vkmnn.testing.shapes import whole

Shape = tuple[int, ...]

# Rows (a shape), experts, how many are chosen, depth, columns, block: one row, all experts, several
# groups of an expert, broken panels, depths that are no whole chunks or vec4s, half a chunk.
_PRODUCTS: tuple[tuple[Shape, int, int, int, int, int], ...] = (
    ((1,), 5, 2, 64, 36, 32),
    ((2, 7), 3, 3, 100, 68, 16),
    ((31,), 4, 2, 131, 32, 64),
    ((9,), 300, 8, 33, 4, 32),
    ((0,), 2, 1, 32, 8, 32),
    ((), 2, 1, 2204, 40, 16),
)


def _weights(bits: int, shape: Shape, block: int, number: int) -> list[Any]:
    """Return weights, scales and zeros."""
    experts, columns, depth = shape
    if bits > 8:
        values = whole(experts, columns, depth, seed=5)
        return [values.astype(np.float16 if bits == 16 else np.float32), None, None]
    rng = np.random.default_rng(columns * depth + bits)
    blocks = -(-depth // block)
    codes = rng.integers(0, 256, (experts, columns, blocks, block * bits // 8), dtype=np.uint8)
    scales = np.exp2(rng.integers(-4, -2, (experts, columns, blocks))).astype(np.float32)
    middle = 1 << bits - 1
    zeros: AnyArray | None = None
    if number % 3 == 1:
        zeros = rng.integers(middle - 5, middle + 5, scales.shape).astype(np.uint8)
    if number % 3 == 2:
        zeros = (rng.integers(-50, 50, scales.shape) / 4).astype(np.float16)
        scales = scales.astype(np.float16)
    return [codes, scales, zeros]


def products(bits: int) -> Iterator[Case]:
    """Yield products with biases, activations, gates, limits, and sums by shares."""
    for number, (rows, experts, count, depth, columns, block) in enumerate(_PRODUCTS):
        weights, scales, zeros = _weights(bits, (experts, columns, depth), block, number)
        gated, each, summed = number % 2 == 0, number % 3 == 1, number % 3 != 2
        kept = bits if bits <= 8 else 0
        bias = whole(experts, columns, seed=2) if number % 2 else None
        attrs = ExpertMatMulAttrs(
            experts,
            columns,
            depth,
            kept,
            block if kept else 0,
            each,
            Activation("QUICK_GELU", 1.7) if gated else Activation(),
            gated,
            7.0 if number == 2 else inf,
            1.0 if number == 2 else 0.0,
        )
        rng = np.random.default_rng(number)
        chosen = rng.integers(-1, experts + 1, (*rows, count))  # out of range: clamped
        x = whole(*rows, *([count] if each else []), depth) / 8
        shares = whole(*rows, count, seed=7) / 4 if summed else None
        residual = whole(*rows, attrs.width, seed=8) if number % 3 == 0 else None
        inputs = [x, weights, chosen, bias, scales, zeros, shares, residual]
        yield op_case("ExpertMatMul", attrs, inputs, constant=(1, 3, 4, 5), rtol=1e-4, atol=2e-3)


@shader_cases("matmul_experts")
def matmul_experts(variant: Variant) -> Iterator[Case]:
    """One row of each expert, and groups."""
    return products(int(variant.axes["bits"]))


@shader_cases("expert_groups")
def expert_groups(variant: Variant) -> Iterator[Case]:
    """Groups that are full, and others; experts that nobody chose."""
    return products(4)


@shader_cases("expert_mix")
def expert_mix(variant: Variant) -> Iterator[Case]:
    """Sums of several experts, and of one."""
    yield from products(32)
    attrs = ExpertMatMulAttrs(3, 5, 8)
    inputs = [whole(4, 8), whole(3, 5, 8, seed=1), np.array([[0, 2]] * 4), None, None, None,
              whole(4, 2, seed=3)]  # fmt: skip
    yield op_case("ExpertMatMul", attrs, inputs, constant=(1,), rtol=1e-4, atol=1e-3)
