"""Cases of products whose left operand is quantised by a range that is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import RESIDUAL_KINDS, DynamicQuantizeMatMulAttrs
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.cases.shapes import floats, whole

# Rows (a shape), depth and columns.
Sizes = tuple[tuple[int, ...], int, int]

_SCALE = 0.5
_ENDS = (Activation("CLIP", -3000.0, 2000.0), Activation(), Activation("LEAKY_RELU", 0.125))
# Rows of whole words, in broken tiles and panels, and others; one row; nothing; many dimensions.
_SIZES: tuple[Sizes, ...] = (
    ((90,), 60, 36),
    ((9,), 260, 132),
    ((2,), 4, 4),
    ((3, 2, 5), 28, 300),
    ((45,), 13, 35),
    ((1,), 64, 36),
    ((7,), 12, 33),
    ((2, 3), 1, 1),
    ((0,), 8, 4),
)


@op_cases
def dynamic_products() -> Iterator[Case]:
    """Yield products of all sizes."""
    yield from dynamic_cases(_SIZES)


def dynamic_cases(sizes: Sequence[Sizes], start: int = 0) -> Iterator[Case]:
    """Yield products whose results are exact, with all that an epilogue can do.

    The outermost bytes are among the weights, and with even numbers, which begin with `start`,
    those that lie outside signed bytes.
    """
    for number, (rows, depth, columns) in enumerate(sizes, start):
        w = whole(depth, columns, seed=1).astype(np.int8)
        w.reshape(-1)[::7], w.reshape(-1)[3::11] = 127, -128
        bias = whole(columns, seed=2) if number % 3 != 2 else None
        residual = whole(*rows, columns, seed=3) if number % 4 != 3 else None
        factor = np.array([0.5, 0.25, 0.75, 1.5, 0.125], np.float32)
        attrs = DynamicQuantizeMatMulAttrs(
            transpose_b=number % 3 == 1,
            activation=_ENDS[number % len(_ENDS)],
            residual=RESIDUAL_KINDS[number % len(RESIDUAL_KINDS)],
        )
        point = (0, 100, 255, 37)[number % 4]
        inputs: list[AnyArray | None] = [
            _left(rows, depth, point),
            w.T.copy() if attrs.transpose_b else w + np.int16(9) if number % 2 == 0 else w,
            bias,
            residual,
            np.resize(factor, columns) if number % 2 == 0 else factor[1:2],
            np.array(_SCALE, np.float32),
            np.array(point, np.float32),
        ]
        constant = [1, 2, 4] if bias is not None else [1, 4]
        yield op_case("DynamicQuantizeMatMul", attrs, inputs, constant=constant, rtol=0, atol=0)


def _left(rows: tuple[int, ...], depth: int, point: int) -> AnyArray:
    """Return numbers that lie between two codes, and beyond all of them; one is none."""
    x = np.asarray(floats(*rows, depth, scale=4), np.float32)
    flat = x.reshape(-1)
    flat[::3] = np.rint(flat[::3]) * _SCALE + _SCALE / 2
    flat[1::5] *= 32
    flat[2::17] = np.resize(
        np.array([1e30, -1e30, -0.0, -_SCALE * point], np.float32), flat[2::17].shape
    )
    flat[4:5] = np.nan
    return x


@shader_cases("dynamic_codes")
def dynamic_codes(variant: Variant) -> Iterator[Case]:
    """Ties, numbers beyond all codes and NaN; broken tiles, rows of no whole words."""
    yield from dynamic_cases(_SIZES)
