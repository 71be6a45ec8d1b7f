"""Integer products and convolutions on kernels for quantised values: exact 32-bit sums.

Floats multiply faster than 32-bit integers on most devices, and their sums are exact up to 24 bits.
If they may exceed that, the right operand is split in two. The sums are usually cast and multiplied
with scales next (dynamic quantization), so they are also kept as floats: rounded once, as by the
cast.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.conv import convolution_attrs
from vkmnn.converter.onnx.quantized.coded import Coded, carried, note_floats
from vkmnn.converter.onnx.quantized.quantize import (
    Dynamic,
    along,
    binary,
    cast,
    dynamic_of,
    whole_codes,
)
from vkmnn.converter.onnx.quantized.quantized_conv import (
    EXACT,
    filters_of,
    quantized_window,
    sum_windows,
)
from vkmnn.converter.onnx.quantized.quantized_matmul import Product, fixed_right, sum_products
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.quantization import Quantization, QuantizedConstant
from vkmnn.ir import Array, DType
from vkmnn.ir.codes import HALF, in_parts
from vkmnn.ir.ops import BinaryAttrs, CastAttrs, ConvolutionAttrs, MatMulAttrs, UnaryAttrs

_F32 = DType.FLOAT32
_SPAN = 255  # of bytes, from the smallest to the largest


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of products: as float32, rounded once, and as integers unless exact."""

    floats: str
    parts: tuple[str, ...] = ()


def shifted(node: NodeContext, x: str, zero: str, axis: int) -> str:
    """Return x − zero in int32; zero may be absent."""
    wide = cast(node, x, DType.INT32)
    if not zero:
        return wide
    return binary(node, "SUB", wide, along(node, zero, x, axis, DType.INT32))


def dynamic_codes(node: NodeContext, found: Dynamic) -> Coded:
    """Return q - zero_point, by the zero point of the run."""
    codes = whole_codes(node, found.steps, found.point, DType.UINT8)
    return _coded(binary(node, "SUB", codes, found.point), point=found.point)


def _coded(tensor: str, low: float = -_SPAN, high: float = _SPAN, point: str = "") -> Coded:
    """Return bytes minus one zero point, with the sign range that bounds their sums.

    Whatever the zero point, no sum of products exceeds that of quantised values of one sign.
    """
    return Coded(tensor, 0, 0, _SPAN, (low, high), point)


def read_integers(node: NodeContext, x: str, zero: str, axis: int) -> Coded:
    """Return bytes of the model as float32, minus their zero point, which may be absent."""

    def leaf(name: str) -> Coded | None:
        made = dynamic_of(node, name, zero)
        return None if made is None else dynamic_codes(node, made)

    found = carried(node, x, leaf)
    if found is not None:
        return found
    wide = cast(node, x, _F32)
    low, high = map(float, node.dtype(x).limits)
    if not zero:
        return _coded(wide, low, high)
    points, known = along(node, zero, x, axis, _F32), node.const_value(zero)
    codes = binary(node, "SUB", wide, points)
    if known is not None and known.size:
        return _coded(codes, low - float(known.max()), high - float(known.min()))
    single = node.shape(zero) in ((), (1,)) and low == 0
    return _coded(codes, point=points if single else "")


def _finish(node: NodeContext, sums: Sums) -> None:
    """Write output 0 in int32, and keep the floats for a cast."""
    note_floats(node, sums.floats)
    if not sums.parts:
        node.finish("Cast", [sums.floats], CastAttrs(DType.INT32))
        return
    high, low = (node.emit("Cast", [part], CastAttrs(DType.INT32)) for part in sums.parts)
    node.finish("BinaryOp", [high, low], BinaryAttrs("ADD"))


# --- products ------------------------------------------------------------------------------------


def _unscaled(zero: Array | None, axis: int) -> Quantization:
    return Quantization.of(np.ones(1, np.float32), zero, axis)


def product_of_integers(node: NodeContext, a: Coded, b: str, b_zero: str) -> Sums | None:
    """Add a product with a constant matrix; None if sums would not be exact."""
    matrix = node.const_value(b)
    zero = node.const_value(b_zero) if b_zero else None
    if matrix is None or (b_zero and zero is None) or (node.known_rank(a.tensor) or 0) < 2:
        return None
    known = QuantizedConstant(matrix, _unscaled(zero, 1))
    right = fixed_right(node, known, a, transposed=False)
    if right is None:
        return None
    product = Product(a.tensor, right.tensor)
    if right.largest <= EXACT:
        return Sums(sum_products(node, a, right.tensor, product))
    whole = node.const_value(right.tensor)
    parts = in_parts(whole) if whole is not None else ()
    if not parts or max(int(a.reach(part, 0).max()) for part in parts) > EXACT:
        return None
    high, low = (node.constant(part) for part in parts)
    first = sum_products(node, a, high, product, HALF)
    rest = sum_products(node, a, low, product)
    return Sums(sum_products(node, a, low, product, first=first), (first, rest))


def floats_of_product(node: NodeContext, a: Coded, b: str, b_zero: str) -> str:
    """Return a product as floats, by 32-bit integers if nothing else is exact."""
    found = product_of_integers(node, a, b, b_zero)
    if found is not None:
        return found.floats
    left = node.emit("Cast", [a.tensor], CastAttrs(DType.INT32))
    sums = node.emit("MatMul", [left, shifted(node, b, b_zero, -1)], MatMulAttrs())
    return node.emit("Cast", [sums], CastAttrs(_F32))


@converter("MatMulInteger", since=10)
def _matmul_integer(node: NodeContext) -> None:
    a, b, a_zero, b_zero = (node.input(index) for index in range(4))
    codes = read_integers(node, a, a_zero, -2)
    sums = product_of_integers(node, codes, b, b_zero)
    if sums is not None:
        _finish(node, sums)
        return
    operands = [shifted(node, a, a_zero, -2), shifted(node, b, b_zero, -1)]
    node.finish("MatMul", operands, MatMulAttrs())


# --- convolutions --------------------------------------------------------------------------------


@converter("ConvInteger", since=10)
def _conv_integer(node: NodeContext) -> None:
    x, w, x_zero, w_zero = (node.input(index) for index in range(4))
    window = convolution_attrs(node, w)
    sums = _convolved(node, read_integers(node, x, x_zero, 1), w, w_zero, window)
    if sums is not None:
        _finish(node, sums)
        return
    operands = [shifted(node, x, x_zero, 1), shifted(node, w, w_zero, 0)]
    node.finish("Convolution", operands, window)


def _convolved(
    node: NodeContext, x: Coded, w: str, w_zero: str, window: ConvolutionAttrs
) -> Sums | None:
    values = node.const_value(w)
    zero = node.const_value(w_zero) if w_zero else None
    if values is None or (w_zero and zero is None):
        return _by_computed(node, x, w, w_zero, window)
    filters = filters_of(QuantizedConstant(values, _unscaled(zero, 0)), None)
    if filters is None:
        return None
    if filters.largest_sum(x) <= EXACT:
        return Sums(_sums(node, x, node.constant(filters.values), window))
    parts = [replace(filters, values=part) for part in in_parts(filters.values)]
    if max(part.largest_sum(x) for part in parts) > EXACT:
        return None
    high, low = (node.constant(part.values) for part in parts)
    return _in_two(node, x, high, low, window)


def _by_computed(
    node: NodeContext, x: Coded, w: str, w_zero: str, window: ConvolutionAttrs
) -> Sums | None:
    """Convolve with computed filters that may hold any bytes."""
    shape = node.shape(w)
    terms = prod(size if isinstance(size, int) else EXACT for size in shape[1:])
    if not isinstance(shape[0], int) or terms * _SPAN * HALF > EXACT:
        return None
    weights = cast(node, w, _F32)
    if w_zero:
        weights = binary(node, "SUB", weights, along(node, w_zero, w, 0, _F32))
    if terms * _SPAN * _SPAN <= EXACT:
        return Sums(_sums(node, x, weights, window))
    step = node.constant(HALF, _F32)
    high = node.emit("UnaryOp", [binary(node, "DIV", weights, step)], UnaryAttrs("ROUND"))
    low = binary(node, "SUB", weights, binary(node, "MUL", high, step))
    return _in_two(node, x, high, low, window)


def _in_two(node: NodeContext, x: Coded, high: str, low: str, window: ConvolutionAttrs) -> Sums:
    first = _sums(node, x, high, window, HALF)
    rest = _sums(node, x, low, window)
    return Sums(_sums(node, x, low, window, first=first), (first, rest))


def _sums(
    node: NodeContext,
    x: Coded,
    weights: str,
    window: ConvolutionAttrs,
    factor: float = 1.0,
    first: str = "",
) -> str:
    outputs = node.shape(weights)[0]
    nothing = np.zeros(outputs if isinstance(outputs, int) else 0, np.int32)
    attrs = quantized_window(window)
    return sum_windows(node, x.tensor, weights, nothing, attrs, factor, first=first)
