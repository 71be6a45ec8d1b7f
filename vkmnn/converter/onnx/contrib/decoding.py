"""DecoderMaskedMultiHeadAttention: onnxruntime's attention of one new row, with beams."""

from __future__ import annotations

import math

import numpy as np

from vkmnn.converter.onnx.contrib.attention import masks, with_bias
from vkmnn.converter.onnx.contrib.heads import (
    Scoring,
    attend,
    binary,
    counted,
    hidden,
    join_heads,
    known_depth,
    length,
    with_past,
)
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.attention import by_head
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import AxisAttrs, CastAttrs, ReshapeAttrs, ShapeAttrs, SplitAttrs

_MICROSOFT = "com.microsoft"


@converter("DecoderMaskedMultiHeadAttention", domain=_MICROSOFT)
def _decoder_attention(node: NodeContext) -> None:
    """Attention of one query row; key and value enter the caches, which beams read indirectly.

    Keys and values by head are those of another network (cross-attention), and all of them count.
    """
    heads, added = node.int("num_heads"), node.input(4)
    parts = _parts(node, heads)
    depth = known_depth(node, heads, parts[0])
    if node.input(10):
        parts = with_bias(node, parts, node.input(10), heads * depth)
    q, k, v = (x if node.rank(x) == 4 else by_head(node, x, heads) for x in parts)
    mask = ""
    if node.rank(parts[1]) == 4:
        mask = masks(node, (q, k), node.input(3), causal=False)
    elif node.bool("past_present_share_buffer"):
        place = _place(node)
        k, v = (_in_place(node, x, place, index) for x, index in ((k, 5), (v, 6)))
        k, v = (_of_beams(node, _counted(node, x, place), place) for x in (k, v))
        seen = binary(node, "LESS_EQUAL", counted(node, length(node, k, 2)), place)
        mask = hidden(node, seen, node.dtype(node.input(0)))
        if node.input(3):
            mask = binary(node, "ADD", masks(node, (q, k), node.input(3), causal=False), mask)
    else:
        if node.input(9):
            raise node.unsupported(
                "beam search needs preallocated caches: past_present_share_buffer"
            )
        k, v = with_past(node, node.input(5), k, 1), with_past(node, node.input(6), v, 2)
        mask = masks(node, (q, k), node.input(3), causal=False)
    scale = node.float("scale", 0.0) or 1.0 / math.sqrt(depth)
    told = node.output(3)
    if told and mask:  # these scores have the mask in them
        added, mask = binary(node, "ADD", added, mask) if added else mask, ""
    join_heads(node, attend(node, (q, k, v), mask, Scoring(scale, scores=told), added))


def _parts(node: NodeContext, heads: int) -> list[str]:
    """Return queries, keys and values, which may be packed."""
    if node.input(1) and node.input(2):
        return list(node.inputs[:3])
    if node.input(1) or node.input(2):
        raise node.unsupported("keys without values, or values without keys")
    depth = known_depth(node, heads, node.input(5))
    columns = node.shape(node.input(0))[-1]
    if not isinstance(columns, int) or columns <= 2 * heads * depth:
        raise node.unsupported("the widths of queries, keys and values are not known")
    width = heads * depth
    names = [node.new(name) for name in "qkv"]
    sizes = node.ints_constant([width, width, columns - 2 * width])
    node.emit("Split", [node.input(0), sizes], SplitAttrs(-1), names)
    return names


def _place(node: NodeContext) -> str:
    """Return the position of the new row, an int64 scalar."""
    if not (node.input(5) and node.input(6) and node.input(7)):
        raise node.unsupported("past_key, past_value and past_sequence_length are missing")
    wide = node.emit("Cast", [node.input(7)], CastAttrs(DType.INT64))
    return node.emit("Reshape", [wide, node.ints_constant([])], ReshapeAttrs())


def _in_place(node: NodeContext, new: str, place: str, index: int) -> str:
    """Return a cache with the new row in place, which is also an output of the node."""
    past = node.input(index)
    here = binary(node, "EQUAL", counted(node, length(node, past, 2)), place)
    here = node.emit("Unsqueeze", [here, node.ints_constant([1])])  # along the rows of a head
    wanted = node.output(index - 4)
    return node.emit("Select", [here, new, past], None, [wanted] if wanted else None)


def _counted(node: NodeContext, cache: str, place: str) -> str:
    """Return as many cache rows as the mask, or the attention bias, has."""
    told = node.input(3) or node.input(4)
    if told:
        end = node.emit("Shape", [told], ShapeAttrs(-1, None))
    elif node.output(3):
        end = binary(node, "ADD", place, node.ints_constant([1]))
    else:
        return cache
    return node.emit("Slice", [cache, node.ints_constant([0]), end, node.ints_constant([2])])


def _of_beams(node: NodeContext, cache: str, place: str) -> str:
    """Return the rows of each beam's history; the new row is its own.

    cache_indirection [batch, beams, length] gives, for each row, its beam of the sequence.
    """
    sources = node.input(9)
    if not sources:
        return cache
    beams = node.shape(sources)[1]
    if not isinstance(beams, int):
        raise node.unsupported("the number of beams is not known")
    rows = length(node, cache, 2)
    room = node.emit("Shape", [sources], ShapeAttrs(2, 3))
    pairs = node.emit("Concat", [node.ints_constant([-1]), room], AxisAttrs(0))
    flat = node.emit("Reshape", [sources, pairs], ReshapeAttrs())
    end = node.emit("Reshape", [rows, node.ints_constant([1])], ReshapeAttrs())
    zero, one = node.ints_constant([0]), node.ints_constant([1])
    flat = node.emit("Cast", [node.emit("Slice", [flat, zero, end, one])], CastAttrs(DType.INT64))
    every = node.emit("Unsqueeze", [counted(node, length(node, flat, 0)), one])
    size = node.constant(np.int64(beams))
    first = binary(node, "MUL", binary(node, "DIV", every, size), size)
    others = binary(node, "ADD", flat, first)
    own = binary(node, "EQUAL", counted(node, rows), place)
    chosen = node.emit("Select", [own, every, others])
    chosen = node.emit("Unsqueeze", [chosen, node.ints_constant([1, 3])])
    chosen = node.emit("Expand", [chosen, node.emit("Shape", [cache], ShapeAttrs())])
    return node.emit("GatherElements", [cache, chosen], AxisAttrs(0))
