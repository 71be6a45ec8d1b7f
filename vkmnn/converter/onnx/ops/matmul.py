"""Matrix products."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.quantized_matmul import Product, note_product
from vkmnn.converter.onnx.quantized.weights import codes_of
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.op_type import OpAttrs
from vkmnn.ir.ops import BinaryAttrs, EinsumAttrs, MatMulAttrs


@converter("MatMul")
def _matmul(node: NodeContext) -> None:
    note_product(node, Product(node.input(0), node.input(1)))
    codes = codes_of(node, node.input(1), transposed=False)
    if codes is not None and node.rank(node.input(0)) >= 1:
        node.finish("MatMulNBits", codes.inputs(node.input(0)), codes.attrs)
        return
    node.finish("MatMul", node.inputs, MatMulAttrs())


@converter("Einsum", since=12)
def _einsum(node: NodeContext) -> None:
    node.finish("Einsum", node.inputs, EinsumAttrs(node.string("equation")))


LastOp = tuple[str, list[str], OpAttrs]
"""Type, inputs and attributes of a result's op."""


@converter("Gemm", since=7)
def _gemm(node: NodeContext) -> None:
    if node.float("alpha", 1.0) == node.float("beta", 1.0) == 1.0:
        a, b, c = node.input(0), node.input(1), node.input(2)
        note_product(node, Product(a, b, c, node.bool("transA"), node.bool("transB")))
    node.finish(*gemm(node))


def gemm(node: NodeContext) -> LastOp:
    """Add Y = alpha · A' · B' + beta · C but for the last op, and return that.

    A constant C of one row becomes the product's bias.
    """
    alpha = node.float("alpha", 1.0)
    beta = node.float("beta", 1.0)
    attrs = MatMulAttrs(node.bool("transA"), node.bool("transB"), alpha)
    a, b, c = node.input(0), node.input(1), node.input(2)
    if not c or beta == 0.0:
        return _product(node, a, b, attrs)
    value = node.const_value(c)
    if value is not None and beta != 1.0:
        value = np.asarray(value * value.dtype.type(beta))
        c = node.constant(value)
    if value is not None and _is_row(value.shape, _columns(node, b, attrs.transpose_b)):
        return _product(node, a, b, attrs, node.constant(value.reshape(-1)))
    product = node.emit("MatMul", [a, b], attrs)
    if value is None and beta != 1.0:
        factor = node.constant(beta, node.dtype(c))
        c = node.emit("BinaryOp", [c, factor], BinaryAttrs("MUL"))
    return "BinaryOp", [product, c], BinaryAttrs("ADD")


def _product(node: NodeContext, a: str, b: str, attrs: MatMulAttrs, bias: str = "") -> LastOp:
    """Return the product, with packed weights if the matrix is quantised."""
    plain = not attrs.transpose_a and attrs.alpha == 1.0
    codes = codes_of(node, b, transposed=attrs.transpose_b) if plain else None
    if codes is not None:
        return "MatMulNBits", codes.inputs(a, bias), codes.attrs
    return "MatMul", [a, b, bias], attrs


def _columns(node: NodeContext, b: str, transposed: bool) -> int | None:
    info = node.info(b)
    if info is None or info.shape is None or len(info.shape) != 2:
        return None
    columns = info.shape[0 if transposed else 1]
    return columns if isinstance(columns, int) else None


def _is_row(shape: tuple[int, ...], columns: int | None) -> bool:
    return columns is not None and shape in ((columns,), (1, columns))


@converter("Det", since=11)
def _det(node: NodeContext) -> None:
    node.finish("Det", node.inputs)
