"""Scaled dot-product attention: the plain form directly, all others through the function body."""

from __future__ import annotations

import math

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import Dim, DType
from vkmnn.ir.ops import AttentionAttrs, ReshapeAttrs, TransposeAttrs

_SWAP_HEADS = TransposeAttrs((0, 2, 1, 3))
_PAST_KEY = 4  # this input and those after it belong to key-value caches


@converter("Attention", since=23)
def _attention(node: NodeContext) -> None:
    """Without caches, windows, soft caps and shared key heads it is the vocabulary's Attention.

    3-D operands hold the heads side by side in their last axis.
    """
    q, k, v, mask = (node.input(index) for index in range(4))
    plain = (
        len(node.inputs) <= _PAST_KEY
        and len(node.outputs) == 1
        and node.float("softcap", 0.0) == 0.0
        and node.int("left_window_size", -1) == -1
        and node.int("right_window_size", -1) == -1
        and not node.has("softmax_precision")
    )
    shapes = [_known_shape(node, name) for name in (q, k, v)]
    if not plain or any(shape is None for shape in shapes):
        raise node.expand()
    q_shape, k_shape, _ = (shape or () for shape in shapes)
    split = len(q_shape) == 3
    q_heads = node.int("q_num_heads", 0) if split else q_shape[1]
    k_heads = node.int("kv_num_heads", 0) if split else k_shape[1]
    width = q_shape[-1]
    if q_heads != k_heads or not isinstance(q_heads, int) or not isinstance(width, int):
        raise node.expand()
    if mask and not _ends_in(node, mask, k_shape[-2]):
        raise node.expand()
    scale = node.float("scale", 1.0 / math.sqrt(width // q_heads if split else width))
    operands = [_by_head(node, name, q_heads) if split else name for name in (q, k, v)]
    if mask:
        operands.append(_additive(node, mask, node.dtype(q)))
    attrs = AttentionAttrs(scale, node.bool("is_causal"))
    if not split:
        node.finish("Attention", operands, attrs)
        return
    y = node.emit("Attention", operands, attrs)
    y = node.emit("Transpose", [y], _SWAP_HEADS)
    node.finish("Reshape", [y, node.ints_constant([0, 0, -1])], ReshapeAttrs())


def _known_shape(node: NodeContext, name: str) -> tuple[Dim, ...] | None:
    info = node.info(name)
    return None if info is None else info.shape


def _ends_in(node: NodeContext, mask: str, keys: Dim) -> bool:
    """True when the mask surely covers every key; a shorter one would have to be padded."""
    shape = _known_shape(node, mask)
    return shape is not None and keys is not None and shape[-1:] == (keys,)


def _by_head(node: NodeContext, name: str, heads: int) -> str:
    """[batch, length, heads · size] → [batch, heads, length, size]."""
    parts = node.emit("Reshape", [name, node.ints_constant([0, 0, heads, -1])], ReshapeAttrs())
    return node.emit("Transpose", [parts], _SWAP_HEADS)


def _additive(node: NodeContext, mask: str, dtype: DType) -> str:
    """Turn a mask that is true where a key takes part into one that is added to the scores."""
    if node.dtype(mask) is not DType.BOOL:
        return mask
    zero, minus_infinity = node.constant(0, dtype), node.constant(-np.inf, dtype)
    return node.emit("Select", [mask, zero, minus_infinity])
