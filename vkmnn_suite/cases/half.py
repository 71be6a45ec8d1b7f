"""Cases of products and convolutions in float16 arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import ConvolutionAttrs, MatMulAttrs
from vkmnn.testing.case import Case, Variant, op_case, shader_cases
from vkmnn.testing.shapes import whole
from vkmnn_suite.cases.convolution import WIDE, Maker
from vkmnn_suite.cases.pooled import tile_of

Shape = tuple[int, ...]

# The largest acceptable error of a sum in float16, relative to its largest term.
STEP = 2.0**-9


@shader_cases("matmul_half")
def matmul_half(variant: Variant) -> Iterator[Case]:
    """Several tiles and steps, none of them whole; single rows and products; sizes of weights."""
    tile = tile_of(variant)
    rows, columns, depth = tile.rows, tile.columns, tile.depth
    small = 4 if variant.axes["aligned"] == 4 else 1
    n, long = columns + (4 if small == 4 else 3), 5 * depth - 3
    early = 2 * depth + depth * 3 // 8 + 4
    yield _product((2, 1, 2, rows + 5, long), (1, 3, 1, long, n), residual=True)
    yield _product((rows - 1, 2 * depth), (2 * depth, n - 4), residual=True)
    yield _product((3, rows + 1, early), (3, early, 2 * columns))
    yield _product((2 * rows + 1, 1), (1, small))
    yield _product((1, early), (early, small))
    yield _product((1, 1), (1, small))
    yield _product((0, 3), (3, small))
    # Terms that would overflow without the scale, next to others that it makes small.
    a, b = whole(rows, depth + 3, low=1, high=4), whole(depth + 3, n, seed=1, low=1, high=3)
    yield _loose(a * 15_000, b / 16_384)
    yield _loose(a, np.where(b == 1, b * 10_000, b * 1e-3))
    yield _loose(a, b * 1e-30)
    yield _loose(a, np.zeros_like(b))
    endless = b.copy()
    endless[-1, 0], endless[0, small - 1] = np.inf, np.nan
    yield op_case("MatMul", MatMulAttrs(), [a, endless], constant=[1], rtol=0, atol=0)


def _product(a: Shape, b: Shape, *, residual: bool = False) -> Case:
    left, right = whole(*a), whole(*b, seed=1)
    inputs: list[AnyArray | None] = [left, right, whole(b[-1], seed=2)]
    if residual:
        inputs.append(whole(*np.matmul(left, right).shape, seed=3))
    attrs = MatMulAttrs(alpha=0.5, activation=Activation("CLIP", -150.0, 210.0))
    return op_case("MatMul", attrs, inputs, constant=[1, 2], rtol=0, atol=0)


def _loose(a: AnyArray, b: AnyArray) -> Case:
    right = b.astype(np.float32)
    most = float(np.abs(a).max() * np.abs(right).max()) * a.shape[1]
    return op_case("MatMul", MatMulAttrs(), [a, right], constant=[1], rtol=STEP, atol=STEP * most)


@shader_cases("conv_half")
def conv_half(variant: Variant) -> Iterator[Case]:
    """Windows, single taps, groups, phases; several tiles and steps, none of them whole."""
    tile = tile_of(variant)
    rows, columns, depth = tile.rows, tile.columns, tile.depth
    make = Maker(WIDE)
    width, long = rows // 8 + 1, 5 * depth - 3
    yield make((2, 9, width, 8), (columns + 6, 9, 3, 5), pads=(2, 0, 3, 4), residual=True)
    yield make((1, long, rows + 3), (columns + 4, long, 1), residual=True)
    yield make((2, 2 * depth + 5, rows), (2 * columns, 2 * depth + 5, 1), residual=True)
    x, w = (1, 5 * depth, 3, rows), (7, 5 * depth, 1, 1)
    yield make(x, w, strides=(2, 3), pads=(1, 0, 2, 1), bias=False)
    yield make((2, 7, 9, 5), (38, 7, 3, 2), strides=(3, 2), dilations=(2, 3), pads=(1, 0, 2, 3))
    yield make((2, 5, 5, 4, 7), (3, 5, 2, 3, 2), pads=(1, 0, 1, 0, 2, 0))
    yield make((1, 1, 1, 1), (2, 1, 1, 1), bias=False)
    yield make((0, 7, 5, 5), (4, 7, 3, 3))
    grouped = make((1, 4 * depth, 3, 2), (8, depth, 3, 3), pads=(1, 1, 1, 1), group=4)
    yield replace(grouped, takes={"winograd": 0})
    yield make.transposed((2, 2 * depth, 5, 3), (2 * depth, 9, 3, 3), (2, 3))
    if tile.groups == 1:
        yield make.transposed((2, depth + 8, 5, 7), (depth + 8, 9, 4, 4), (2, 2), together=True)
    # Terms that would overflow as they are.
    channels = depth + 3
    x_large = whole(1, channels, 3, 5, low=1, high=4) * 15_000
    weights = (whole(9, channels, 1, 1, seed=1, low=1, high=3) / 16_384).astype(np.float32)
    most = float(x_large.max() * weights.max()) * channels
    attrs = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0,) * 4)
    inputs = [x_large, weights]
    yield op_case("Convolution", attrs, inputs, constant=[1], rtol=STEP, atol=STEP * most)
