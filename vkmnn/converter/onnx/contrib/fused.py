"""Operators that onnxruntime's optimiser fuses, for CPUs and for diffusion models.

Semantics: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.activation import gated
from vkmnn.converter.onnx.ops.attention import linear_attention
from vkmnn.converter.onnx.ops.matmul import gemm
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    ConstantOfShapeAttrs,
    ConvolutionAttrs,
    GroupNormAttrs,
    MatMulAttrs,
    ShapeAttrs,
    SplitAttrs,
    TransposeAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"

# Activation of FusedGemm and FusedMatMulActivation → (kind, its parameters and their defaults).
_ACTIVATIONS: Mapping[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "Relu": ("RELU", ()),
    "Tanh": ("TANH", ()),
    "Sigmoid": ("SIGMOID", ()),
    "Softplus": ("SOFTPLUS", ()),
    "Softsign": ("SOFTSIGN", ()),
    "Elu": ("ELU", (("alpha", 1.0),)),
    "LeakyRelu": ("LEAKY_RELU", (("alpha", 0.01),)),
    "ThresholdedRelu": ("THRESHOLDED_RELU", (("alpha", 1.0),)),
    "HardSigmoid": ("HARD_SIGMOID", (("alpha", 0.2), ("beta", 0.5))),
    "Selu": ("SELU", (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
}


def _activated(node: NodeContext, value: str) -> None:
    """Apply the attribute `activation`, with its parameters `activation_alpha` and so on."""
    name = node.choice("activation", "", ("", *_ACTIVATIONS))
    if not name:
        node.finish("Identity", [value])
        return
    kind, parameters = _ACTIVATIONS[name]
    values = (node.float(f"activation_{parameter}", default) for parameter, default in parameters)
    node.finish("UnaryOp", [value], UnaryAttrs(kind, *values))


@converter("FusedGemm", domain=_MICROSOFT)
def _fused_gemm(node: NodeContext) -> None:
    _activated(node, node.emit(*gemm(node)))


def _batch_last(node: NodeContext, value: str) -> str:
    """Move the first axis to the last but one, where a product has its rows."""
    rank = node.rank(value)
    perm = (*range(1, rank - 1), 0, rank - 1)
    return node.emit("Transpose", [value], TransposeAttrs(perm))


def _fused_product(node: NodeContext) -> str:
    a, b = node.input(0), node.input(1)
    if node.bool("transBatchA"):
        a = _batch_last(node, a)
    if node.bool("transBatchB"):
        b = _batch_last(node, b)
    attrs = MatMulAttrs(node.bool("transA"), node.bool("transB"), node.float("alpha", 1.0))
    return node.emit("MatMul", [a, b], attrs)


@converter("FusedMatMul", domain=_MICROSOFT)
@converter("TransposeMatMul", domain=_MICROSOFT)
def _fused_matmul(node: NodeContext) -> None:
    node.finish("Identity", [_fused_product(node)])


@converter("FusedMatMulActivation", domain=_MICROSOFT)
def _fused_matmul_activation(node: NodeContext) -> None:
    if node.string("activation", "") == "Softmax":
        raise node.unsupported("activation Softmax is not supported")
    _activated(node, _fused_product(node))


@converter("GemmFastGelu", domain=_MICROSOFT)
def _gemm_fast_gelu(node: NodeContext) -> None:
    value = node.emit("MatMul", node.inputs[:2], MatMulAttrs())
    if node.input(2):
        value = node.emit("BinaryOp", [value, node.input(2)], BinaryAttrs("ADD"))
    node.finish("UnaryOp", [value], UnaryAttrs("GELU_TANH"))


@converter("BiasAdd", domain=_MICROSOFT)
def _bias_add(node: NodeContext) -> None:
    x, bias, skip = node.inputs
    value = node.emit("BinaryOp", [x, bias], BinaryAttrs("ADD"))
    node.finish("BinaryOp", [value, skip], BinaryAttrs("ADD"))


@converter("BiasSplitGelu", domain=_MICROSOFT)
def _bias_split_gelu(node: NodeContext) -> None:
    value = node.emit("BinaryOp", node.inputs, BinaryAttrs("ADD"))
    left, right = node.new("left"), node.new("right")
    node.emit("Split", [value], SplitAttrs(-1, 2), [left, right])
    gate = node.emit("UnaryOp", [right], UnaryAttrs("GELU"))
    node.finish("BinaryOp", [left, gate], BinaryAttrs("MUL"))


def _group_norm_of(node: NodeContext, value: str) -> str:
    """Normalise groups of channels, which are last unless an attribute says otherwise."""
    rank, last = node.rank(value), node.bool("channels_last", True)
    if last:
        perm = (0, rank - 1, *range(1, rank - 1))
        value = node.emit("Transpose", [value], TransposeAttrs(perm))
    attrs = GroupNormAttrs(node.int("groups"), node.float("epsilon", 1e-5))
    value = node.emit("GroupNorm", [value, node.input(1), node.input(2)], attrs)
    if node.int("activation"):
        value = node.emit("UnaryOp", [value], gated(1.0))
    if last:
        value = node.emit("Transpose", [value], TransposeAttrs((0, *range(2, rank), 1)))
    return value


@converter("GroupNorm", domain=_MICROSOFT)
def _group_norm(node: NodeContext) -> None:
    node.finish("Identity", [_group_norm_of(node, node.input(0))])


@converter("SkipGroupNorm", domain=_MICROSOFT)
def _skip_group_norm(node: NodeContext) -> None:
    """Normalise x + skip + bias; output 1 is that sum. A skip of one row per sample broadcasts."""
    x, skip, bias = node.input(0), node.input(3), node.input(4)
    if node.rank(skip) == 2:
        skip = node.emit("Unsqueeze", [skip, node.ints_constant([1, 2])])
    total = node.emit("BinaryOp", [x, skip], BinaryAttrs("ADD"))
    if bias:
        total = node.emit("BinaryOp", [total, bias], BinaryAttrs("ADD"))
    node.emit("Identity", [_group_norm_of(node, total)], None, node.outputs[:1])
    if node.output(1):
        node.emit("Identity", [total], None, node.outputs[1:2])


@converter("LinearAttention", domain=_MICROSOFT)
def _linear_attention(node: NodeContext) -> None:
    if node.int("state_window", 0):
        raise node.unsupported("a window of states is not supported")
    linear_attention(node)


_PLAIN = {
    "ndim": 1, "dilation": 1, "state_update_capacity": 0, "state_window": 0, "state_length": 0,
    "input_channel_offset": 0, "channels_last": 0, "input_channels": 0,
}  # fmt: skip
"""Attributes of CausalConvWithState whose other values are for graphs of one GPU's kernels."""


@converter("CausalConvWithState", domain=_MICROSOFT)
def _causal_conv(node: NodeContext) -> None:
    """Convolve state and input per channel; the last columns are the new state."""
    odd = [name for name, plain in _PLAIN.items() if node.int(name, plain) != plain]
    if odd or node.int("state_channels_last", -1) > 0 or node.output(2):
        raise node.unsupported(f"{', '.join(odd) or 'state updates'}: not supported")
    x, weight, bias, state = (node.input(place) for place in range(4))
    channels, _, taps = node.shape(weight)
    if not isinstance(channels, int) or not isinstance(taps, int):
        raise node.unsupported("the weights' shape is not known")
    if not state:
        batch = node.emit("Shape", [x], ShapeAttrs(0, 1))
        sizes = [batch, node.ints_constant([channels, taps - 1])]
        shape = node.emit("Concat", sizes, AxisAttrs(0))
        state = node.emit("ConstantOfShape", [shape], ConstantOfShapeAttrs(0, node.dtype(x)))
    whole = node.emit("Concat", [state, x], AxisAttrs(2))
    attrs = ConvolutionAttrs((taps,), (1,), (1,), (0, 0), group=channels)
    result = node.emit("Convolution", [whole, weight, bias], attrs)
    activation = node.choice("activation", "none", ("none", "silu", "swish"))
    kind = ("Identity", None) if activation == "none" else ("UnaryOp", gated(1.0))
    node.emit(kind[0], [result], kind[1], node.outputs[:1])
    if node.output(1):
        first, end = node.ints_constant([1 - taps]), node.constant(np.array([2**31 - 1], np.int64))
        if taps == 1:
            first = end
        axis, one = node.ints_constant([2]), node.ints_constant([1])
        node.emit("Slice", [whole, first, end, axis, one], None, node.outputs[1:2])
