"""Scaled dot-product attention: the plain form directly, all others through the function body."""

from __future__ import annotations

import math

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import Dim, DType
from vkmnn.ir.ops import AttentionAttrs, LinearAttentionAttrs, ReshapeAttrs, TransposeAttrs

_SWAP_HEADS = TransposeAttrs((0, 2, 1, 3))
_PAST_KEY = 4  # this input and those after it belong to key-value caches


@converter("Attention", since=23)
def _attention(node: NodeContext) -> None:
    """Without caches and windows it is the vocabulary's Attention.

    3-D operands hold the heads side by side in their last axis. Heads of keys and values that
    several queries share are repeated; the lowering reads them in place.
    """
    q, k, v, mask = (node.input(index) for index in range(4))
    plain = (
        len(node.inputs) <= _PAST_KEY
        and len(node.outputs) == 1
        and node.int("left_window_size", -1) == -1
        and node.int("right_window_size", -1) == -1
        and not node.has("softmax_precision")
    )
    shapes = [_known_shape(node, name) for name in (q, k, v)]
    if not plain or any(shape is None for shape in shapes):
        raise node.expand()
    q_shape, k_shape, v_shape = (shape or () for shape in shapes)
    split = len(q_shape) == 3
    q_heads = _size(node.int("q_num_heads", 0) if split else q_shape[1])
    k_heads = _size(node.int("kv_num_heads", 0) if split else k_shape[1])
    q_width, k_width, v_width = (_size(shape[-1]) for shape in (q_shape, k_shape, v_shape))
    if not (q_heads and k_heads and q_width) or q_heads % k_heads:
        raise node.expand()
    if q_heads != k_heads and not (k_width and v_width):
        raise node.expand()
    if mask and not _ends_in(node, mask, k_shape[-2]):
        raise node.expand()
    scale = node.float("scale", 1.0 / math.sqrt(q_width // q_heads if split else q_width))
    heads = (q_heads, k_heads, k_heads)
    operands = [
        by_head(node, name, count) if split else name
        for name, count in zip((q, k, v), heads, strict=True)
    ]
    if q_heads != k_heads:
        for place, width in ((1, k_width), (2, v_width)):
            depth = width // k_heads if split else width
            operands[place] = repeated(node, operands[place], q_heads, q_heads // k_heads, depth)
    if mask:
        operands.append(_additive(node, mask, node.dtype(q)))
    attrs = AttentionAttrs(scale, node.bool("is_causal"), softcap=node.float("softcap", 0.0))
    if not split:
        node.finish("Attention", operands, attrs)
        return
    y = node.emit("Attention", operands, attrs)
    y = node.emit("Transpose", [y], _SWAP_HEADS)
    node.finish("Reshape", [y, node.ints_constant([0, 0, -1])], ReshapeAttrs())


def _known_shape(node: NodeContext, name: str) -> tuple[Dim, ...] | None:
    info = node.info(name)
    return None if info is None else info.shape


def _size(dim: Dim) -> int:
    """Return a known size, else 0."""
    return dim if isinstance(dim, int) else 0


def _ends_in(node: NodeContext, mask: str, keys: Dim) -> bool:
    """True if the mask certainly covers every key; a shorter one would have to be padded."""
    shape = _known_shape(node, mask)
    return shape is not None and keys is not None and shape[-1:] == (keys,)


def by_head(node: NodeContext, name: str, heads: int) -> str:
    """[batch, length, heads · size] → [batch, heads, length, size]."""
    parts = node.emit("Reshape", [name, node.ints_constant([0, 0, heads, -1])], ReshapeAttrs())
    return node.emit("Transpose", [parts], _SWAP_HEADS)


def repeated(node: NodeContext, name: str, heads: int, times: int, depth: int) -> str:
    """Repeat each head in turn until there are `heads` of them, with rows of `depth`."""
    apart = node.emit("Unsqueeze", [name, node.ints_constant([2])])
    more = node.emit("Expand", [apart, node.ints_constant([1, 1, times, 1, 1])])
    return node.emit("Reshape", [more, node.ints_constant([0, heads, -1, depth])], ReshapeAttrs())


def _additive(node: NodeContext, mask: str, dtype: DType) -> str:
    """Convert a boolean mask, true for visible keys, into an additive one."""
    if node.dtype(mask) is not DType.BOOL:
        return mask
    zero, minus_infinity = node.constant(0, dtype), node.constant(-np.inf, dtype)
    return node.emit("Select", [mask, zero, minus_infinity])


_UPDATE_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}
"""Rules of LinearAttention: whether they have decays, and rates."""


@converter("LinearAttention", since=27)
def linear_attention(node: NodeContext) -> None:
    """Map to the vocabulary's op, unless the state has another element type."""
    rule = node.string("update_rule", "gated_delta")
    given = (bool(node.input(4)), bool(node.input(5)))
    if _UPDATE_RULES.get(rule) != given:
        raise node.unsupported(f"update_rule '{rule}' does not fit the inputs of the node")
    if len({node.dtype(name) for name in node.inputs if name}) > 1:
        raise node.expand()
    attrs = LinearAttentionAttrs(
        node.int("q_num_heads"), node.int("kv_num_heads"), node.float("scale", 0.0)
    )
    node.emit("LinearAttention", node.inputs, attrs, node.outputs)
