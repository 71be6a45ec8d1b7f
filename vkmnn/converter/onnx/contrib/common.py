"""Operators of onnxruntime's contrib domain that optimised exports contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.activation import gated
from vkmnn.converter.onnx.ops.conv import convolution_attrs
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    Activation,
    AxisAttrs,
    BinaryAttrs,
    ConstantOfShapeAttrs,
    LayerNormAttrs,
    ReductionAttrs,
    ShapeAttrs,
    TriluAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_SKIP_EPSILON = 1e-12  # onnxruntime's default

# FusedConv activation → (Activation kind, defaults of its parameters).
_ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "Relu": ("RELU", ()),
    "Tanh": ("TANH", ()),
    "Sigmoid": ("SIGMOID", ()),
    "LeakyRelu": ("LEAKY_RELU", (0.01,)),
    "Clip": ("CLIP", ()),
    "HardSigmoid": ("HARD_SIGMOID", (0.2, 0.5)),
}


@converter("FusedConv", domain=_MICROSOFT)
def _fused_conv(node: NodeContext) -> None:
    name = node.choice("activation", "", ("", *_ACTIVATIONS))
    attrs = convolution_attrs(node, node.input(1))
    if name:
        kind, defaults = _ACTIVATIONS[name]
        values = node.floats("activation_params", defaults)
        if name == "Clip" and len(values) != 2:
            raise node.unsupported("activation Clip has no bounds")
        attrs = replace(attrs, activation=Activation(kind, *values))
    node.finish("Convolution", node.inputs, attrs)


def _activate(node: NodeContext, kind: str) -> None:
    """Add the optional bias (input 1), then apply a function."""
    x = node.input(0)
    if node.input(1):
        x = node.emit("BinaryOp", node.inputs, BinaryAttrs("ADD"))
    node.finish("UnaryOp", [x], UnaryAttrs(kind))


@converter("Gelu", domain=_MICROSOFT)
@converter("BiasGelu", domain=_MICROSOFT)
def _gelu(node: NodeContext) -> None:
    _activate(node, "GELU")


@converter("FastGelu", domain=_MICROSOFT)
def _fast_gelu(node: NodeContext) -> None:
    _activate(node, "GELU_TANH")


@converter("QuickGelu", domain=_MICROSOFT)
def _quick_gelu(node: NodeContext) -> None:
    node.finish("UnaryOp", node.inputs, gated(node.float("alpha", 1.702)))


@converter("Trilu", domain=_MICROSOFT)
def _trilu(node: NodeContext) -> None:
    node.finish("Trilu", node.inputs, TriluAttrs(node.bool("upper", True)))


# onnxruntime accepts these two in ONNX's own domain before ONNX had them.
@converter("LayerNormalization")
@converter("SimplifiedLayerNormalization")
def _early_layer_norm(node: NodeContext) -> None:
    rms = node.op == "SimplifiedLayerNormalization"
    attrs = LayerNormAttrs(node.int("axis", -1), node.float("epsilon", 1e-5), rms)
    node.emit("LayerNorm", node.inputs, attrs, node.outputs)


def _skip_norm(node: NodeContext, bias: str, norm_inputs: list[str], rms: bool) -> None:
    """Normalise input + skip + bias; output 3 is that sum."""
    total = node.emit("BinaryOp", node.inputs[:2], BinaryAttrs("ADD"))
    if bias:
        total = node.emit("BinaryOp", [total, bias], BinaryAttrs("ADD"))
    attrs = LayerNormAttrs(-1, node.float("epsilon", _SKIP_EPSILON), rms)
    node.emit("LayerNorm", [total, *norm_inputs], attrs, node.outputs[:3])
    if node.output(3):
        node.emit("Identity", [total], None, node.outputs[3:4])


@converter("SkipLayerNormalization", domain=_MICROSOFT)
def _skip_layer_norm(node: NodeContext) -> None:
    _skip_norm(node, node.input(4), [node.input(2), node.input(3)], rms=False)


@converter("SkipSimplifiedLayerNormalization", domain=_MICROSOFT)
def _skip_rms_norm(node: NodeContext) -> None:
    _skip_norm(node, node.input(3), [node.input(2)], rms=True)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Tensors of BERT's first layer: row numbers, their tables, the normalisation; "" if absent."""

    ids: str
    segments: str
    words: str
    places: str
    kinds: str
    gamma: str
    beta: str
    mask: str
    positions: str = ""


@converter("EmbedLayerNormalization", domain=_MICROSOFT)
def _embed_layer_norm(node: NodeContext) -> None:
    embed(node, Embedding(*(node.input(index) for index in range(9))))


def embed(node: NodeContext, given: Embedding) -> None:
    """Add embeddings of words, positions and segments, and normalise."""
    total = node.emit("Gather", [given.words, given.ids], AxisAttrs(0))
    if given.positions:
        rows = node.emit("Gather", [given.places, given.positions], AxisAttrs(0))
    else:
        count = node.emit("Shape", [given.ids], ShapeAttrs(1, 2))
        first, one = node.ints_constant([0]), node.ints_constant([1])
        rows = node.emit("Slice", [given.places, first, count, first, one])
    total = node.emit("BinaryOp", [total, rows], BinaryAttrs("ADD"))
    if given.segments:
        kind = node.emit("Gather", [given.kinds, given.segments], AxisAttrs(0))
        total = node.emit("BinaryOp", [total, kind], BinaryAttrs("ADD"))
    attrs = LayerNormAttrs(-1, node.float("epsilon", _SKIP_EPSILON))
    node.emit("LayerNorm", [total, given.gamma, given.beta], attrs, node.outputs[:1])
    if node.output(2):
        node.emit("Identity", [total], None, node.outputs[2:3])
    if node.output(1):
        _count_kept(node, given.mask, given.ids)


def _count_kept(node: NodeContext, mask: str, ids: str) -> None:
    """Write how many elements of each row of a mask are 1; 0 without a mask."""
    if mask:
        attrs = ReductionAttrs("SUM", keepdims=False)
        node.emit("Reduction", [mask, node.ints_constant([1])], attrs, node.outputs[1:2])
        return
    batch = node.emit("Shape", [ids], ShapeAttrs(0, 1))
    none = ConstantOfShapeAttrs(0, DType.INT32)
    node.emit("ConstantOfShape", [batch], none, node.outputs[1:2])
