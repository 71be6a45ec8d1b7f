"""Cases of the kernels that work on tensors in images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from vkmnn.ir import Array, OpAttrs
from vkmnn.ir.ops import (
    AxisAttrs,
    InterpAttrs,
    MatMulAttrs,
    PadAttrs,
    PoolingAttrs,
    TransposeAttrs,
)
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases
from vkmnn.testing.shapes import floats, whole
from vkmnn_suite.cases.convolution import SMOOTH, Maker, Window

Ints = tuple[int, ...]

_SAME = {rank: TransposeAttrs(tuple(range(rank + 2))) for rank in (1, 2)}
WIDE = 6000
"""Pixels of a row; three such blocks of channels in a row exceed the maximum width of an image."""

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


_PARTS: tuple[tuple[tuple[Ints, ...], int], ...] = (
    (((2, 8, 3, 5), (2, 4, 3, 5), (2, 7, 3, 5)), 1),
    (((1, 5, 3, 7), (1, 5, 2, 7)), 2),
    (((2, 3, 4, 5), (2, 3, 4, 1), (2, 3, 4, 11)), 3),
    (((1, 6, 2, 3), (3, 6, 2, 3)), 0),
    (((2, 4, 13), (2, 9, 13)), 1),
    (((1, 8, 1, WIDE), (1, 5, 1, WIDE)), 1),
)
# Input; start and end of each axis, and its step.
_SLICES: tuple[tuple[Ints, Ints, Ints, Ints], ...] = (
    ((2, 13, 5, 7), (0, 4, 1, 2), (2, 12, 4, 7), (1, 1, 1, 1)),
    ((3, 9, 8, 11), (1, 8, 0, 1), (3, 9, 8, 10), (1, 1, 3, 2)),
    ((2, 6, 5, 9), (0, 0, 4, 8), (2, 6, -6, -10), (1, 1, -1, -2)),
    ((2, 12, 17), (0, 4, 3), (1, 8, 16), (1, 1, 5)),
    ((1, 9, 2, WIDE), (0, 4, 1, 7), (1, 9, 2, WIDE - 2), (1, 1, 1, 1)),
)
_PADS: tuple[tuple[Ints, Ints], ...] = (
    ((2, 5, 3, 4), (0, 0, 1, 2, 0, 0, 3, 0)),
    ((1, 8, 3, 4), (0, 4, 0, 0, 0, 3, 0, 1)),
    ((1, 3, 7), (1, 0, 2, 0, 0, 5)),
)


@shader_cases("image_raster")
def image_raster(variant: Variant) -> Iterator[Case]:
    """Blocks of channels, rows, columns and batches: joined, cropped, transposed and padded."""

    def case(op: str, attrs: OpAttrs, x: Array, *others: Array) -> Case:
        constant = range(1, 1 + len(others)) if op != "Concat" else ()
        inputs = [x, *others]
        return blocked_case(op, attrs, inputs, constant=constant, rtol=0, atol=0)

    def numbers(values: Sequence[int]) -> Array:
        return np.array(values, np.int64)

    for shapes, axis in _PARTS:
        yield case("Concat", AxisAttrs(axis), *(floats(*s, seed=n) for n, s in enumerate(shapes)))
    for shape, begins, ends, steps in _SLICES:
        ranges = (begins, ends, tuple(range(len(shape))), steps)
        yield case("Slice", OpAttrs(), floats(*shape), *map(numbers, ranges))
    for shape, pads in _PADS:
        yield case("Pad", PadAttrs(), floats(*shape), numbers(pads), np.array(-2.5, np.float32))
        yield case("Pad", PadAttrs("edge"), floats(*shape), numbers(pads))


@shader_cases("image_interp")
def image_interp(variant: Variant) -> Iterator[Case]:
    """One axis and both, enlarged and reduced, by one to sixteen taps, and from outside."""

    def case(attrs: InterpAttrs, x: Array, size: Ints, roi: Ints = ()) -> Case:
        region = np.array(roi, np.float32) if roi else None
        inputs = [x, region, None, np.array(size, np.int64)]
        off = 0.0 if attrs.mode == "nearest" else 1e-5
        return blocked_case("Interp", attrs, inputs, constant=[1, 3], rtol=off, atol=off)

    for mode in ("nearest", "linear", "cubic"):
        yield case(InterpAttrs(mode, axes=(2, 3)), floats(2, 6, 5, 7), (11, 13))
        yield case(InterpAttrs(mode, axes=(2, 3)), floats(1, 4, 13, 8), (5, 8))
        yield case(InterpAttrs(mode, axes=(3,)), floats(3, 5, 2, 9), (4,))
        yield case(InterpAttrs(mode, axes=(2,)), floats(1, 3, 17), (31,))
        crop = InterpAttrs(mode, "tf_crop_and_resize", extrapolation_value=3.5, axes=(2, 3))
        for channels in (5, 6, 11):
            yield case(crop, floats(1, channels, 6, 7), (9, 8), (-1, 0, 1, 2))
    yield case(InterpAttrs("nearest", axes=(3,)), floats(1, 9, 1, 3), (WIDE,))
    yield case(InterpAttrs("linear", axes=(3,)), floats(1, 9, 1, WIDE), (7,))
    yield case(InterpAttrs("linear", axes=(2, 3)), floats(1, 9, 2, WIDE), (3, WIDE))
    yield case(InterpAttrs("cubic", antialias=True, axes=(3,)), floats(1, 3, 4, 40), (7,))


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
