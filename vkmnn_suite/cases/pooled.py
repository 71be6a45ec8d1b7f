"""Cases of maximum pooling and the 1 x 1 convolution after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation, Op
from vkmnn.ir.ops import ConvolutionAttrs, PoolingAttrs
from vkmnn.testing.case import Case, Variant
from vkmnn.testing.shapes import whole
from vkmnn.vulkan.gemm.pooled import PooledShared
from vkmnn.vulkan.gemm.shared_tiles import NARROW, TILES, Tile
from vkmnn_suite.cases.coded import chain_case

Ints = tuple[int, ...]


def pooled_case(
    x: Ints,
    outputs: int,
    *,
    strides: Ints = (2, 2),
    pads: Ints = (0, 0, 0, 0),
    ceil: bool = False,
    residual: bool = False,
    low: int = -8,
) -> Case:
    """Return a pooling of 3 x 3 and a convolution, of whole numbers, so that sums are exact.

    Args:
        x: the shape of the input.
        outputs: channels of the convolution.
        strides: strides of the pooling.
        pads: pads of the pooling.
        ceil: the last windows may extend beyond the input.
        residual: the convolution adds one.
        low: the smallest number of x. If all are negative, pads must not count as zero.
    """
    channels, kernel = x[1], (3, 3)
    pool = PoolingAttrs("MAX", kernel, strides, (1, 1), pads, ceil_mode=ceil)
    product = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0,) * 4, activation=Activation("RELU"))
    sizes = [
        (x[2 + i] + pads[i] + pads[2 + i] - 3 + (strides[i] - 1) * ceil) // strides[i] + 1
        for i in range(2)
    ]
    constants: dict[str, AnyArray] = {
        "w": whole(outputs, channels, 1, 1, seed=1, low=-3, high=3),
        "bias": whole(outputs, seed=2),
    }
    feeds: dict[str, AnyArray] = {"x": whole(*x, low=low, high=low + 7)}
    more = []
    if residual:
        feeds["residual"], more = whole(x[0], outputs, *sizes, seed=3), ["residual"]
    ops = [
        Op("Pooling", "pool", ["x"], ["largest"], pool),
        Op("Convolution", "product", ["largest", "w", "bias", *more], ["out"], product),
    ]
    return chain_case(ops, feeds, constants)


def pooled_tiles(tile: Tile) -> Iterator[Case]:
    """Yield cases for a tile: partial tiles and steps, windows that extend beyond the image."""
    rows, columns, depth = tile.rows, tile.columns, tile.depth
    least = pooled_case((1, 6, 5, 5), 4, strides=(1, 1), pads=(1,) * 4)
    spoilt = least.feeds["x"].copy()
    spoilt[0, :, 2, 2] = np.nan
    cases = (
        pooled_case((2, depth + 5, 7, 2 * (rows // 6) + 9), columns + 3, residual=True),
        pooled_case((1, 2 * depth, 9, 6), columns, strides=(1, 3), pads=(1, 2, 2, 1), low=-15),
        pooled_case((3, 3, 4, 8), 5, pads=(0, 1, 1, 0), ceil=True, low=-15),
        pooled_case((1, 1, 3, 3), 1),
        replace(least, feeds={"x": spoilt}),
    )
    for case in cases:
        yield replace(case, takes={"pooled": PooledShared(tile)})


def tile_of(variant: Variant) -> Tile:
    """Return the tile of a variant of products or convolutions in shared memory."""
    return next(tile for tile in (*TILES, *NARROW) if tile.name == variant.axes["tile"])
