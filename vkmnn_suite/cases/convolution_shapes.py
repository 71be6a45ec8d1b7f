"""Convolutions and transposed convolutions of all shapes, by the kernels that the rules take."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

import numpy as np

from vkmnn.cpu_fallback import run_op
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation, Op
from vkmnn.ir.ops import ConvolutionAttrs, DeconvolutionAttrs
from vkmnn.testing.case import Case, op_case, op_cases
from vkmnn.testing.shapes import floats

Ints = tuple[int, ...]

WEIGHTS = (1, 2)
"""The inputs that are constants in most networks: weights and bias."""
HARD_SWISH = Activation("HARD_SWISH")
# A lower bound above zero shows lanes after the last channel that were not cleared.
ABOVE_ZERO = Activation("CLIP", 0.5, 2.0)


def _window(
    axes: int,
    strides: Ints = (),
    dilations: Ints = (),
    pads: Ints = (),
    group: int = 1,
    auto_pad: str = "NOTSET",
    activation: Activation | None = None,
) -> ConvolutionAttrs:
    return ConvolutionAttrs(
        (),
        strides or (1,) * axes,
        dilations or (1,) * axes,
        pads or (0,) * 2 * axes,
        group,
        auto_pad,
        activation or Activation(),
    )


def _transposed(
    axes: int = 2,
    strides: Ints = (),
    dilations: Ints = (),
    pads: Ints = (),
    output_padding: Ints = (),
    output_shape: Ints = (),
    group: int = 1,
    auto_pad: str = "NOTSET",
    activation: Activation | None = None,
) -> DeconvolutionAttrs:
    return DeconvolutionAttrs(
        (),
        strides or (1,) * axes,
        dilations or (1,) * axes,
        pads or (0,) * 2 * axes,
        output_padding or (0,) * axes,
        output_shape,
        group,
        auto_pad,
        activation or Activation(),
    )


def conv_case(
    attrs: ConvolutionAttrs, *inputs: AnyArray | None, constant: Collection[int] = WEIGHTS
) -> Case:
    """Return a convolution; long sums are as exact as their largest terms, hence the tolerance."""
    names = [f"in{i}" if array is not None else "" for i, array in enumerate(inputs)]
    (result,) = run_op(Op("Convolution", "op", names, ["y"], attrs), inputs)
    largest = float(np.abs(result).max(initial=1))
    return op_case("Convolution", attrs, inputs, constant=constant, rtol=1e-4, atol=2e-5 * largest)


@op_cases
def convolution_windows() -> Iterator[Case]:
    """Windows and strides, one to three axes, automatic pads, nothing and single elements."""
    kernels = ((1, 1), (3, 3), (5, 5), (7, 7), (1, 7), (2, 3))
    for kernel, stride in product(kernels, (1, 2)):
        pads = (kernel[0] // 2, kernel[1] // 2) * 2
        x, w = floats(2, 7, 13, 11), floats(37, 7, *kernel, seed=1)
        yield conv_case(_window(2, (stride, stride), pads=pads), x, w, floats(37, seed=2))
    for constant in ((1,), ()):
        x, w = floats(2, 7, 53), floats(35, 7, 5, seed=1)
        yield conv_case(_window(1, (3,), pads=(2, 1)), x, w, constant=constant)
    attrs = _window(3, (1, 2, 1), pads=(1, 0, 1, 1, 1, 0))
    yield conv_case(attrs, floats(2, 7, 5, 6, 7), floats(35, 7, 2, 3, 3, seed=1))
    for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        attrs = _window(2, (2, 3), auto_pad=auto_pad)
        yield conv_case(attrs, floats(2, 7, 13, 17), floats(9, 7, 4, 3, seed=1))
    yield conv_case(_window(2), floats(0, 7, 13, 17), floats(9, 7, 4, 3), floats(9))
    yield conv_case(_window(2), floats(1, 1, 1, 1), floats(1, 1, 1, 1, seed=1))


@op_cases
def convolution_groups() -> Iterator[Case]:
    """Groups of any number of channels, with constant weights and with computed ones."""
    groups = ((5, 5, 5), (8, 8, 8), (5, 5, 15), (4, 4, 8), (3, 9, 6), (2, 10, 4), (2, 16, 8))
    for (group, channels, outputs), constant in product(groups, (WEIGHTS, ())):
        attrs = _window(2, (2, 1), pads=(1, 1, 1, 2), group=group, activation=ABOVE_ZERO)
        w = floats(outputs, channels // group, 3, 2, seed=1)
        x = floats(2, channels, 13, 11)
        yield conv_case(attrs, x, w, floats(outputs), constant=constant)


@op_cases
def convolution_depthwise() -> Iterator[Case]:
    """Widths on both sides of whole strips, with a bias, and with a residual."""
    for size, stride, width, dilation in product((3, 5), (1, 2), (7, 8, 17), (1, 2)):
        attrs = _window(
            2, (stride,) * 2, (dilation,) * 2, pads=(1, 2, 2, 1), group=6, activation=HARD_SWISH
        )
        x, w = floats(2, 6, 13, width), floats(6, 1, size, size, seed=1)
        case = conv_case(attrs, x, w, floats(6))
        yield case
        yield conv_case(attrs, x, w, None, floats(*case.graph.outputs[0].dims))


@op_cases
def convolution_operands() -> Iterator[Case]:
    """Computed weights, constant inputs, float16."""
    x, w = floats(2, 7, 13, 11), floats(35, 7, 3, 2, seed=1)
    for constant in ((1,), ()):
        yield conv_case(_window(2, pads=(1, 1, 1, 2)), x, w, floats(35), constant=constant)
    x, w = floats(2, 7, 5, 3), floats(35, 7, 1, 1, seed=1)
    yield conv_case(_window(2), x, w, None, floats(2, 35, 5, 3), constant=(0, 3))
    inputs = [floats(1, 3, 15, 14), floats(5, 3, 3, 3, seed=1), floats(5)]
    halves = [array.astype(np.float16) for array in inputs]
    attrs = _window(2, pads=(1, 1, 1, 1))
    yield op_case("Convolution", attrs, halves, constant=WEIGHTS, rtol=1e-2, atol=1e-2)


@op_cases
def convolution_long_windows() -> Iterator[Case]:
    """More taps than a loop of a kernel may count, and kernels as large as images."""
    x = np.linspace(-1, 1, 70_001, dtype=np.float32).reshape(1, 1, -1)
    for constant in ((1,), ()):
        yield conv_case(_window(1), x, floats(3, 1, 70_001), constant=constant)
    for group, outputs in ((1, 3), (3, 3), (3, 6)):
        x, w = floats(1, 3, 260, 261), floats(outputs, 3 // group, 258, 259, seed=1)
        yield conv_case(_window(2, group=group), x, w, floats(outputs))


def _deconv_case(
    attrs: DeconvolutionAttrs, *inputs: AnyArray, constant: Collection[int] = WEIGHTS
) -> Case:
    return op_case("Deconvolution", attrs, inputs, constant=constant, rtol=1e-4, atol=1e-4)


# Strides, dilations, kernel, pads, output padding.
_PHASES: tuple[tuple[Ints, Ints, Ints, Ints, Ints], ...] = (
    ((1, 1), (1, 1), (3, 3), (1, 1, 1, 1), (0, 0)),
    ((2, 2), (1, 1), (3, 3), (1, 1, 1, 1), (1, 1)),
    ((2, 2), (1, 1), (4, 4), (1, 1, 1, 1), (0, 0)),
    ((3, 2), (1, 2), (4, 2), (0, 1, 2, 0), (1, 0)),
    ((2, 4), (2, 3), (3, 5), (1, 0, 0, 1), (0, 1)),
    ((3, 3), (1, 1), (2, 2), (0, 0, 0, 0), (0, 0)),
    ((4, 4), (2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
)


@op_cases
def deconvolution_windows() -> Iterator[Case]:
    """Strides, dilations and pads that result in phases of every kind; one to three axes."""
    for (strides, dilations, kernel, pads, extra), group in product(_PHASES, (1, 2, 3)):
        attrs = _transposed(
            2, strides, dilations, pads, extra, group=group, activation=Activation("SIGMOID")
        )
        w = floats(6, 12 // group, *kernel, seed=1)
        yield _deconv_case(attrs, floats(2, 6, 7, 9), w, floats(12, seed=2))
    yield _deconv_case(_transposed(1, (3,)), floats(2, 5, 17), floats(5, 6, 4, seed=1))
    volume, w = floats(2, 5, 4, 5, 6), floats(5, 6, 2, 3, 2, seed=1)
    yield _deconv_case(_transposed(3, (2, 1, 2)), volume, w)


@op_cases
def deconvolution_options() -> Iterator[Case]:
    """Computed weights, sizes that are asked for, automatic pads, nothing."""
    for group, channels, outputs in ((1, 7, 11), (5, 5, 5), (3, 6, 9)):
        w = floats(channels, outputs // group, 3, 2, seed=1)
        attrs = _transposed(2, (2, 3), pads=(1, 0, 0, 1), group=group)
        yield _deconv_case(attrs, floats(2, channels, 7, 9), w, floats(outputs), constant=())
    attrs = _transposed(2, (2, 2), output_shape=(20, 23))
    yield _deconv_case(attrs, floats(2, 5, 9, 11), floats(5, 6, 3, 3, seed=1))
    for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        attrs = _transposed(2, (2, 3), auto_pad=auto_pad)
        yield _deconv_case(attrs, floats(1, 5, 4, 5), floats(5, 3, 4, 4, seed=1))
    yield _deconv_case(_transposed(), floats(0, 5, 4, 5), floats(5, 3, 2, 2))
