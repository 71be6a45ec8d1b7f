"""onnxruntime's quantised operators: quantised if possible, else via float32.

Inputs and formulas: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vkmnn.converter.onnx.contrib.attention import Given, attend_packed, thirds
from vkmnn.converter.onnx.contrib.common import Embedding, embed
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.conv import window
from vkmnn.converter.onnx.quantized.integer_products import (
    dynamic_codes,
    floats_of_product,
    read_integers,
)
from vkmnn.converter.onnx.quantized.qlinear import multiply_quantized
from vkmnn.converter.onnx.quantized.quantize import (
    along,
    binary,
    cast,
    decode,
    dequantized,
    dynamic,
    quantize_to,
)
from vkmnn.converter.onnx.quantized.quantized_matmul import Product
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    CastAttrs,
    MatMulAttrs,
    PoolingAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_F32 = DType.FLOAT32
_SOFTMAX_OF_ONE_AXIS = 13  # opset from which Softmax runs along one axis


def _decoded(node: NodeContext, first: int) -> str:
    """Return three inputs, a tensor, its scale and zero point, as floats."""
    return decode(node, node.input(first), node.input(first + 1), node.input(first + 2))


def _quantize(node: NodeContext, x: str, scale: int) -> None:
    """Write output 0 by the scale and zero point of two inputs; its type is the first input's."""
    zero = node.input(scale + 1)
    to = node.dtype(zero) if zero else node.dtype(node.input(0))
    quantize_to(node, x, node.input(scale), zero, to)


def _binary(kind: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        _quantize(node, binary(node, kind, _decoded(node, 0), _decoded(node, 3)), 6)

    return convert


converter("QLinearAdd", domain=_MICROSOFT)(_binary("ADD"))
converter("QLinearMul", domain=_MICROSOFT)(_binary("MUL"))


@converter("QLinearSigmoid", domain=_MICROSOFT)
def _sigmoid(node: NodeContext) -> None:
    _quantize(node, node.emit("UnaryOp", [_decoded(node, 0)], UnaryAttrs("SIGMOID")), 3)


@converter("QLinearLeakyRelu", domain=_MICROSOFT)
def _leaky_relu(node: NodeContext) -> None:
    attrs = UnaryAttrs("LEAKY_RELU", node.float("alpha", 0.01))
    _quantize(node, node.emit("UnaryOp", [_decoded(node, 0)], attrs), 3)


@converter("QLinearSoftmax", domain=_MICROSOFT)
def _softmax(node: NodeContext) -> None:
    """Softmax over the axes that the attribute `opset` implies."""
    attrs = SoftmaxAttrs(node.int("axis", -1))
    if node.int("opset", _SOFTMAX_OF_ONE_AXIS) < _SOFTMAX_OF_ONE_AXIS:
        attrs = replace(attrs, flatten=True)
    _quantize(node, node.emit("Softmax", [_decoded(node, 0)], attrs), 3)


@converter("QLinearConcat", domain=_MICROSOFT)
def _concat(node: NodeContext) -> None:
    parts = [_decoded(node, first) for first in range(2, len(node.inputs), 3)]
    joined = node.emit("Concat", parts, AxisAttrs(node.int("axis")))
    zero = node.input(1)
    quantize_to(node, joined, node.input(0), zero, node.dtype(zero))


@converter("QLinearAveragePool", domain=_MICROSOFT)
def _average_pool(node: NodeContext) -> None:
    if node.bool("channels_last"):
        raise node.unsupported("channels come last")
    w = window(node, node.ints("kernel_shape"))
    attrs = PoolingAttrs(
        *("AVERAGE", w.kernel, w.strides, w.dilations, w.pads, w.auto_pad),
        node.bool("ceil_mode"),
        count_include_pad=node.bool("count_include_pad"),
    )
    _quantize(node, node.emit("Pooling", [_decoded(node, 0)], attrs), 3)


@converter("QLinearGlobalAveragePool", domain=_MICROSOFT)
def _global_average_pool(node: NodeContext) -> None:
    if node.bool("channels_last"):
        raise node.unsupported("channels come last")
    attrs = PoolingAttrs("AVERAGE", is_global=True)
    _quantize(node, node.emit("Pooling", [_decoded(node, 0)], attrs), 3)


@converter("QLinearReduceMean", domain=_MICROSOFT)
def _reduce_mean(node: NodeContext) -> None:
    axes = [node.ints_constant(node.ints("axes"))] if node.has("axes") else []
    attrs = ReductionAttrs("MEAN", node.bool("keepdims", True))
    _quantize(node, node.emit("Reduction", [_decoded(node, 0), *axes], attrs), 3)


@converter("QLinearWhere", domain=_MICROSOFT)
def _where(node: NodeContext) -> None:
    chosen = node.emit("Select", [node.input(0), _decoded(node, 1), _decoded(node, 4)])
    zero = node.input(8)
    quantize_to(node, chosen, node.input(7), zero, node.dtype(zero))


@converter("QGemm", domain=_MICROSOFT)
def _gemm(node: NodeContext) -> None:
    """Y = alpha · A' · B' + C, C in units of alpha · a_scale · b_scale; floats without y_scale."""
    attrs = MatMulAttrs(node.bool("transA"), node.bool("transB"), node.float("alpha", 1.0))
    a, b, c = node.input(0), node.input(3), node.input(6)
    y_scale, y_zero = node.input(7), node.input(8)
    product = Product(a, b, c, attrs.transpose_a, attrs.transpose_b)
    if y_scale and multiply_quantized(node, product, (y_scale, y_zero), attrs.alpha):
        return
    axis = -2 if attrs.transpose_b else -1
    factors = [along(node, node.input(n), b, axis, _F32) if node.input(n) else "" for n in (4, 5)]
    sums = node.emit("MatMul", [_decoded(node, 0), dequantized(node, b, *factors)], attrs)
    if c:
        unit = binary(node, "MUL", node.input(1), node.input(4))
        unit = binary(node, "MUL", unit, node.constant(attrs.alpha, _F32))
        sums = binary(node, "ADD", sums, binary(node, "MUL", cast(node, c, _F32), unit))
    if not y_scale:
        node.finish("Identity", [sums])
        return
    quantize_to(node, sums, y_scale, y_zero, node.dtype(y_zero) if y_zero else node.dtype(a))


def _to_float(node: NodeContext, sums: str, scales: tuple[str, str], bias: str) -> None:
    """Write sums of products of integers, which are floats, times both scales, with a bias."""
    y = binary(node, "MUL", sums, binary(node, "MUL", *scales))
    if bias:
        y = binary(node, "ADD", y, bias)
    node.finish("Cast", [y], CastAttrs(_F32))


@converter("MatMulIntegerToFloat", domain=_MICROSOFT)
def _matmul_integer_to_float(node: NodeContext) -> None:
    codes = read_integers(node, node.input(0), node.input(4), -2)
    sums = floats_of_product(node, codes, node.input(1), node.input(5))
    _to_float(node, sums, (node.input(2), node.input(3)), node.input(6))


@converter("DynamicQuantizeMatMul", domain=_MICROSOFT)
def _dynamic_quantize_matmul(node: NodeContext) -> None:
    """DynamicQuantizeLinear of A, then the product of integers."""
    found = dynamic(node, node.input(0))
    sums = floats_of_product(node, dynamic_codes(node, found), node.input(1), node.input(3))
    _to_float(node, sums, (found.scale, node.input(2)), node.input(4))


@converter("QAttention", domain=_MICROSOFT)
def _attention(node: NodeContext) -> None:
    """Attention with a quantised input projection."""
    x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (
        node.input(index) for index in range(9)
    )
    if node.bool("do_rotary") or node.bool("past_present_share_buffer"):
        raise node.unsupported("do_rotary and past_present_share_buffer are not supported")
    sums = floats_of_product(node, read_integers(node, x, x_zero, -2), weight, w_zero)
    product = binary(node, "MUL", sums, binary(node, "MUL", x_scale, w_scale))
    product = binary(node, "ADD", product, bias)
    attend_packed(node, product, thirds(node, weight), Given(mask, past))


@converter("QEmbedLayerNormalization", domain=_MICROSOFT)
def _embed_layer_norm(node: NodeContext) -> None:
    """BERT's embedding layer with quantised tables of one scale each."""

    def table(index: int) -> str:
        codes, scale, zero = (node.input(index + far) for far in (0, 6, 11))
        return dequantized(node, codes, scale, cast(node, zero, _F32)) if codes else ""

    words, places, kinds, gamma, beta = (table(index) for index in range(2, 7))
    ids, segments, mask = (node.input(index) for index in (0, 1, 7))
    embed(node, Embedding(ids, segments, words, places, kinds, gamma, beta, mask))
