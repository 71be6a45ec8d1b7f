"""Attention of encoders and decoders in onnxruntime's domain, and rotary positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.contrib.heads import (
    Scoring,
    attend,
    binary,
    counted,
    hidden,
    join_heads,
    known_depth,
    length,
    part,
    rotated_width,
    table_rows,
    turned,
    with_past,
)
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.attention import by_head
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import AxisAttrs, CastAttrs, MatMulAttrs, ReshapeAttrs, ShapeAttrs, SplitAttrs

_MICROSOFT = "com.microsoft"
_PADDED = -10000.0  # onnxruntime's default of mask_filter_value


@converter("RotaryEmbedding", domain=_MICROSOFT)
def _rotary(node: NodeContext) -> None:
    """[batch, length, heads · depth] or [batch, heads, length, depth] (ContribOperators.md)."""
    x, positions, cos, sin = (node.input(index) for index in range(4))
    if node.float("scale", 1.0) != 1.0 or node.bool("is_packed_batching"):
        raise node.unsupported("scale and is_packed_batching are not supported")
    width, flat = rotated_width(node, cos), node.rank(x) == 3
    size = node.shape(x)[-1]
    heads = node.int("num_heads", 0)
    if flat and not heads:
        if not isinstance(size, int) or size % width:
            raise node.unsupported("num_heads is not given, and the width is not known")
        heads = size // width
    parts = by_head(node, x, heads) if flat else x
    if node.rank(positions) == 1:  # positions in the first row
        rows = counted(node, length(node, x, 1 if flat else 2))
        positions = node.emit("Unsqueeze", [binary(node, "ADD", positions, rows),
                                            node.ints_constant([0])])  # fmt: skip
    tables = [table_rows(node, table, positions) for table in (cos, sin)]
    y = turned(node, parts, tables, width, node.bool("interleaved"))
    if not flat:
        node.emit("Identity", [y], None, node.outputs)
        return
    join_heads(node, y)


# --- MultiHeadAttention and Attention ------------------------------------------------------------


@converter("MultiHeadAttention", domain=_MICROSOFT)
def _multi_head_attention(node: NodeContext) -> None:
    """Attention with separate or packed queries, keys and values."""
    heads = node.int("num_heads")
    padding, added, past_k, past_v = (node.input(n) for n in range(4, 8))
    if len(node.inputs) > 8:
        raise node.unsupported("preallocated caches, and beams, are not supported")
    given = _unpacked(node, heads)
    depth = known_depth(node, heads, given[0], past_k)
    parts = with_bias(node, given, node.input(3), heads * depth) if node.input(3) else given
    q, k, v = (by_head(node, x, heads) if node.rank(old) == 3 else x
               for x, old in zip(parts, given, strict=True))  # fmt: skip
    k, v = with_past(node, past_k, k, 1), with_past(node, past_v, v, 2)
    mask = masks(node, (q, k), padding, node.bool("unidirectional"))
    scale = node.float("scale", 0.0) or 1.0 / math.sqrt(depth)
    told = node.output(3)
    join_heads(node, attend(node, (q, k, v), mask, Scoring(scale, scores=told), added))


def _unpacked(node: NodeContext, heads: int) -> list[str]:
    """Return queries, keys and values, each [batch, length, heads · depth] or by head."""
    query, key, value = (node.input(n) for n in range(3))
    if key and value:
        if node.rank(query) != 3 or node.rank(key) not in (3, 4):
            raise node.unsupported("queries, keys and values of these ranks are not supported")
        return [query, key, value]
    packed = key or query
    if value or node.rank(packed) != 5:
        raise node.unsupported("keys without values, or values without keys, are not supported")
    count = 2 if key else 3
    depth = node.shape(packed)[-1]
    if not isinstance(depth, int):
        raise node.unsupported("the width of its heads is not known")
    names = [node.new(name) for name in "kv"] if key else [node.new(name) for name in "qkv"]
    node.emit("Split", [packed, node.ints_constant([1] * count)], SplitAttrs(3), names)
    flat = [
        node.emit("Reshape", [name, node.ints_constant([0, 0, heads * depth])], ReshapeAttrs())
        for name in names
    ]
    return [query, *flat] if key else flat


def with_bias(node: NodeContext, parts: list[str], bias: str, width: int) -> list[str]:
    """Add the bias to those of queries, keys and values that are not by head yet."""
    made = []
    shape = node.shape(bias)
    for place, name in enumerate(parts):
        end = shape[0] if place == 2 else (place + 1) * width
        if node.rank(name) == 4:
            made.append(name)  # keys and values of another network have had theirs
            continue
        if node.rank(name) != 3 or not isinstance(end, int):
            raise node.unsupported("a bias of this kind is not supported")
        made.append(binary(node, "ADD", name, part(node, bias, place * width, end)))
    return made


@converter("Attention", domain=_MICROSOFT)
def _packed_attention(node: NodeContext) -> None:
    """Attention with its input projection: BERT's and GPT-2's."""
    x, weight, bias, mask, past, added = (node.input(n) for n in range(6))
    if node.bool("do_rotary") or node.bool("past_present_share_buffer") or node.input(6):
        raise node.unsupported("do_rotary and past_present_share_buffer are not supported")
    sizes = node.ints("qkv_hidden_sizes", ()) or thirds(node, weight)
    product = node.emit("MatMul", [x, weight, *([bias] if bias else [])], MatMulAttrs())
    attend_packed(node, product, sizes, Given(mask, past, added))


def thirds(node: NodeContext, weight: str) -> tuple[int, ...]:
    """Return the widths of three parts that share the columns of a matrix; () if unknown."""
    columns = node.shape(weight)[-1]
    return (columns // 3,) * 3 if isinstance(columns, int) and columns % 3 == 0 else ()


@dataclass(frozen=True, slots=True)
class Given:
    """Optional tensors of attention in addition to queries, keys and values; "" if absent."""

    mask: str
    past: str
    added: str = ""


def attend_packed(node: NodeContext, product: str, sizes: Sequence[int], given: Given) -> None:
    """Compute attention of concatenated queries, keys and values of these widths.

    Raises:
        UnsupportedCaseError: the heads do not fit into the widths.
    """
    heads = node.int("num_heads")
    if len(sizes) != 3 or heads < 1 or any(size < 1 or size % heads for size in sizes):
        raise node.unsupported("the widths of queries, keys and values are not known")
    names = [node.new(name) for name in "qkv"]
    node.emit("Split", [product, node.ints_constant(sizes)], SplitAttrs(-1), names)
    q, k, v = (by_head(node, name, heads) for name in names)
    if given.past:
        olds = [node.new(name) for name in ("past_k", "past_v")]
        node.emit("Split", [given.past, node.ints_constant([1, 1])], SplitAttrs(0), olds)
        first = node.ints_constant([0])
        k, v = (
            node.emit("Concat", [node.emit("Squeeze", [old, first]), new], AxisAttrs(2))
            for old, new in zip(olds, (k, v), strict=True)
        )
    if node.output(1):
        both = [node.emit("Unsqueeze", [one, node.ints_constant([0])]) for one in (k, v)]
        node.emit("Concat", both, AxisAttrs(0), [node.output(1)])
    hiding = masks(node, (q, k), given.mask, node.bool("unidirectional"))
    scale = node.float("scale", 0.0) or 1.0 / math.sqrt(sizes[0] // heads)
    join_heads(node, attend(node, (q, k, v), hiding, Scoring(scale), given.added))


# --- masks -----------------------------------------------------------------------------------


def masks(node: NodeContext, operands: tuple[str, str], padding: str, causal: bool) -> str:
    """Return the additive mask of padding and causality; "" for none."""
    q, k = operands
    dtype = node.dtype(q)
    mask = ""
    if padding:
        kept = _kept(node, padding, k)
        fill = node.constant(node.float("mask_filter_value", _PADDED), dtype)
        mask = node.emit("Select", [kept, node.constant(0, dtype), fill])
    if causal:
        after = _triangle(node, q, k, dtype)
        mask = binary(node, "ADD", mask, after) if mask else after
    return mask


def _kept(node: NodeContext, padding: str, k: str) -> str:
    """Return where keys count, as booleans that broadcast to [batch, heads, rows, keys].

    Masks have an element for every key, for every key of every row, or are the numbers of keys.
    """
    rank = node.rank(padding)
    if rank in (2, 3):
        kept = node.emit("Cast", [padding], CastAttrs(DType.BOOL))
        return node.emit("Unsqueeze", [kept, node.ints_constant([1, 2] if rank == 2 else [1])])
    if rank != 1:
        raise node.unsupported(f"a mask of {rank} axes is not supported")
    batch, count = node.shape(node.input(0))[0], node.shape(padding)[0]
    places = counted(node, length(node, k, 2))
    sizes = node.emit("Cast", [padding], CastAttrs(DType.INT64))
    first = node.emit("Shape", [node.input(0)], ShapeAttrs(0, 1))
    kept = binary(node, "LESS", places, _bounds(node, sizes, node.ints_constant([0]), first))
    if count == batch:
        return kept
    if not (isinstance(batch, int) and isinstance(count, int)):
        raise node.unsupported(f"a mask of the shape [{count}] for a batch of {batch} is ambiguous")
    if count == 2 * batch and node.op == "Attention":
        after = _bounds(node, sizes, node.ints_constant([batch]), node.ints_constant([2 * batch]))
        return binary(node, "AND", kept, binary(node, "GREATER_EQUAL", places, after))
    if count != 3 * batch + 2:
        raise node.unsupported(f"a mask of the shape [{count}] for a batch of {batch}")
    return kept


def _bounds(node: NodeContext, sizes: str, start: str, end: str) -> str:
    """Return some of the numbers of a mask, [batch, 1, 1, 1]."""
    some = node.emit("Slice", [sizes, start, end])
    return node.emit("Reshape", [some, node.ints_constant([-1, 1, 1, 1])], ReshapeAttrs())


def _triangle(node: NodeContext, q: str, k: str, dtype: DType) -> str:
    """Return [length, keys] to add: the last row sees all keys, the one before it one fewer."""
    rows, keys = length(node, q, 2), length(node, k, 2)
    places = binary(node, "ADD", counted(node, rows), binary(node, "SUB", keys, rows))
    places = node.emit("Unsqueeze", [places, node.ints_constant([1])])
    return hidden(node, binary(node, "LESS_EQUAL", counted(node, keys), places), dtype)
