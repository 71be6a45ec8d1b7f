"""Attention of language models in onnxruntime's domain: with caches, rotary positions, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkmnn.converter.onnx.attention import by_head, repeated
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AttentionAttrs,
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    MatMulAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TransposeAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_SWAP_HEADS = TransposeAttrs((0, 2, 1, 3))
_PADDED = -10000.0  # onnxruntime's default of mask_filter_value


def _known_depth(node: NodeContext, heads: int, *candidates: str) -> int:
    """Return the width of a head from the first 3-D or 4-D tensor whose last size is known.

    Raises:
        UnsupportedCaseError: no size is known, or the heads do not fit into it.
    """
    for name in candidates:
        info = node.info(name) if name else None
        if info is None or info.shape is None or not isinstance(info.shape[-1], int):
            continue
        width = info.shape[-1]
        if len(info.shape) == 4:
            return width
        if heads < 1 or width % heads:
            raise node.unsupported(f"{width} columns cannot be cut into {heads} heads")
        return width // heads
    raise node.unsupported("the width of its heads is not known")


def _binary(node: NodeContext, kind: str, first: str, second: str) -> str:
    return node.emit("BinaryOp", [first, second], BinaryAttrs(kind))


def _range(node: NodeContext, count: str) -> str:
    """Return 0, 1, … up to a scalar."""
    zero, one = node.constant(np.int64(0)), node.constant(np.int64(1))
    return node.emit("Range", [zero, count, one])


def _length(node: NodeContext, name: str, axis: int) -> str:
    """Return one size of a tensor as an int64 scalar."""
    size = node.emit("Shape", [name], ShapeAttrs(axis, axis + 1))
    return node.emit("Reshape", [size, node.ints_constant([])], ReshapeAttrs())


def _part(node: NodeContext, x: str, start: int, end: int) -> str:
    """Return columns of the last axis."""
    bounds = [node.ints_constant([value]) for value in (start, end, -1)]
    return node.emit("Slice", [x, *bounds])


# --- rotary positions ----------------------------------------------------------------------------


def _turned(
    node: NodeContext, x: str, tables: Sequence[str], depth: int, width: int, interleaved: bool
) -> str:
    """Turn pairs of columns of [batch, heads, length, depth]; the tables have `width` / 2 of them.

    Columns beyond `width` stay. Pairs lie half of `width` apart, or side by side.
    """
    cos, sin = tables
    head = x if width == depth else _part(node, x, 0, width)
    if interleaved:
        pairs = node.emit(
            "Reshape", [head, node.ints_constant([0, 0, 0, width // 2, 2])], ReshapeAttrs()
        )
        first, second = _part(node, pairs, 0, 1), _part(node, pairs, 1, 2)
        cos, sin = (node.emit("Unsqueeze", [t, node.ints_constant([-1])]) for t in (cos, sin))
    else:
        first, second = _part(node, head, 0, width // 2), _part(node, head, width // 2, width)
    real = _binary(node, "SUB", _binary(node, "MUL", first, cos), _binary(node, "MUL", second, sin))
    other = _binary(
        node, "ADD", _binary(node, "MUL", first, sin), _binary(node, "MUL", second, cos)
    )
    y = node.emit("Concat", [real, other], AxisAttrs(-1))
    if interleaved:
        y = node.emit("Reshape", [y, node.ints_constant([0, 0, 0, -1])], ReshapeAttrs())
    if width == depth:
        return y
    return node.emit("Concat", [y, _part(node, x, width, depth)], AxisAttrs(-1))


def _table_rows(node: NodeContext, table: str, positions: str) -> str:
    """Return [batch, 1, length, width / 2]: the table's row at every position."""
    rows = node.emit("Gather", [table, positions], AxisAttrs(0))
    return node.emit("Unsqueeze", [rows, node.ints_constant([1])])


def _rotated_width(node: NodeContext, table: str) -> int:
    half = node.shape(table)[-1]
    if not isinstance(half, int):
        raise node.unsupported(f"the width of '{table}' is not known")
    return 2 * half


@converter("RotaryEmbedding", domain=_MICROSOFT)
def _rotary(node: NodeContext) -> None:
    """[batch, length, heads · depth] or [batch, heads, length, depth] (ContribOperators.md)."""
    x, positions, cos, sin = (node.input(index) for index in range(4))
    if node.float("scale", 1.0) != 1.0 or node.bool("is_packed_batching"):
        raise node.unsupported("scale and is_packed_batching are not supported")
    width, flat = _rotated_width(node, cos), node.rank(x) == 3
    size = node.shape(x)[-1]
    heads = node.int("num_heads", 0)
    if flat and not heads:
        if not isinstance(size, int) or size % width:
            raise node.unsupported("num_heads is not given, and the width is not known")
        heads = size // width
    depth = _known_depth(node, heads, x)
    parts = by_head(node, x, heads) if flat else x
    if node.rank(positions) == 1:  # where the first row stands
        rows = _range(node, _length(node, x, 1 if flat else 2))
        positions = node.emit("Unsqueeze", [_binary(node, "ADD", positions, rows),
                                            node.ints_constant([0])])  # fmt: skip
    tables = [_table_rows(node, table, positions) for table in (cos, sin)]
    y = _turned(node, parts, tables, depth, width, node.bool("interleaved"))
    if not flat:
        node.emit("Identity", [y], None, node.outputs)
        return
    _join_heads(node, y)


def _join_heads(node: NodeContext, y: str) -> None:
    """Finish with [batch, length, heads · depth]."""
    y = node.emit("Transpose", [y], _SWAP_HEADS)
    node.finish("Reshape", [y, node.ints_constant([0, 0, -1])], ReshapeAttrs())


# --- scores and what is seen ---------------------------------------------------------------------


def _with_past(node: NodeContext, past: str, new: str, output: int) -> str:
    """Return old and new rows, which are also an output of the node where it has one."""
    wanted = [node.output(output)] if node.output(output) else None
    if past:
        return node.emit("Concat", [past, new], AxisAttrs(2), wanted)
    return node.emit("Identity", [new], None, wanted) if wanted else new


def _attend(
    node: NodeContext, operands: Sequence[str], mask: str, scale: float, softcap: float = 0.0
) -> str:
    """Return attention; with a soft cap, spelled out."""
    q, k, v = operands
    masks = [mask] if mask else []
    if not softcap:
        attrs = AttentionAttrs(scale, zero_fully_masked=False)
        return node.emit("Attention", [q, k, v, *masks], attrs)
    dtype = node.dtype(node.input(0))
    scores = node.emit("MatMul", [q, k], MatMulAttrs(transpose_b=True, alpha=scale / softcap))
    scores = node.emit("UnaryOp", [scores], UnaryAttrs("TANH"))
    scores = _binary(node, "MUL", scores, node.constant(softcap, dtype))
    if mask:
        scores = _binary(node, "ADD", scores, mask)
    return node.emit("MatMul", [node.emit("Softmax", [scores], SoftmaxAttrs(-1)), v], MatMulAttrs())


def _hidden(node: NodeContext, seen: str, dtype: DType) -> str:
    """Return what is added to scores: 0 where a key is seen, -inf elsewhere."""
    zero, hidden = node.constant(0, dtype), node.constant(-np.inf, dtype)
    return node.emit("Select", [seen, zero, hidden])


# --- GroupQueryAttention -------------------------------------------------------------------------

_REFUSED_INPUTS = {11: "head_sink", 12: "k_scale", 13: "v_scale", 14: "q_norm_weight",
                   15: "k_norm_weight"}  # fmt: skip


def _check_group_query(node: NodeContext) -> None:
    """Refuse what changes results and is not written here."""
    for index, name in _REFUSED_INPUTS.items():
        if node.input(index):
            raise node.unsupported(f"its input {name} is not supported")
    for name, usual in (("smooth_softmax", 0), ("qk_output", 0), ("sliding_window_cache", 0)):
        if max(node.int(name, usual), 0) != 0:
            raise node.unsupported(f"{name} is not supported")
    if node.output(3):
        raise node.unsupported("its output of scores is not supported")
    if not node.input(5) or not node.input(6):
        raise node.unsupported("seqlens_k and total_sequence_length are missing")


@converter("GroupQueryAttention", domain=_MICROSOFT)
def _group_query_attention(node: NodeContext) -> None:
    """Caches hold what went before, and no more: one longer than that is a ShapeError at planning.

    Rows of a batch that are shorter have fewer keys (seqlens_k), and begin with the first.
    """
    _check_group_query(node)
    heads, kv_heads = node.int("num_heads"), node.int("kv_num_heads")
    packed = not node.input(1)
    columns = heads + 2 * kv_heads if packed else heads
    depth = _known_depth(node, columns, node.input(0), node.input(3))
    parts = list(node.inputs[:3])
    if packed:
        sizes = node.ints_constant([heads * depth, kv_heads * depth, kv_heads * depth])
        parts = [node.new(name) for name in "qkv"]
        node.emit("Split", [node.input(0), sizes], SplitAttrs(-1), parts)
    q, k, v = (by_head(node, x, n) for x, n in zip(parts, (heads, kv_heads, kv_heads), strict=True))
    places = _places(node)
    if node.bool("do_rotary"):
        positions = node.input(9) or places
        width, turns = _rotated_width(node, node.input(7)), node.bool("rotary_interleaved")
        tables = [_table_rows(node, node.input(index), positions) for index in (7, 8)]
        q, k = (_turned(node, x, tables, depth, width, turns) for x in (q, k))
    k, v = _with_past(node, node.input(3), k, 1), _with_past(node, node.input(4), v, 2)
    mask = _causal(node, places)
    if node.input(10):
        mask = _binary(node, "ADD", node.input(10), mask)
    if heads != kv_heads:
        k, v = (repeated(node, x, heads, heads // kv_heads, depth) for x in (k, v))
    scale = node.float("scale", 0.0) or 1.0 / math.sqrt(depth)
    _join_heads(node, _attend(node, (q, k, v), mask, scale, node.float("softcap", 0.0)))


def _places(node: NodeContext) -> str:
    """Return [batch, length]: which key every new row is, counted from the first of its batch."""
    length = _length(node, node.input(0), 1)
    last = node.emit("Cast", [node.input(5)], CastAttrs(DType.INT64))
    last = node.emit("Reshape", [last, node.ints_constant([-1, 1])], ReshapeAttrs())
    before = _binary(node, "SUB", last, _binary(node, "SUB", length, node.constant(np.int64(1))))
    return _binary(node, "ADD", before, _range(node, length))


def _causal(node: NodeContext, places: str) -> str:
    """Return [batch, 1, length, keys] to add: every row sees itself and those before, or fewer."""
    total = node.emit("Cast", [node.input(6)], CastAttrs(DType.INT64))
    total = node.emit("Reshape", [total, node.ints_constant([])], ReshapeAttrs())
    keys = _range(node, total)
    rows = node.emit("Unsqueeze", [places, node.ints_constant([1, 3])])
    if not node.bool("causal", True):
        last = node.emit("Cast", [node.input(5)], CastAttrs(DType.INT64))
        rows = node.emit("Reshape", [last, node.ints_constant([-1, 1, 1, 1])], ReshapeAttrs())
    seen = _binary(node, "LESS_EQUAL", keys, rows)
    window = node.int("local_window_size", -1)
    if window > 0:
        first = _binary(node, "SUB", rows, node.constant(np.int64(window)))
        seen = _binary(node, "AND", seen, _binary(node, "GREATER", keys, first))
    return _hidden(node, seen, node.dtype(node.input(0)))


# --- MultiHeadAttention --------------------------------------------------------------------------


@converter("MultiHeadAttention", domain=_MICROSOFT)
def _multi_head_attention(node: NodeContext) -> None:
    """Query, key and value apart; keys and values of cross-attention may come by head."""
    heads = node.int("num_heads")
    query, key, value, bias, padding, added, past_k, past_v = (node.input(n) for n in range(8))
    if not key or not value or node.rank(query) != 3 or node.rank(key) not in (3, 4):
        raise node.unsupported("packed queries, keys and values are not supported")
    if len(node.inputs) > 8 or node.output(3):
        raise node.unsupported("caches of decoder steps and an output of scores are not supported")
    if padding and node.rank(padding) != 2:
        raise node.unsupported("a padding mask of this kind is not supported")
    depth = _known_depth(node, heads, query, past_k)
    parts = [query, key, value]
    if bias:
        parts = _with_bias(node, parts, bias, heads * depth)
    operands = [by_head(node, x, heads) if node.rank(given) == 3 else x
                for x, given in zip(parts, (query, key, value), strict=True)]  # fmt: skip
    q, k, v = operands
    k, v = _with_past(node, past_k, k, 1), _with_past(node, past_v, v, 2)
    dtype = node.dtype(query)
    masks = [added] if added else []
    if padding:
        kept = node.emit("Cast", [padding], CastAttrs(DType.BOOL))
        kept = node.emit("Unsqueeze", [kept, node.ints_constant([1, 2])])
        fill = node.constant(node.float("mask_filter_value", _PADDED), dtype)
        masks.append(node.emit("Select", [kept, node.constant(0, dtype), fill]))
    if node.bool("unidirectional"):
        masks.append(_triangle(node, q, k, dtype))
    mask = ""
    for one in masks:
        mask = _binary(node, "ADD", mask, one) if mask else one
    scale = node.float("scale", 0.0) or 1.0 / math.sqrt(depth)
    _join_heads(node, _attend(node, (q, k, v), mask, scale))


def _with_bias(node: NodeContext, parts: list[str], bias: str, width: int) -> list[str]:
    """Add the parts of the bias to what is not by head yet."""
    made = []
    shape = node.shape(bias)
    for place, name in enumerate(parts):
        end = shape[0] if place == 2 else (place + 1) * width
        if node.rank(name) != 3 or not isinstance(end, int):
            raise node.unsupported("a bias of this kind is not supported")
        made.append(_binary(node, "ADD", name, _part(node, bias, place * width, end)))
    return made


def _triangle(node: NodeContext, q: str, k: str, dtype: DType) -> str:
    """Return [length, keys] to add: the last row sees all keys, the one before it one fewer."""
    length, keys = _length(node, q, 2), _length(node, k, 2)
    rows = _binary(node, "ADD", _range(node, length), _binary(node, "SUB", keys, length))
    rows = node.emit("Unsqueeze", [rows, node.ints_constant([1])])
    return _hidden(node, _binary(node, "LESS_EQUAL", _range(node, keys), rows), dtype)
