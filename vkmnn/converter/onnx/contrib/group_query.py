"""GroupQueryAttention: onnxruntime's attention of language models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

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
from vkmnn.converter.onnx.ops.attention import by_head, repeated
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    CastAttrs,
    JoinPastAttrs,
    LayerNormAttrs,
    ReshapeAttrs,
    SplitAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_QUANTS = ("NONE", "PER_TENSOR", "PER_CHANNEL")
_MIDDLE = 8  # inputs of 4-bit caches in addition to their values


def _check_group_query(node: NodeContext) -> None:
    """Reject attributes that change results and are not supported."""
    if node.input(16):
        raise node.unsupported("its input query_seqlens is not supported")
    if node.bool("sliding_window_cache"):
        raise node.unsupported("sliding_window_cache is not supported")
    if node.output(3) and node.int("qk_output", 0) not in (1, 2):
        raise node.unsupported("qk_output does not define the content of the output of scores")
    if not node.input(5) or not node.input(6):
        raise node.unsupported("seqlens_k and total_sequence_length are missing")


@converter("GroupQueryAttention", domain=_MICROSOFT)
def _group_query_attention(node: NodeContext) -> None:
    """Append new keys after those of each sequence (JoinPast), by seqlens_k, and attend.

    A cache as long as the past grows; a longer one, of fixed capacity, keeps its size.
    """
    _check_group_query(node)
    heads, kv_heads = node.int("num_heads"), node.int("kv_num_heads")
    packed = not node.input(1)
    columns = heads + 2 * kv_heads if packed else heads
    depth = known_depth(node, columns, node.input(0), "" if _quantised(node) else node.input(3))
    parts = list(node.inputs[:3])
    if packed:
        sizes = node.ints_constant([heads * depth, kv_heads * depth, kv_heads * depth])
        parts = [node.new(name) for name in "qkv"]
        node.emit("Split", [node.input(0), sizes], SplitAttrs(-1), parts)
    q, k, v = (by_head(node, x, n) for x, n in zip(parts, (heads, kv_heads, kv_heads), strict=True))
    q, k = _normalised(node, q, 14, depth), _normalised(node, k, 15, depth)
    before = _once(node, "before", node.inputs[5:6], lambda: _before(node))
    places = _once(node, "places", node.inputs[5:6], lambda: _places(node, before))
    if node.bool("do_rotary"):
        given = [places, node.input(9), *(node.inputs[6:7] if node.input(9) else [])]
        positions = _once(node, "positions", given, lambda: _positions(node, places))
        width, turns = rotated_width(node, node.input(7)), node.bool("rotary_interleaved")
        tables = [
            _once(node, "rows", [table, positions], partial(table_rows, node, table, positions))
            for table in node.inputs[7:9]
        ]
        q, k = (turned(node, x, tables, width, turns) for x in (q, k))
    k, v = (_cached(node, x, before, which, depth) for x, which in ((k, "k"), (v, "v")))
    if heads != kv_heads:
        k, v = (repeated(node, x, heads, heads // kv_heads, depth) for x in (k, v))
    how = [f"{node.bool('causal', True)}", f"{node.int('local_window_size', -1)}"]
    dtype = node.dtype(node.input(0)).value
    mask = _once(node, "mask", [places, *node.inputs[5:7], *how, dtype],
                 lambda: _causal(node, places))  # fmt: skip
    y = attend(node, (q, k, v), mask, _scoring(node, depth), node.input(10))
    join_heads(node, y)


def _scoring(node: NodeContext, depth: int) -> Scoring:
    sink = node.input(11)
    if not sink and node.int("smooth_softmax", -1) > 0:
        sink = node.constant([0] * node.int("num_heads"), node.dtype(node.input(0)))
    told = ["", "", ""]
    told[node.int("qk_output", 0) if node.output(3) else 0] = node.output(3)
    return Scoring(
        node.float("scale", 0.0) or 1.0 / math.sqrt(depth),
        node.float("softcap", 0.0),
        sink,
        told[1],
        told[2],
    )


def _normalised(node: NodeContext, x: str, weight: int, depth: int) -> str:
    """Divide every head by its root mean square, if the node has a weight for that."""
    if not node.input(weight):
        return x
    if node.shape(node.input(weight)) != (depth,):
        raise node.unsupported(
            f"'{node.input(weight)}' does not hold the {depth} numbers of a head"
        )
    attrs = LayerNormAttrs(-1, node.float("qk_norm_epsilon", 1e-6), rms=True)
    return node.emit("LayerNorm", [x, node.input(weight)], attrs)


def _once(node: NodeContext, what: str, of: Sequence[str], make: Callable[[], str]) -> str:
    """Return a tensor that all layers share, created by the first one with as many rows.

    Values that are not known to be equal are computed again.
    """
    info = node.info(node.input(0))
    dims = (None,) if info is None or info.shape is None else info.shape[:2]
    if None in dims:
        return make()
    key = f"{node.op}:{what}:{dims}:{'|'.join(of)}"
    found = node.noted(key)
    if not isinstance(found, str):
        found = make()
        node.note(key, found)
    return found


# --- positions -----------------------------------------------------------------------------------


def _before(node: NodeContext) -> str:
    """Return [batch, 1]: the number of keys of each sequence before the new rows.

    Texts of a prompt that are shorter than it are padded on the right, so their first is the key 0.
    """
    count = length(node, node.input(0), 1)
    last = node.emit("Cast", [node.input(5)], CastAttrs(DType.INT64))
    last = node.emit("Reshape", [last, node.ints_constant([-1, 1])], ReshapeAttrs())
    before = binary(node, "SUB", last, binary(node, "SUB", count, node.constant(np.int64(1))))
    return binary(node, "MAX", before, node.constant(np.int64(0)))


def _places(node: NodeContext, before: str) -> str:
    """Return [batch, length]: the index of the key of each new row within its sequence."""
    return binary(node, "ADD", before, counted(node, length(node, node.input(0), 1)))


def _positions(node: NodeContext, places: str) -> str:
    """Return [batch, length]: the rows of the rotary tables.

    Given positions are used directly, except in a prompt without a past: there only the first
    counts, as in onnxruntime, and the others follow it.
    """
    given = node.input(9)
    if not given:
        return places
    count = length(node, node.input(0), 1)
    first = binary(node, "ADD", part(node, given, 0, 1), counted(node, count))
    total = _scalar(node, node.input(6))
    return node.emit("Select", [binary(node, "EQUAL", total, count), first, given])


def _scalar(node: NodeContext, name: str) -> str:
    total = node.emit("Cast", [name], CastAttrs(DType.INT64))
    return node.emit("Reshape", [total, node.ints_constant([])], ReshapeAttrs())


def _causal(node: NodeContext, places: str) -> str:
    """Return [batch, 1, length, keys] to add: every row sees itself and those before, or fewer."""
    keys = counted(node, _scalar(node, node.input(6)))
    rows = node.emit("Unsqueeze", [places, node.ints_constant([1, 3])])
    if not node.bool("causal", True):
        last = node.emit("Cast", [node.input(5)], CastAttrs(DType.INT64))
        rows = node.emit("Reshape", [last, node.ints_constant([-1, 1, 1, 1])], ReshapeAttrs())
    seen = binary(node, "LESS_EQUAL", keys, rows)
    window = node.int("local_window_size", -1)
    if window > 0:
        first = binary(node, "SUB", rows, node.constant(np.int64(window)))
        seen = binary(node, "AND", seen, binary(node, "GREATER", keys, first))
    return hidden(node, seen, node.dtype(node.input(0)))


# --- quantised caches ------------------------------------------------------------------------


def _quantised(node: NodeContext) -> bool:
    return any(node.string(f"{name}_quant_type", "NONE") != "NONE" for name in "kv")


def _joined(node: NodeContext, new: str, before: str, place: int) -> str:
    """Return the rows that attention reads; the whole cache is an output."""
    past, output = node.input(3 + place), 1 + place
    if not past:
        return with_past(node, "", new, output)
    seen = node.new("seen")
    total = _once(node, "total", node.inputs[6:7], lambda: _scalar(node, node.input(6)))
    node.emit("JoinPast", [past, new, before, total], JoinPastAttrs(), [node.output(output), seen])
    return seen


def _cached(node: NodeContext, new: str, before: str, which: str, depth: int) -> str:
    """Return old and new rows dequantised; the cache may be quantised to 8 or 4 bits."""
    place = "kv".index(which)
    if node.choice(f"{which}_quant_type", "NONE", _QUANTS) == "NONE":
        return _joined(node, new, before, place)
    bits = node.int("kv_cache_bit_width", 8)
    if bits not in (4, 8) or not node.input(12 + place):
        raise node.unsupported(f"a cache of {bits} bits, or one without scales, is not supported")
    dtype = node.dtype(node.input(0))
    scale = node.emit("Cast", [node.input(12 + place)], CastAttrs(dtype))
    if node.string(f"{which}_quant_type") == "PER_TENSOR":
        scale = node.emit("Reshape", [scale, node.ints_constant([])], ReshapeAttrs())
    else:
        heads = node.int("kv_num_heads")
        scale = node.emit("Reshape", [scale, node.ints_constant([1, heads, 1, -1])], ReshapeAttrs())
    codes = node.emit("UnaryOp", [binary(node, "DIV", new, scale)], UnaryAttrs("ROUND"))
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    codes = node.emit("UnaryOp", [codes], UnaryAttrs("CLIP", low, high))
    if bits == 8:
        codes = node.emit("Cast", [codes], CastAttrs(DType.INT8))
        whole = _joined(node, codes, before, place)
    else:
        whole = _joined(node, _packed(node, codes, depth), before, place)
        whole = _unpacked(node, whole, depth)
    return binary(node, "MUL", node.emit("Cast", [whole], CastAttrs(dtype)), scale)


def _packed(node: NodeContext, codes: str, depth: int) -> str:
    """Pack two 4-bit values into a byte, the first in the low bits."""
    if depth % 2:
        raise node.unsupported(f"caches of 4 bits with heads of {depth} are not supported")
    whole = node.emit("Cast", [codes], CastAttrs(DType.INT32))
    whole = binary(node, "ADD", whole, node.constant(_MIDDLE, DType.INT32))
    sizes = node.ints_constant([0, 0, 0, depth // 2, 2])
    pairs = node.emit("Reshape", [whole, sizes], ReshapeAttrs())
    high = binary(node, "MUL", part(node, pairs, 1, 2), node.constant(16, DType.INT32))
    both = binary(node, "ADD", part(node, pairs, 0, 1), high)
    both = node.emit("Reshape", [both, node.ints_constant([0, 0, 0, depth // 2])], ReshapeAttrs())
    return node.emit("Cast", [both], CastAttrs(DType.UINT8))


def _unpacked(node: NodeContext, codes: str, depth: int) -> str:
    """Unpack 4-bit values as integers."""
    wide = node.emit("Cast", [codes], CastAttrs(DType.INT32))
    wide = node.emit("Unsqueeze", [wide, node.ints_constant([-1])])
    low = binary(node, "BIT_AND", wide, node.constant(15, DType.INT32))
    high = binary(node, "DIV", wide, node.constant(16, DType.INT32))
    both = node.emit("Concat", [low, high], AxisAttrs(-1))
    both = node.emit("Reshape", [both, node.ints_constant([0, 0, 0, depth])], ReshapeAttrs())
    return binary(node, "SUB", both, node.constant(_MIDDLE, DType.INT32))
