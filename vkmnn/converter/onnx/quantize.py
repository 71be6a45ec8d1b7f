"""Linear quantization, written out in floating point and 32-bit integers."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.converter.onnx.coded import (
    Fixed,
    Unit,
    behind_clamps,
    carried_in,
    clip_codes,
    is_finite,
    note_decoded,
    note_fixed,
    read_codes,
    unit_of,
    write_codes,
)
from vkmnn.converter.onnx.conv import convolution_attrs
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized_conv import convolve_codes, filters_of, requantized_conv
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.onnx.types import DTYPES, type_name
from vkmnn.converter.onnx.weights import note_dequantized
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    MatMulAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_F32 = DType.FLOAT32
_EXACT = 1 << 24
"""Integers up to this size are exact in float32."""
_LARGEST_PRODUCT = 255 * 255  # of bytes less their zero points


def _cast(node: NodeContext, name: str, to: DType) -> str:
    """Cast a tensor of the model unless it has the type already."""
    return name if node.dtype(name) == to else node.emit("Cast", [name], CastAttrs(to))


def _binary(node: NodeContext, kind: str, a: str, b: str) -> str:
    return node.emit("BinaryOp", [a, b], BinaryAttrs(kind))


def _factors(node: NodeContext, x: str, name: str, to: DType) -> str:
    """Cast scales or zero points and make them broadcast to x.

    There is one for the whole of x, one for each index of the axis, or one for each block of
    `block_size` indices.
    """
    factors = _cast(node, name, to)
    shape = node.shape(name)
    if not shape or shape == (1,):
        return factors
    rank = node.rank(x)
    axis = node.axis("axis", 1, rank)
    block = node.int("block_size", 0)
    if not block:
        return _reshape_to_axis(node, factors, rank, axis)
    extent = node.emit("Shape", [x], ShapeAttrs(axis, axis + 1))
    extent = node.emit("Squeeze", [extent, node.ints_constant([0])])
    zero, one = node.constant(np.int64(0)), node.constant(np.int64(1))
    indices = node.emit("Range", [zero, extent, one])
    blocks = _binary(node, "DIV", indices, node.constant(np.int64(block)))
    return node.emit("Gather", [factors, blocks], AxisAttrs(axis))


def _reshape_to_axis(node: NodeContext, vector: str, rank: int, axis: int) -> str:
    """Return the vector with as many trailing axes of size 1 as make it lie along `axis`."""
    if axis == rank - 1:
        return vector
    shape = node.ints_constant([-1, *(1,) * (rank - axis - 1)])
    return node.emit("Reshape", [vector, shape], ReshapeAttrs())


def _along(node: NodeContext, name: str, x: str, axis: int, to: DType) -> str:
    """Cast a scalar or a vector along `axis` of x and make it broadcast to x.

    A tensor of x's own rank broadcasts already.
    """
    cast = _cast(node, name, to)
    if len(node.shape(name)) != 1 or node.shape(name) == (1,):
        return cast
    rank = node.rank(x)
    return _reshape_to_axis(node, cast, rank, axis % rank)


def _wanted_dtype(node: NodeContext, attribute: str, default: DType) -> DType:
    code = node.int(attribute, 0)
    if not code:
        return default
    dtype = DTYPES.get(code)
    if dtype is None:
        raise node.unsupported(f"{attribute} {type_name(code)} is not supported")
    return dtype


def _dequantized(node: NodeContext, x: str, scale: str, zero: str) -> str:
    """Return (x − zero) · scale in float32; scale and zero are float32 and broadcast to x."""
    wide = _cast(node, x, _F32)
    if zero:
        wide = _binary(node, "SUB", wide, zero)
    return _binary(node, "MUL", wide, scale)


def _quantize(node: NodeContext, steps: str, zero: str, to: DType) -> None:
    """Write saturate(round(steps) + zero), all of it float32 until the end.

    NaN becomes the lower limit, as in onnxruntime: calibrated transformers have softmax rows of
    nothing but -inf, and go on with what the runtime made of them.
    """
    if to.is_narrow and to.is_float:
        if zero and to is DType.FLOAT4E2M1:
            steps = _binary(node, "ADD", steps, zero)
        node.finish("Cast", [steps], CastAttrs(to, node.bool("saturate", True)))
        return
    if not to.is_integer:
        raise node.unsupported(f"quantizing to {to.value} is not supported")
    rounded = node.emit("UnaryOp", [steps], UnaryAttrs("ROUND"))
    if zero:
        rounded = _binary(node, "ADD", rounded, zero)
    node.finish("Cast", [_between(node, rounded, *to.limits)], CastAttrs(to))


@converter("QuantizeLinear", since=10)
@converter("QuantizeLinear", domain=_MICROSOFT)
def _quantize_linear(node: NodeContext) -> None:
    x, scale, zero = node.input(0), node.input(1), node.input(2)
    to = node.dtype(zero) if zero else _wanted_dtype(node, "output_dtype", DType.UINT8)
    unit = unit_of(node, scale, zero, to)
    if unit and node.dtype(x) is _F32 and _wanted_dtype(node, "precision", _F32) is _F32:
        _quantize_to_codes(node, x, scale, unit)
        return
    # The division has its own precision; what follows is exact in float32 up to 16 bits.
    precision = _wanted_dtype(node, "precision", node.dtype(scale))
    steps = _binary(node, "DIV", _cast(node, x, precision), _factors(node, x, scale, precision))
    if precision is not _F32:
        steps = node.emit("Cast", [steps], CastAttrs(_F32))
    _quantize(node, steps, _factors(node, x, zero, _F32) if zero else "", to)


def _quantize_to_codes(node: NodeContext, x: str, scale: str, unit: Unit) -> None:
    """Write codes: those of an operator on codes, where one can make them, else those of floats."""
    found = behind_clamps(node, x)
    bounds = found.bounds(unit)
    op = node.maker(found.tensor)
    made = carried_in(node, found.tensor, unit.scale)
    if made is not None:
        tensor = clip_codes(node, made.tensor, *bounds, (made.low, made.high))
        write_codes(node, tensor, unit, bounds)
        return
    if op is not None and op.type == "Convolution":
        codes = requantized_conv(node, op, unit, bounds)
        if codes is not None:
            write_codes(node, codes, unit, bounds)
            return
    if is_finite(node, found.tensor):
        rounded = _rounded(node, found.tensor, scale)
        write_codes(node, clip_codes(node, rounded, *bounds), unit, bounds)
        return
    low, high = unit.bounds
    write_codes(node, _between(node, _rounded(node, x, scale), low, high), unit, (low, high))


def _rounded(node: NodeContext, x: str, scale: str) -> str:
    single = node.constant(np.float32(node.const_value(scale)).reshape(()))
    return node.emit("UnaryOp", [_binary(node, "DIV", x, single)], UnaryAttrs("ROUND"))


def _between(node: NodeContext, x: str, lowest: float, highest: float) -> str:
    """Return x between limits; NaN becomes the lower one."""
    low = node.constant(lowest, _F32)
    # A comparison that NaN fails, in steps that are fused with what stands before them.
    above = _binary(node, "GREATER", x, low)
    raised = node.emit("Select", [above, x, low])
    return _binary(node, "MIN", raised, node.constant(highest, _F32))


@converter("DynamicQuantizeLinear", since=11)
def _dynamic_quantize_linear(node: NodeContext) -> None:
    """ONNX's formula; where all is zero, or nothing is there, onnxruntime's scale of 1."""
    x, zero, one = node.input(0), node.constant(0, _F32), node.constant(1, _F32)
    ends = []
    for extreme in ("MIN", "MAX"):
        found = node.emit("Reduction", [x], ReductionAttrs(extreme, keepdims=False))
        ends.append(_binary(node, extreme, found, zero))
    low, high = ends
    scale = _binary(node, "DIV", _binary(node, "SUB", high, low), node.constant(255, _F32))
    flat = _binary(node, "EQUAL", scale, zero)
    scale = node.emit("Select", [flat, one, scale])
    steps = _binary(node, "DIV", _binary(node, "SUB", zero, low), scale)
    steps = node.emit("UnaryOp", [steps], UnaryAttrs("CLIP", 0.0, 255.0))
    point = node.emit("UnaryOp", [steps], UnaryAttrs("ROUND"))
    _quantize(node, _binary(node, "DIV", x, scale), point, DType.UINT8)
    if node.output(1):
        node.emit("Identity", [scale], None, [node.output(1)])
    if node.output(2):
        node.emit("Cast", [point], CastAttrs(DType.UINT8), [node.output(2)])


@converter("DequantizeLinear", since=10)
@converter("DequantizeLinear", domain=_MICROSOFT)
def _dequantize_linear(node: NodeContext) -> None:
    x, scale, zero = node.input(0), node.input(1), node.input(2)
    to = _wanted_dtype(node, "output_dtype", node.dtype(scale))
    unit = unit_of(node, scale, zero, node.dtype(x))
    if unit and to is _F32 and node.const_value(x) is None:
        codes = read_codes(node, x, unit)
        node.finish("BinaryOp", [codes.tensor, node.constant(unit.scale)], BinaryAttrs("MUL"))
        note_decoded(node, codes, unit.scale)
        return
    offset = _factors(node, x, zero, _F32) if zero else ""
    result = _dequantized(node, x, _factors(node, x, scale, _F32), offset)
    node.finish("Cast", [result], CastAttrs(to))
    rank = node.known_rank(x)
    if rank is not None and not node.int("block_size", 0):
        note_fixed(node, node.axis("axis", 1, rank) if rank > 1 else 0)
    if rank == 2:
        note_dequantized(node, node.axis("axis", 1, 2), node.int("block_size", 0), to)


@converter("QLinearMatMul", since=10)
def _qlinear_matmul(node: NodeContext) -> None:
    """Multiply dequantized operands in float32 and quantize; a has scales by row, b by column."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    left = _dequantized(
        node, a, _along(node, a_scale, a, -2, _F32), _along(node, a_zero, a, -2, _F32)
    )
    right = _dequantized(
        node, b, _along(node, b_scale, b, -1, _F32), _along(node, b_zero, b, -1, _F32)
    )
    product = node.emit("MatMul", [left, right], MatMulAttrs())
    steps = _binary(node, "DIV", product, _along(node, y_scale, a, -2, _F32))
    _quantize(node, steps, _along(node, y_zero, a, -2, _F32), node.dtype(y_zero))


@converter("QLinearConv", since=10)
def _qlinear_conv(node: NodeContext) -> None:
    """Convolve dequantized operands in float32 and quantize; w may have a scale by channel."""
    if _convolve_codes(node):
        return
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    operands = [
        _dequantized(node, x, x_scale, _cast(node, x_zero, _F32)),
        _dequantized(node, w, _along(node, w_scale, w, 0, _F32), _along(node, w_zero, w, 0, _F32)),
    ]
    if node.input(8):  # int32, in units of the product of both scales
        unit = _binary(node, "MUL", x_scale, w_scale)
        operands.append(_binary(node, "MUL", _cast(node, node.input(8), _F32), unit))
    product = node.emit("Convolution", operands, convolution_attrs(node, w))
    steps = _binary(node, "DIV", product, y_scale)
    _quantize(node, steps, _cast(node, y_zero, _F32), node.dtype(y_zero))


def _convolve_codes(node: NodeContext) -> bool:
    """Add a QLinearConv as one convolution of codes, where its parameters are constant."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    taken = unit_of(node, x_scale, x_zero, node.dtype(x))
    made = unit_of(node, y_scale, y_zero, node.dtype(y_zero))
    values = [node.const_value(name) for name in (w, w_scale, w_zero)]
    bias = node.const_value(node.input(8)) if node.input(8) else None
    if taken is None or made is None or (node.input(8) and bias is None):
        return False
    weights, scales, zeros = values
    if weights is None or scales is None or zeros is None or scales.dtype != np.float32:
        return False
    filters = filters_of(Fixed(weights, scales, zeros, 0), bias)
    if filters is None:
        return False
    codes, bounds = read_codes(node, x, taken), made.bounds
    window = convolution_attrs(node, w)
    y = convolve_codes(node, codes, taken.scale, filters, window, made, bounds)
    if y is not None:
        write_codes(node, y, made, bounds)
    return y is not None


def _shifted(node: NodeContext, x: str, zero: str, axis: int) -> str:
    """Return x − zero in int32; zero may be absent."""
    wide = _cast(node, x, DType.INT32)
    if not zero:
        return wide
    return _binary(node, "SUB", wide, _along(node, zero, x, axis, DType.INT32))


@converter("MatMulInteger", since=10)
def _matmul_integer(node: NodeContext) -> None:
    left = _shifted(node, node.input(0), node.input(2), -2)
    right = _shifted(node, node.input(1), node.input(3), -1)
    node.finish("MatMul", [left, right], MatMulAttrs())


@converter("ConvInteger", since=10)
def _conv_integer(node: NodeContext) -> None:
    x = _shifted(node, node.input(0), node.input(2), 1)
    w = _shifted(node, node.input(1), node.input(3), 0)
    attrs = convolution_attrs(node, node.input(1))
    shape = node.shape(node.input(1))
    terms = prod(dim if isinstance(dim, int) else _EXACT for dim in shape[1:])
    if terms * _LARGEST_PRODUCT > _EXACT:
        node.finish("Convolution", [x, w], attrs)
        return
    wide = [node.emit("Cast", [name], CastAttrs(_F32)) for name in (x, w)]
    sums = node.emit("Convolution", wide, attrs)
    node.finish("Cast", [sums], CastAttrs(DType.INT32))
