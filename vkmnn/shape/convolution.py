"""Shapes of Convolution and Deconvolution."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import (
    ConvolutionAttrs,
    DeconvolutionAttrs,
    DynamicQuantizeConvolutionAttrs,
    QuantizedConvolutionAttrs,
)
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    check_shape,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, known_ints
from vkmnn.shape.symbolic.rules import shape_rule
from vkmnn.shape.windows import (
    Direct,
    conv_window,
    deconv_window,
    named_deconv_windows,
    named_windows,
)


def _operands(inputs: Infos, group: int) -> tuple[Shape, Shape]:
    x, w = shape_of(inputs, 0), shape_of(inputs, 1)
    if len(x) < 3 or len(w) != len(x):
        raise ShapeError(f"input {x} and weight {w} must have the same rank, at least 3")
    if group < 1:
        raise ShapeError(f"group is {group}, must be at least 1")
    return x, w


def _results(op: Op[Direct], inputs: Infos) -> Shape:
    attrs = op.attrs
    x, w = _operands(inputs, attrs.group)
    if x[1] != w[1] * attrs.group:
        raise ShapeError(
            f"the input has {x[1]} channels, weight {w} with group {attrs.group} "
            f"needs {w[1] * attrs.group}"
        )
    if w[0] % attrs.group:
        raise ShapeError(f"{w[0]} output channels do not divide into {attrs.group} groups")
    output = (x[0], w[0], *conv_window(attrs, x[2:], w[2:]).output)
    check_shape(inputs, 2, (w[0],), "bias")
    check_shape(inputs, 3, output, "residual")
    return output


@size_computer("Convolution")
def _convolution(op: Op[ConvolutionAttrs], inputs: Infos, values: Values) -> Outputs:
    output = _results(op, inputs)
    return [(same_dtype(inputs, 0, 1, 2, 3), output)]


@size_computer("QuantizedConvolution")
def _quantized(op: Op[QuantizedConvolutionAttrs], inputs: Infos, values: Values) -> Outputs:
    output = _results(op, inputs)
    check_shape(inputs, 4, (output[1],), "factor")
    return [(same_dtype(inputs, 0, 2, 3, 4), output)]


@size_computer("DynamicQuantizeConvolution")
def _dynamic(op: Op[DynamicQuantizeConvolutionAttrs], inputs: Infos, values: Values) -> Outputs:
    output = _results(op, inputs)
    return [(same_dtype(inputs, 0, 2, 3, 4, 5, 6), output)]


@shape_rule("Convolution")
@shape_rule("QuantizedConvolution")
@shape_rule("DynamicQuantizeConvolution")
def _named_convolution(op: Op[Direct], facts: Facts) -> list[Found]:
    attrs, x, w = op.attrs, facts.shape(op), facts.shape(op, 1)
    if x is None:
        return [(facts.dtype(op), None)]
    kernel = attrs.kernel or known_ints(w[2:] if w else ()) or ()
    channels = w[0] if w else None
    return [
        (facts.dtype(op), (x[0], channels, *named_windows(attrs, kernel, x[2:], facts.algebra)))
    ]


@size_computer("Deconvolution")
def _deconvolution(op: Op[DeconvolutionAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    x, w = _operands(inputs, attrs.group)
    if x[1] != w[0]:
        raise ShapeError(f"the input has {x[1]} channels, weight {w} needs {w[0]}")
    if w[0] % attrs.group:
        raise ShapeError(f"{w[0]} input channels do not divide into {attrs.group} groups")
    channels = w[1] * attrs.group
    check_shape(inputs, 2, (channels,), "bias")
    output = (x[0], channels, *deconv_window(attrs, x[2:], w[2:]).output)
    return [(same_dtype(inputs, 0, 1, 2), output)]


@shape_rule("Deconvolution")
def _named_deconvolution(op: Op[DeconvolutionAttrs], facts: Facts) -> list[Found]:
    attrs, x, w = op.attrs, facts.shape(op), facts.shape(op, 1)
    if x is None:
        return [(facts.dtype(op), None)]
    kernel = attrs.kernel or known_ints(w[2:] if w else ()) or ()
    channels = facts.algebra.multiply(w[1], attrs.group) if w else None
    spatial = named_deconv_windows(attrs, kernel, x[2:], facts.algebra)
    return [(facts.dtype(op), (x[0], channels, *spatial))]
