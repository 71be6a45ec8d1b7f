"""Mixtures of experts: every token goes through the few networks that a router chooses for it.

Products read the weights of the chosen experts only (`ExpertMatMul`), and weights in codes stay
codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.contrib.heads import binary, part
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.weights import UNIT, float_zeros, is_block
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import Activation, Array
from vkmnn.ir.codes import decode, pack_codes, unpack_codes
from vkmnn.ir.ops import (
    NO_ACTIVATION,
    AxisAttrs,
    ExpertMatMulAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
    TopKAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_KINDS = {"relu": "RELU", "gelu": "GELU_TANH", "silu": "SILU", "identity": "NONE",
          "swiglu": "QUICK_GELU"}  # fmt: skip
_FLOATS = (np.float32, np.float16)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one layer of every expert, [experts, columns, depth].

    Attributes:
        values: numbers, or packed codes [experts, columns, blocks, bytes].
        scales: of codes, [experts, columns, blocks]; None where `values` are numbers.
        zeros: of codes, of the shape of `scales`; None for the middle.
        bits: of a code; 0 for numbers.
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

    @property
    def block(self) -> int:
        """Codes that share a scale."""
        return self.values.shape[-1] * 8 // self.bits if self.bits else 0

    @property
    def depth(self) -> int:
        """Features of what is multiplied."""
        return math.prod(self.values.shape[2:]) * 8 // (self.bits or 8)

    def is_like(self, other: Weights) -> bool:
        """Tell whether both have the same form and size."""
        forms = [
            (one.values.shape, one.values.dtype, one.bits,
             one.scales is None or one.scales.dtype, one.zeros is None or one.zeros.dtype)
            for one in (self, other)
        ]  # fmt: skip
        return forms[0] == forms[1]

    def changed(self, change: Callable[[Array], Array]) -> Weights:
        """Return the weights with other columns: `change` is applied to all arrays."""
        parts = (self.values, self.scales, self.zeros, self.bias)
        values, *rest = (None if one is None else change(one) for one in parts)
        assert values is not None
        return Weights(values, rest[0], rest[1], self.bits, rest[2])

    def readable(self, dtype: np.dtype[np.generic]) -> Weights:
        """Return the weights in a form that kernels read, numbers of `dtype` if need be."""
        if not self.bits:
            known = self.values.dtype in _FLOATS
            return self if known else replace(self, values=self.values.astype(dtype))
        assert self.scales is not None
        if not is_block(self.block):
            codes, scales = (one.reshape(-1, *one.shape[2:]) for one in (self.values, self.scales))
            zeros = None if self.zeros is None else self.zeros.reshape(scales.shape)
            matrix = decode(codes, scales, zeros, self.bits, self.depth).astype(dtype)
            return Weights(matrix.reshape(*self.values.shape[:2], -1), bias=self.bias)
        if self.bits == 2:
            zeros = np.full(self.scales.shape, 2, np.uint8) if self.zeros is None else self.zeros
            return replace(self, values=pack_codes(unpack_codes(self.values, 2), 4), zeros=zeros,
                           bits=4)  # fmt: skip
        return self


@dataclass(frozen=True, slots=True)
class _Product:
    """What is the same in all products of a mixture, or differs between its two layers."""

    chosen: str
    each: bool = False
    shares: str = ""
    activation: Activation = NO_ACTIVATION
    gated: bool = False
    limit: float = math.inf
    offset: float = 0.0

    def of(self, node: NodeContext, x: str, given: Weights) -> str:
        """Add the product of x by weights."""
        dtype = node.dtype(node.input(0)).numpy
        layer = given.readable(dtype)
        attrs = ExpertMatMulAttrs(
            layer.experts, layer.columns, layer.depth, layer.bits, layer.block, self.each,
            self.activation, self.gated, self.limit, self.offset,
        )  # fmt: skip
        bias = None if layer.bias is None else layer.bias.astype(dtype)
        weights, *rest = (
            "" if one is None else node.constant(np.ascontiguousarray(one))
            for one in (layer.values, bias, layer.scales, layer.zeros)
        )
        inputs = [x, weights, self.chosen, *rest, self.shares]
        while not inputs[-1]:
            inputs.pop()
        return node.emit("ExpertMatMul", inputs, attrs)


# --- what nodes hold -----------------------------------------------------------------------------


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
        raise node.unsupported(f"codes of {bits} bits are not supported")
    packed = _constant(node, index, 3)
    experts, columns, width = packed.shape
    depth = width * 8 // bits
    scales = node.const_value(node.input(index + 1))
    block = node.int("block_size", 0)
    blocks = depth // block if block > 0 else 1
    if scales is not None and scales.ndim == 3:  # layers may have blocks of other sizes
        blocks = scales.shape[2]
    if packed.dtype != np.uint8 or blocks < 1 or depth % blocks:
        raise node.unsupported(f"{packed.dtype} weights of {depth} in blocks of {block}")
    if scales is None or scales.size != experts * columns * blocks:
        raise node.unsupported(f"the scales of layer {number} do not fit its weights")
    zeros = _zeros(node, 10 + number, (experts, columns, blocks), bits)
    packed = packed.reshape(experts, columns, blocks, -1)
    scales = scales.reshape(experts, columns, blocks)
    unit = next((n for n in (UNIT, UNIT // 2) if blocks == 1 and depth % n == 0), 0)
    if unit:  # rows that are one block are cut into those that kernels read
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
    x, router = node.input(0), node.input(1)
    width = node.shape(x)[-1]
    if not isinstance(width, int):
        raise node.unsupported("the number of its features is not known")
    alike = node.rank(x) == node.rank(router) == node.rank(mixing or router)
    shape = "" if alike else node.emit("Shape", [x], ShapeAttrs())
    if not alike:  # of x, tokens may have several axes
        x, router, mixing = (
            name and node.emit("Reshape", [name, node.ints_constant([-1, size])], ReshapeAttrs())
            for name, size in ((x, width), (router, first.experts), (mixing, first.experts))
        )
    shares, chosen = _shares(node, router, mixing, first.experts)
    hidden = _hidden(node, x, first, third, chosen)
    y = _Product(chosen, each=True, shares=shares).of(node, hidden, second)
    node.finish(*(("Reshape", [y, shape], ReshapeAttrs()) if shape else ("Identity", [y])))


def _shares(node: NodeContext, router: str, mixing: str, experts: int) -> tuple[str, str]:
    """Return the weights of the chosen experts, [.., k], and their numbers."""
    count = node.int("k", 1)
    if not 1 <= count <= experts:
        raise node.unsupported(f"{count} of {experts} experts cannot be chosen")
    names = [node.new("best"), node.new("places")]
    node.emit("TopK", [router, node.ints_constant([count])], TopKAttrs(-1), names)
    if mixing:
        weights = node.emit("GatherElements", [mixing, names[1]], AxisAttrs(-1))
        if node.bool("normalize_routing_weights"):
            last = node.ints_constant([-1])
            total = node.emit("Reduction", [weights, last], ReductionAttrs("SUM"))
            weights = binary(node, "DIV", weights, total)
    elif node.op == "QMoE" or node.bool("normalize_routing_weights"):
        weights = node.emit("Softmax", [names[0]], SoftmaxAttrs(-1))
    else:  # of all experts, not of those that are chosen
        every = node.emit("Softmax", [router], SoftmaxAttrs(-1))
        weights = node.emit("GatherElements", [every, names[1]], AxisAttrs(-1))
    return weights, names[1]


def _hidden(node: NodeContext, x: str, first: Weights, third: Weights | None, chosen: str) -> str:
    """Return act(fc1 x), or act(gate) · value where a third layer or the first one has both."""
    name = node.choice("activation_type", "relu", tuple(_KINDS))
    swiglu, fusion = name == "swiglu", node.int("swiglu_fusion", 0)
    if swiglu and third is None and fusion not in (1, 2):
        raise node.unsupported("swiglu has neither a third layer nor both in the first")
    alpha = node.float("activation_alpha", 1.0) if swiglu else 0.0
    act = Activation(_KINDS[name], alpha)
    limit = node.float("swiglu_limit", math.inf) if swiglu else math.inf
    offset = node.float("activation_beta", 0.0) if swiglu else 0.0
    plain = _Product(chosen)
    if not swiglu and third is None:
        return replace(plain, activation=act).of(node, x, first)
    together = _gates(first, third, fusion)
    if together is not None:
        gated = replace(plain, activation=act, gated=True, limit=limit, offset=offset)
        return gated.of(node, x, together)
    value = plain.of(node, x, third) if third else ""
    gate = plain.of(node, x, first)
    if not value:
        gate, value = _halves(node, gate, first.columns // 2, fusion)
    if limit < math.inf:
        gate = node.emit("UnaryOp", [gate], UnaryAttrs("CLIP", -math.inf, limit))
        value = node.emit("UnaryOp", [value], UnaryAttrs("CLIP", -limit, limit))
    if act.kind != "NONE":
        gate = node.emit("UnaryOp", [gate], UnaryAttrs(act.kind, alpha))
    if offset:
        value = binary(node, "ADD", value, node.constant(offset, node.dtype(node.input(0))))
    return binary(node, "MUL", gate, value)


def _gates(first: Weights, third: Weights | None, fusion: int) -> Weights | None:
    """Return gates and values two by two, as kernels want them; None where they are not even."""
    if third is not None:
        if not first.is_like(third) or first.columns % 2:
            return None
        return _joined(first, third)
    if first.columns % 4:
        return None
    if fusion == 1:  # one gate, one value

        def turned(array: Array) -> Array:
            fours = array.reshape(array.shape[0], -1, 2, 2, *array.shape[2:])
            return np.asarray(fours.swapaxes(2, 3).reshape(array.shape))

        return first.changed(turned)
    half = first.columns // 2
    gate = first.changed(lambda array: array[:, :half])
    return _joined(gate, first.changed(lambda array: array[:, half:]))


def _joined(gate: Weights, value: Weights) -> Weights:
    """Return the columns of both two by two; a bias that only one has is zeros in the other."""
    biases = [one.bias for one in (gate, value)]
    if any(one is not None for one in biases):
        none = np.zeros((gate.experts, gate.columns), np.float32)
        gate, value = (
            replace(one, bias=none if one.bias is None else one.bias) for one in (gate, value)
        )

    def both(one: Array | None, other: Array | None) -> Array | None:
        if one is None or other is None:
            return None
        twos = [part.reshape(part.shape[0], -1, 2, *part.shape[2:]) for part in (one, other)]
        pairs: Array = np.concatenate(twos, axis=2)
        return pairs.reshape(one.shape[0], -1, *one.shape[2:])

    values = both(gate.values, value.values)
    assert values is not None
    scales, zeros = both(gate.scales, value.scales), both(gate.zeros, value.zeros)
    return Weights(values, scales, zeros, gate.bits, both(gate.bias, value.bias))


def _halves(node: NodeContext, x: str, count: int, fusion: int) -> tuple[str, str]:
    """Return the gates and the values that x holds in turns, or one after the other."""
    if fusion == 2:
        return part(node, x, 0, count), part(node, x, count, 2 * count)
    zeros = [0] * node.rank(x)
    pairs = [*zeros[:-1], count, 2]
    split = node.emit("Reshape", [x, node.ints_constant(pairs)], ReshapeAttrs())
    flat = node.ints_constant([*zeros[:-1], count])
    gate, value = (
        node.emit("Reshape", [part(node, split, n, n + 1), flat], ReshapeAttrs()) for n in (0, 1)
    )
    return gate, value
