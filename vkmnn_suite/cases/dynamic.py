"""Cases of products whose left operand is quantised by a range that is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import (
    RESIDUAL_KINDS,
    DynamicQuantizeConvolutionAttrs,
    DynamicQuantizeMatMulAttrs,
)
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import floats, whole

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

    Weights include both ends of the byte range, and at even numbers, starting with `start`, values
    outside signed bytes.
    """
    for number, (rows, depth, columns) in enumerate(sizes, start):
        w = _weights(depth, columns)
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
            _numbers((*rows, depth), point),
            w.T.copy() if attrs.transpose_b else w + np.int16(9) if number % 2 == 0 else w,
            bias,
            residual,
            np.resize(factor, columns) if number % 2 == 0 else factor[1:2],
            np.array(_SCALE, np.float32),
            np.array(point, np.float32),
        ]
        constant = [1, 2, 4] if bias is not None else [1, 4]
        yield op_case("DynamicQuantizeMatMul", attrs, inputs, constant=constant, rtol=0, atol=0)


def dynamic_convolution(
    x: tuple[int, ...],
    w: tuple[int, ...],
    number: int = 0,
    *,
    strides: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    group: int = 1,
    shift: int = 0,
) -> Case:
    """Return a convolution whose results are exact; `number` selects its epilogue.

    The outermost bytes are among the weights, to which `shift` is added.
    """
    ones, point = (1,) * (len(x) - 2), (100, 0, 255, 37)[number % 4]
    attrs = DynamicQuantizeConvolutionAttrs(
        *(w[2:], strides or ones, dilations or ones, pads or (0,) * 2 * len(ones), group, "NOTSET"),
        activation=_ENDS[number % len(_ENDS)],
        residual=RESIDUAL_KINDS[number % len(RESIDUAL_KINDS)],
    )
    weights = _weights(*w)
    inputs: list[AnyArray | None] = [
        _numbers(x, point),
        weights + np.int16(shift) if shift else weights,
        whole(w[0], seed=2) if number % 3 != 2 else None,
        None,
        np.resize(np.array([0.5, 0.25, 0.75, 1.5, 0.125], np.float32), w[0]),
        np.array(_SCALE, np.float32),
        np.array(point, np.float32),
    ]
    constant = [1, 2, 4] if inputs[2] is not None else [1, 4]
    kind = "DynamicQuantizeConvolution"
    if number % 4 != 3:
        shape = op_case(kind, attrs, inputs, constant=constant).graph.outputs[0].dims
        inputs[3] = whole(*shape, seed=3)
    return op_case(kind, attrs, inputs, constant=constant, rtol=0, atol=0)


def _weights(*shape: int) -> AnyArray:
    w = whole(*shape, seed=1).astype(np.int8)
    w.reshape(-1)[::7], w.reshape(-1)[3::11] = 127, -128
    return w


def _numbers(shape: tuple[int, ...], point: int) -> AnyArray:
    """Return numbers between two quantised values, and beyond all of them; one is NaN."""
    x = np.asarray(floats(*shape, scale=4), np.float32)
    flat = x.reshape(-1)
    flat[::3] = np.rint(flat[::3]) * _SCALE + _SCALE / 2
    flat[1::5] *= 32
    far = np.array([1e30, -1e30, -0.0, -_SCALE * point], np.float32)
    flat[2::17] = np.resize(far, flat[2::17].shape)
    flat[4:5] = np.nan
    return x


@op_cases
def dynamic_convolutions() -> Iterator[Case]:
    """Yield windows, groups and single channels, one to three axes; one pixel, and nothing."""
    yield dynamic_convolution((2, 7, 9, 5), (38, 7, 3, 2), 0, pads=(1, 0, 2, 3), shift=9)
    yield dynamic_convolution((3, 16, 4, 3), (120, 8, 2, 2), 1, pads=(0, 1, 1, 0), group=2)
    yield dynamic_convolution((2, 6, 13), (5, 6, 3), 2, pads=(1, 1))
    yield dynamic_convolution((2, 5, 5, 4, 7), (3, 5, 2, 3, 2), 3, dilations=(1, 1, 2))
    yield dynamic_convolution((1, 7, 6, 7), (7, 1, 3, 3), 4, pads=(1, 1, 1, 1), group=7)
    yield dynamic_convolution((1, 6, 5, 7), (9, 2, 3, 3), 5, strides=(2, 1), group=3)
    yield dynamic_convolution((1, 1, 9, 9), (8, 1, 5, 5), 6, pads=(2, 2, 2, 2))
    yield dynamic_convolution((1, 37, 3, 3), (29, 37, 3, 3), 7)
    yield dynamic_convolution((0, 7, 5, 5), (4, 7, 3, 3), 8)


@shader_cases("dynamic_codes")
def dynamic_codes(variant: Variant) -> Iterator[Case]:
    """Ties, numbers out of range and NaN; partial tiles, rows that are not whole words; images."""
    if variant.axes["form"] == "words":
        yield from dynamic_convolutions()
    else:
        yield from dynamic_cases(_SIZES)
