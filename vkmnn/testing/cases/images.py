"""Cases of the kernels that work on tensors in images."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from vkmnn.ir.ops import MatMulAttrs, PoolingAttrs, TransposeAttrs
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases
from vkmnn.testing.cases.convolution import SMOOTH, Maker, Window
from vkmnn.testing.cases.shapes import floats, whole

Ints = tuple[int, ...]

_SAME = {rank: TransposeAttrs(tuple(range(rank + 2))) for rank in (1, 2)}
WIDE = 6000
"""Pixels of a row; three blocks of channels side by side are wider than images may be."""

# Input, outputs, kernel, strides, dilations, pads.
_WINDOWS: tuple[tuple[Ints, int, Ints, Ints, Ints, Ints], ...] = (
    ((2, 7, 9, 11), 6, (3, 2), (2, 3), (2, 1), (1, 0, 2, 1)),
    ((1, 4, 5, 5), 9, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((3, 5, 13), 4, (4,), (3,), (1,), (3, 2)),
    ((1, 1, 1, 1), 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((1, 13, 6, 17), 17, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((1, 5, 8, 7), 3, (3, 2), (1, 1), (2, 1), (1, 0, 0, 0)),
    ((2, 3, 7, 5), 2, (3, 2), (1, 2), (1, 1), (0, 1, 1, 1)),
)


@shader_cases("image_conv")
def image_conv(variant: Variant) -> Iterator[Case]:
    """Windows that slide in all ways, groups, residuals; products of rows of odd lengths."""
    make, smooth = Maker(), Maker(SMOOTH)
    depthwise = variant.axes["form"] == "depthwise"
    for x, outputs, kernel, strides, dilations, pads in _WINDOWS:
        window = Window(pads=pads, strides=strides, dilations=dilations)
        for residual in (False, True):
            if depthwise and x[1] > 1:
                yield make(x, (x[1], 1, *kernel), group=x[1], residual=residual, **window)
            elif not depthwise:
                yield make(x, (outputs, x[1], *kernel), residual=residual, **window)
    if depthwise:
        yield make((1, 9, 1, WIDE), (9, 1, 1, 3), group=9, pads=(0, 1, 0, 1))
        yield smooth((1, 5, 4, 6), (5, 1, 2, 2), group=5, bias=False)
        return
    yield make((2, 16, 5, 7), (24, 8, 3, 3), group=2, pads=(1, 0, 1, 0))
    yield make((1, 9, 1, WIDE), (6, 9, 1, 3), pads=(0, 1, 0, 1))
    yield smooth((1, 6, 4, 6), (5, 6, 2, 2), bias=False, residual=True)
    for (rows, inner, columns), turned, bias in product(
        ((1, 1, 1), (3, 5, 7), (2, 64, 31), (1, 2048, 10)), (False, True), (False, True)
    ):
        w = whole(columns, inner) if turned else whole(inner, columns)
        inputs = [whole(rows, inner), w, whole(columns) if bias else None]
        yield op_case("MatMul", MatMulAttrs(transpose_b=turned), inputs, constant={1, 2})


@shader_cases("image_convert")
def image_convert(variant: Variant) -> Iterator[Case]:
    """One to nine channels, in several batches, of one and two axes, and rows that are too wide."""
    for channels in range(1, 10):
        for batch, space in ((2, (5, 3)), (3, (7,)), (2, (1, 1)), (2, (1, 1009))):
            x = floats(batch, channels, *space)
            yield blocked_case("Transpose", _SAME[len(space)], [x], rtol=0, atol=0)
    yield blocked_case("Transpose", _SAME[2], [floats(1, 9, 1, WIDE)], rtol=0, atol=0)


@shader_cases("image_pool")
def image_pool(variant: Variant) -> Iterator[Case]:
    """Maxima and averages, with pads that count and that do not; of all pixels."""
    for x, _, kernel, strides, dilations, pads in _WINDOWS:
        if len(kernel) == 2 and max(pads) < min(kernel):
            for kind, ceil, count in product(("MAX", "AVERAGE"), (False, True), (False, True)):
                attrs = PoolingAttrs(
                    kind, kernel, strides, dilations, pads, ceil_mode=ceil, count_include_pad=count
                )
                yield op_case("Pooling", attrs, [floats(*x)])
    for kind in ("MAX", "AVERAGE"):
        attrs = PoolingAttrs(kind, (3,), (2,), (1,), (1, 1))
        yield op_case("Pooling", attrs, [floats(2, 6, 19)])
        yield op_case("Pooling", PoolingAttrs(kind, is_global=True), [floats(2, 7, 13, 17)])
        attrs = PoolingAttrs(kind, (1, 3), (1, 3), (1, 1), (0, 0, 0, 0))
        yield op_case("Pooling", attrs, [floats(1, 9, 1, WIDE)])
