"""QLinear operators of ONNX: quantised products and convolutions."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.conv import convolution_attrs
from vkmnn.converter.onnx.quantized.coded import Coded, read_codes, unit_of, write_codes
from vkmnn.converter.onnx.quantized.integer_products import shifted
from vkmnn.converter.onnx.quantized.quantize import along, binary, cast, dequantized, quantize
from vkmnn.converter.onnx.quantized.quantized_conv import convolve_codes, filters_of
from vkmnn.converter.onnx.quantized.quantized_matmul import (
    Product,
    Right,
    coded_right,
    fixed_right,
    multiply_codes,
)
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.quantization import Quantization, QuantizedConstant
from vkmnn.ir import DType
from vkmnn.ir.ops import MatMulAttrs

_F32 = DType.FLOAT32


def multiply_quantized(
    node: NodeContext, product: Product, made: tuple[str, str], alpha: float = 1.0
) -> bool:
    """Add a quantised product if its parameters are constant; return whether it was added.

    Args:
        node: has a, its scale and zero point, then those of b, as its first six inputs.
        product: a, b and their orientation; the bias in int32.
        made: scale and zero point of the result.
        alpha: factor of the product.
    """
    a, a_scale, a_zero, b, b_scale, b_zero = node.inputs[:6]
    taken = unit_of(node, a_scale, a_zero, node.dtype(a))
    kind = node.dtype(made[1]) if made[1] else node.dtype(a)
    unit = unit_of(node, *made, kind)
    bias = node.const_value(product.bias) if product.bias else None
    if taken is None or unit is None or node.const_value(a) is not None or alpha <= 0:
        return False
    columns = node.info(b)
    if product.bias and (bias is None or columns is None or columns.shape is None):
        return False
    if bias is not None and columns is not None and columns.shape is not None:
        width = columns.shape[0 if product.transpose_b else -1]
        if bias.size != width or bias.shape not in ((width,), (1, width)):
            return False
        bias = bias.reshape(-1)
    codes = read_codes(node, a, taken)
    right = _right_of(node, product, codes, (b_scale, b_zero))
    if right is None:
        return False
    scale, bounds = np.float32(taken.scale * np.float32(alpha)), unit.bounds
    y = multiply_codes(node, codes, scale, right, bias, product, unit, bounds)
    if y is not None:
        write_codes(node, y, unit, bounds)
    return y is not None


def _right_of(
    node: NodeContext, product: Product, a: Coded, names: tuple[str, str]
) -> Right | None:
    """Return b as quantised values with constant scales and zero points."""
    b, transposed = product.b, product.transpose_b
    matrix, scales = node.const_value(b), node.const_value(names[0])
    zeros = node.const_value(names[1]) if names[1] else None
    if matrix is not None:
        if scales is None or scales.dtype != np.float32 or (names[1] and zeros is None):
            return None
        by = Quantization.of(scales, zeros, 0 if transposed else 1)
        found = QuantizedConstant(matrix, by)
        return fixed_right(node, found, a, transposed=transposed)
    unit = unit_of(node, *names, node.dtype(b))
    if unit is None:
        return None
    return coded_right(node, read_codes(node, b, unit), unit.scale, a, product)


@converter("QLinearMatMul", since=10)
def _qlinear_matmul(node: NodeContext) -> None:
    """Multiply quantised values and requantise; a has scales per row, b per column."""
    a, _, _, b, _, _, y_scale, y_zero = node.inputs
    if multiply_quantized(node, Product(a, b), (y_scale, y_zero)):
        return
    integers = all(node.dtype(name).is_integer for name in (a, b))
    product = (_scaled_sums if integers else _product_of_values)(node)
    steps = binary(node, "DIV", product, along(node, y_scale, a, -2, _F32))
    quantize(node, steps, along(node, y_zero, a, -2, _F32), node.dtype(y_zero))


def _scaled_sums(node: NodeContext) -> str:
    """Return a · b, summed in integers: a session that stores floats in 16 bits rounds them."""
    a, a_scale, a_zero, b, b_scale, b_zero = node.inputs[:6]
    operands = [shifted(node, a, a_zero, -2), shifted(node, b, b_zero, -1)]
    sums = cast(node, node.emit("MatMul", operands, MatMulAttrs()), _F32)
    rows, columns = along(node, a_scale, a, -2, _F32), along(node, b_scale, b, -1, _F32)
    return binary(node, "MUL", sums, binary(node, "MUL", rows, columns))


def _product_of_values(node: NodeContext) -> str:
    """Return a · b, both dequantised: their values may be floats."""
    a, a_scale, a_zero, b, b_scale, b_zero = node.inputs[:6]
    left = dequantized(node, a, along(node, a_scale, a, -2, _F32), along(node, a_zero, a, -2, _F32))
    right = dequantized(
        node, b, along(node, b_scale, b, -1, _F32), along(node, b_zero, b, -1, _F32)
    )
    return node.emit("MatMul", [left, right], MatMulAttrs())


@converter("QLinearConv", since=10)
def _qlinear_conv(node: NodeContext) -> None:
    """Convolve dequantized operands in float32 and quantize; w may have a scale by channel."""
    if _convolve_codes(node):
        return
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    operands = [
        dequantized(node, x, x_scale, cast(node, x_zero, _F32)),
        dequantized(node, w, along(node, w_scale, w, 0, _F32), along(node, w_zero, w, 0, _F32)),
    ]
    if node.input(8):  # int32, in units of the product of both scales
        unit = binary(node, "MUL", x_scale, w_scale)
        operands.append(binary(node, "MUL", cast(node, node.input(8), _F32), unit))
    product = node.emit("Convolution", operands, convolution_attrs(node, w))
    steps = binary(node, "DIV", product, y_scale)
    quantize(node, steps, cast(node, y_zero, _F32), node.dtype(y_zero))


def _convolve_codes(node: NodeContext) -> bool:
    """Add a QLinearConv as one quantised convolution if its parameters are constant."""
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
    filters = filters_of(QuantizedConstant(weights, Quantization.of(scales, zeros)), bias)
    if filters is None:
        return False
    codes, bounds = read_codes(node, x, taken), made.bounds
    window = convolution_attrs(node, w)
    y = convolve_codes(node, codes, taken.scale, filters, window, made, bounds)
    if y is not None:
        write_codes(node, y, made, bounds)
    return y is not None
