"""Quantised products: exact sums, multiplied once and rounded."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.coded import Coded, Unit, carried_in, fixed, scale_of
from vkmnn.converter.onnx.quantized.quantized_conv import (
    EXACT,
    are_ordinary,
    bias_codes,
)
from vkmnn.converter.quantization import QuantizedConstant
from vkmnn.ir import Array
from vkmnn.ir.codes import HALF, in_parts
from vkmnn.ir.ops import QuantizedMatMulAttrs


@dataclass(frozen=True, slots=True)
class Product:
    """Operands and bias of a MatMul, or a Gemm without factors; tensors of the model."""

    a: str
    b: str
    bias: str = ""
    transpose_a: bool = False
    transpose_b: bool = False


@dataclass(frozen=True, slots=True)
class Right:
    """The quantised right operand, its scales, and a bound of its sums.

    `taken`: bounds of computed quantised values.
    """

    tensor: str
    scale: Array
    largest: int
    taken: tuple[float, float] = (-inf, inf)


def note_product(node: NodeContext, product: Product) -> None:
    """Record the product that output 0 is the result of."""
    node.note(f"{node.output(0)}:product", product)


def requantized_product(
    node: NodeContext, tensor: str, unit: Unit, bounds: tuple[int, int]
) -> str | None:
    """Return the requantised result of a product of dequantised tensors; None if impossible."""
    found = node.noted(f"{tensor}:product")
    if not isinstance(found, Product):
        return None
    scale = scale_of(node, found.a)
    a = None if scale is None else carried_in(node, found.a, scale)
    right = None if a is None else _right(node, found, a)
    if a is None or right is None or scale is None:
        return None
    added = None
    if found.bias:
        added = bias_codes(node, found.bias, scale * right.scale)
        if added is None:
            return None
    return multiply_codes(node, a, scale, right, added, found, unit, bounds)


def multiply_codes(
    node: NodeContext,
    a: Coded,
    scale: np.float32,
    right: Right,
    bias: Array | None,
    product: Product,
    unit: Unit,
    bounds: tuple[int, int],
) -> str | None:
    """Add a quantised product and return its result; None if sums may be inexact."""
    if (node.known_rank(a.tensor) or 0) < 2:
        return None
    added = 0 if bias is None else int(np.ceil(np.abs(bias.astype(np.float64))).max(initial=0))
    first = ""
    if right.largest + added > EXACT:
        value = node.const_value(right.tensor)
        if value is None:
            return None
        axis = 1 if product.transpose_b else 0
        parts = in_parts(value)
        sums = (a.reach(part, axis) for part in parts)
        if max(int(part.max(initial=0)) for part in sums) + added > EXACT:
            return None
        high, low = (node.constant(_narrow(part)) for part in parts)
        first = sum_products(node, a, high, product, HALF)
        right = replace(right, tensor=low)
    factor = np.asarray(scale * right.scale / unit.scale, np.float32)
    return sum_products(
        *(node, a, right.tensor, product, factor),
        bias=bias,
        first=first,
        bounds=bounds,
        taken_b=right.taken,
    )


def sum_products(
    node: NodeContext,
    a: Coded,
    b: str,
    product: Product,
    factor: Array | float = 1.0,
    *,
    bias: Array | None = None,
    first: str = "",
    bounds: tuple[float, float] = (-inf, inf),
    taken_b: tuple[float, float] = (-inf, inf),
) -> str:
    """Add a quantised product.

    Args:
        node: the node that it is a part of.
        a: whole numbers in float32.
        b: the same, or bytes where they are constant.
        product: which of the two are transposed.
        factor: factor of the sums, before they are rounded and clamped: one, or [N].
        bias: [N], in units of the sums.
        first: a part of the sums; may be absent.
        bounds: bounds of the results.
        taken_b: bounds of b, if it is computed.
    """
    attrs = QuantizedMatMulAttrs(
        product.transpose_a,
        product.transpose_b,
        float(bounds[0]),
        float(bounds[1]),
        taken=a.taken,
        taken_b=taken_b,
    )
    offset = "" if bias is None else node.constant(bias.astype(np.float32))
    factors = node.constant(np.asarray(factor, np.float32).reshape(-1))
    inputs = [a.tensor, b, offset, first, factors]
    return node.emit("QuantizedMatMul", [*inputs, "", "", a.point] if a.point else inputs, attrs)


def _right(node: NodeContext, product: Product, a: Coded) -> Right | None:
    constants = fixed(node, product.b)
    if constants is not None:
        return fixed_right(node, constants, a, transposed=product.transpose_b)
    scale = scale_of(node, product.b)
    b = None if scale is None else carried_in(node, product.b, scale)
    return None if b is None or scale is None else coded_right(node, b, scale, a, product)


def coded_right(
    node: NodeContext, b: Coded, scale: np.float32, a: Coded, product: Product
) -> Right | None:
    """Return a computed operand; None if the length of sums is unknown."""
    info = node.info(b.tensor)
    if info is None or info.shape is None or len(info.shape) < 2:
        return None
    depth = info.shape[-1 if product.transpose_b else -2]
    if not isinstance(depth, int):
        return None
    return Right(b.tensor, np.reshape(scale, 1), depth * a.largest * b.largest, b.taken)


def fixed_right(
    node: NodeContext, b: QuantizedConstant, a: Coded, *, transposed: bool
) -> Right | None:
    """Return a constant matrix of bytes less its zero points."""
    if b.values.dtype not in (np.int8, np.uint8) or b.values.ndim != 2 or 0 in b.values.shape:
        return None
    axis = 0 if transposed else 1
    columns = b.values.shape[axis]
    by_column = b.by.scale.shape == (columns,) and b.by.axis == axis
    zero = b.by.zero
    if not (b.by.scale.size == 1 or by_column) or zero.size not in (1, columns):
        return None
    if not are_ordinary(b.by.scale):
        return None
    offset = zero.reshape(-1, 1) if transposed else zero.reshape(1, -1)
    whole = b.values.astype(np.int32) - offset.astype(np.int32)
    sums = a.reach(whole, 1 - axis)
    tensor = node.constant(_narrow(whole))
    return Right(tensor, b.by.scale.reshape(-1), int(sums.max(initial=0)))


def _narrow(whole: Array) -> Array:
    """Return whole numbers in the narrowest type; a span of up to 255 fits bytes."""
    low, high = int(whole.min(initial=0)), int(whole.max(initial=0))
    if high - low > 255:
        return whole.astype(np.float32)
    return whole.astype(np.int8 if low >= -128 and high <= 127 else np.int16)
