"""Mixtures of experts: every token goes through the few networks that a router chooses.

All experts are computed in one product, and those not chosen are replaced by zeros: the second
product sums over experts and their features at once. So quantised weights stay quantised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.contrib.heads import binary, part
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.weights import UNIT, add_codes, float_zeros, is_block
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import Array, DType
from vkmnn.ir.codes import decode, pack_codes, unpack_codes
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ConstantOfShapeAttrs,
    MatMulAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    ScatterElementsAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
    TopKAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_KINDS = {"relu": "RELU", "gelu": "GELU_TANH", "silu": "SILU", "identity": "", "swiglu": ""}


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one layer of every expert, [experts, columns, depth].

    Attributes:
        values: numbers, or packed codes [experts, columns, blocks, bytes].
        scales: scales of quantised values, [experts, columns, blocks]; None if `values` are floats.
        zeros: zero points of quantised values, in the shape of `scales`; None for the middle.
        bits: bits of a quantised value.
        bias: [experts, columns], or None.
    """

    values: Array
    scales: Array | None = None
    zeros: Array | None = None
    bits: int = 0
    bias: Array | None = None

    @property
    def experts(self) -> int:
        """Number of experts."""
        return int(self.values.shape[0])

    @property
    def columns(self) -> int:
        """Number of features per expert."""
        return int(self.values.shape[1])

    def product(self, node: NodeContext, x: str, *, summed: bool) -> str:
        """Return x by the weights.

        Args:
            node: the node that they replace.
            x: [tokens, depth], or, `summed`, [tokens, experts · depth].
            summed: sum over the experts; else [tokens, experts · columns].
        """
        dtype = node.dtype(node.input(0)).numpy
        if self.scales is None:
            matrix = _joined(self.values, summed)
            matrix = matrix.reshape(matrix.shape[0], -1).astype(dtype)
            return node.emit("MatMul", [x, node.constant(matrix)], MatMulAttrs(transpose_b=True))
        codes, scales = _joined(self.values, summed), _joined(self.scales, summed)
        zeros = None if self.zeros is None else _joined(self.zeros, summed)
        depth = codes[0].size * 8 // self.bits
        if not is_block(codes.shape[-1] * 8 // self.bits):
            matrix = decode(codes, scales, zeros, self.bits, depth).astype(dtype)
            return node.emit("MatMul", [x, node.constant(matrix)], MatMulAttrs(transpose_b=True))
        bits = self.bits
        if bits == 2:
            codes, bits = pack_codes(unpack_codes(codes, 2), 4), 4
            zeros = np.full(scales.shape, 2, np.uint8) if zeros is None else zeros
        found = add_codes(node, codes, scales, zeros, bits, depth)
        return node.emit("MatMulNBits", found.inputs(x), found.attrs)


def _joined(array: Array, summed: bool) -> Array:
    """Put the experts next to the columns, or the blocks: [columns, experts · blocks, …]."""
    if not summed:
        return array.reshape(-1, *array.shape[2:])
    moved = np.moveaxis(array, 0, 1)
    return np.ascontiguousarray(moved.reshape(moved.shape[0], -1, *moved.shape[3:]))


# --- parts of nodes --------------------------------------------------------------------------


def _constant(node: NodeContext, index: int, rank: int) -> Array:
    value = node.const_value(node.input(index))
    if value is None or value.ndim != rank:
        raise node.unsupported(f"'{node.input(index)}' is not a constant of {rank} axes")
    return value


def _floats(node: NodeContext, index: int) -> Weights | None:
    """Return the layer at inputs `index` (weights) and the next one (bias)."""
    if not node.input(index):
        return None
    values = _constant(node, index, 3)
    bias = _constant(node, index + 1, 2) if node.input(index + 1) else None
    return Weights(values, bias=bias)


def _coded(node: NodeContext, number: int) -> Weights | None:
    """Return layer 1, 2 or 3 of a QMoE: its consecutive weights, scales and bias."""
    index = 3 * number - 1
    if not node.input(index):
        return None
    bits = node.int(f"fc{number}_expert_weight_bits", 0) or node.int("expert_weight_bits", 4)
    if bits not in (2, 4, 8):
        raise node.unsupported(f"weights of {bits} bits are not supported")
    packed = _constant(node, index, 3)
    experts, columns, width = packed.shape
    depth = width * 8 // bits
    block = node.int("block_size", 0)
    blocks = depth // block if block > 0 else 1
    scales = node.const_value(node.input(index + 1))
    if packed.dtype != np.uint8 or blocks < 1 or depth % blocks:
        raise node.unsupported(f"{packed.dtype} weights of {depth} in blocks of {block}")
    if scales is None or scales.size != experts * columns * blocks:
        raise node.unsupported(f"the scales of layer {number} do not fit its weights")
    zeros = _zeros(node, 10 + number, (experts, columns, blocks), bits)
    packed = packed.reshape(experts, columns, blocks, -1)
    scales = scales.reshape(experts, columns, blocks)
    unit = next((n for n in (UNIT, UNIT // 2) if not block and depth % n == 0), 0)
    if unit:  # rows of one block are split into blocks that kernels read
        packed = packed.reshape(experts, columns, depth // unit, -1)
        scales = np.repeat(scales, depth // unit, 2)
        zeros = None if zeros is None else np.repeat(zeros, depth // unit, 2)
    bias = _constant(node, index + 2, 2) if node.input(index + 2) else None
    return Weights(packed, scales, zeros, bits, bias)


def _zeros(node: NodeContext, index: int, shape: tuple[int, int, int], bits: int) -> Array | None:
    """Return zero points [experts, columns, blocks]; rows of bytes are filled up to whole ones."""
    if not node.input(index):
        return None
    zeros = node.const_value(node.input(index))
    experts, columns, blocks = shape
    if zeros is not None and zeros.dtype != np.uint8 and zeros.size == math.prod(shape):
        return float_zeros(node, zeros, shape, bits)
    rows = (experts, columns) if zeros is not None and zeros.ndim == 3 else (experts,)
    count = blocks if len(rows) == 2 else columns * blocks
    width = -(-count * bits // 8)
    if zeros is None or zeros.dtype != np.uint8 or zeros.size != math.prod(rows) * width:
        raise node.unsupported(f"the zero points '{node.input(index)}' do not fit their weights")
    return unpack_codes(zeros.reshape(*rows, width), bits)[..., :count].reshape(shape)


@converter("MoE", domain=_MICROSOFT)
def _mixture(node: NodeContext) -> None:
    _mixed(node, [_floats(node, index) for index in (2, 4, 6)], "")


@converter("QMoE", domain=_MICROSOFT)
def _coded_mixture(node: NodeContext) -> None:
    if node.string("quant_type", "int") != "int" or node.int("weights_prepacked", -1) > 0:
        raise node.unsupported("weights in the layout of another device, or not in integers")
    if any(node.inputs[15:]):
        raise node.unsupported("global scales, and scales of activations, are not supported")
    _mixed(node, [_coded(node, number) for number in (1, 2, 3)], node.input(14))


# --- the layer -----------------------------------------------------------------------------------


def _mixed(node: NodeContext, layers: Sequence[Weights | None], mixing: str) -> None:
    """Add the ops of a mixture."""
    first, second, third = layers
    if first is None or second is None:
        raise node.unsupported("it has no weights")
    for name in ("use_sparse_mixer", "swiglu_limit_after_activation"):
        if node.int(name, 0):
            raise node.unsupported(f"{name} is not supported")
    experts, shape = first.experts, node.emit("Shape", [node.input(0)], ShapeAttrs())
    width = node.shape(node.input(0))[-1]
    if not isinstance(width, int):
        raise node.unsupported("the number of its features is not known")
    x = node.emit("Reshape", [node.input(0), node.ints_constant([-1, width])], ReshapeAttrs())
    router = node.ints_constant([-1, experts])
    shares, chosen = _shares(node, node.emit("Reshape", [node.input(1), router], ReshapeAttrs()),
                             mixing, experts)  # fmt: skip
    other = _by_expert(node, x, third) if third else ""
    hidden = _activated(node, _by_expert(node, x, first), other)
    apart = [node.emit("Unsqueeze", [one, node.ints_constant([2])]) for one in (shares, chosen)]
    zero = node.constant(0, node.dtype(node.input(0)))
    hidden = node.emit("Select", [apart[1], binary(node, "MUL", hidden, apart[0]), zero])
    flat = node.emit("Reshape", [hidden, node.ints_constant([0, -1])], ReshapeAttrs())
    y = second.product(node, flat, summed=True)
    if second.bias is not None:
        bias = node.constant(second.bias.astype(node.dtype(node.input(0)).numpy))
        y = binary(node, "ADD", y, node.emit("MatMul", [shares, bias], MatMulAttrs()))
    node.finish("Reshape", [y, shape], ReshapeAttrs())


def _shares(node: NodeContext, router: str, mixing: str, experts: int) -> tuple[str, str]:
    """Return the weight of each expert, [tokens, experts], and whether it is selected."""
    count = node.int("k", 1)
    if not 1 <= count <= experts:
        raise node.unsupported(f"{count} of {experts} experts cannot be chosen")
    dtype = node.dtype(node.input(0))
    names = [node.new("best"), node.new("places")]
    node.emit("TopK", [router, node.ints_constant([count])], TopKAttrs(-1), names)
    if mixing:
        mixing = node.emit("Reshape", [mixing, node.ints_constant([-1, experts])], ReshapeAttrs())
        weights = node.emit("GatherElements", [mixing, names[1]], AxisAttrs(1))
        if node.bool("normalize_routing_weights"):
            one = node.ints_constant([1])
            total = node.emit("Reduction", [weights, one], ReductionAttrs("SUM"))
            weights = binary(node, "DIV", weights, total)
    elif node.op == "QMoE" or node.bool("normalize_routing_weights"):
        weights = node.emit("Softmax", [names[0]], SoftmaxAttrs(-1))
    else:  # of all experts, not of those that are chosen
        every = node.emit("Softmax", [router], SoftmaxAttrs(-1))
        weights = node.emit("GatherElements", [every, names[1]], AxisAttrs(1))
    sizes = node.emit("Shape", [router], ShapeAttrs())
    none = node.emit("ConstantOfShape", [sizes], ConstantOfShapeAttrs(0.0, dtype))
    shares = node.emit("ScatterElements", [none, names[1], weights], ScatterElementsAttrs(1))
    ones = node.emit("ConstantOfShape", [node.emit("Shape", [names[1]], ShapeAttrs())],
                     ConstantOfShapeAttrs(1.0, dtype))  # fmt: skip
    marks = node.emit("ScatterElements", [none, names[1], ones], ScatterElementsAttrs(1))
    return shares, node.emit("Cast", [marks], CastAttrs(DType.BOOL))


def _by_expert(node: NodeContext, x: str, layer: Weights) -> str:
    """Return [tokens, experts, columns]: a layer of every expert applied to x."""
    y = layer.product(node, x, summed=False)
    if layer.bias is not None:
        bias = layer.bias.reshape(-1).astype(node.dtype(node.input(0)).numpy)
        y = node.emit("BinaryOp", [y, node.constant(bias)], BinaryAttrs("ADD"))
    sizes = node.ints_constant([-1, layer.experts, layer.columns])
    return node.emit("Reshape", [y, sizes], ReshapeAttrs())


def _activated(node: NodeContext, x: str, other: str) -> str:
    """Return act(x), act(x) · other, or the gate and the value that x holds together."""
    name = node.choice("activation_type", "relu", tuple(_KINDS))
    if name != "swiglu":
        y = node.emit("UnaryOp", [x], UnaryAttrs(_KINDS[name])) if _KINDS[name] else x
        return binary(node, "MUL", y, other) if other else y
    fusion, size = node.int("swiglu_fusion", 0), node.shape(x)[-1]
    assert isinstance(size, int)
    if other:
        gate, value = x, other
    elif fusion == 1:
        pairs = node.emit("Reshape", [x, node.ints_constant([0, 0, size // 2, 2])], ReshapeAttrs())
        flat = node.ints_constant([0, 0, size // 2])
        gate, value = (node.emit("Reshape", [part(node, pairs, n, n + 1), flat], ReshapeAttrs())
                       for n in range(2))  # fmt: skip
    elif fusion == 2:
        gate, value = part(node, x, 0, size // 2), part(node, x, size // 2, size)
    else:
        raise node.unsupported("swiglu has neither a third layer nor both in the first")
    limit = node.float("swiglu_limit", math.inf)
    if limit < math.inf:
        gate = node.emit("UnaryOp", [gate], UnaryAttrs("CLIP", -math.inf, limit))
        value = node.emit("UnaryOp", [value], UnaryAttrs("CLIP", -limit, limit))
    alpha, beta = node.float("activation_alpha", 1.0), node.float("activation_beta", 0.0)
    gate = node.emit("UnaryOp", [gate], UnaryAttrs("QUICK_GELU", alpha))
    if beta:
        value = binary(node, "ADD", value, node.constant(beta, node.dtype(node.input(0))))
    return binary(node, "MUL", gate, value)
