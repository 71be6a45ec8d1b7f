"""Shapes of CachedAttention."""

from __future__ import annotations

from vkmnn.base.packed_rows import packed_words, row_elements
from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import CachedAttentionAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Values,
    check_broadcastable_to,
    check_shape,
    dtype_of,
    has_input,
    same_dtype,
    shape_of,
)
from vkmnn.shape.gathering import check_packed
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.rules import shape_rule


@size_computer("CachedAttention")
def _cached_attention(op: Op[CachedAttentionAttrs], inputs: Infos, values: Values) -> Outputs:
    q, k, v = _heads_first(op.attrs, inputs)
    keys, cached = shape_of(inputs, 5), shape_of(inputs, 6)
    if not len(q) == len(k) == len(v) == len(keys) == 4 or not k[1] or q[1] % k[1]:
        raise ShapeError(f"queries {q} and keys {k} are not rows of heads that share")
    if k != (q[0], k[1], *q[2:]) or v[:3] != k[:3]:
        raise ShapeError(f"keys {k} and values {v} do not fit the queries {q}")
    packing = op.attrs.packing
    depths = [packed_words(packing, x[3]) for x in (k, v)]
    if packing and any(x[3] % 4 for x in (k, v)):
        raise ShapeError(f"rows of {k[3]} and {v[3]} elements are not whole words of packed rows")
    check_shape(inputs, 5, (*k[:2], keys[2], depths[0]), "cache of keys")
    check_shape(inputs, 6, (*k[:2], keys[2], depths[1]), "cache of values")
    width = op.attrs.width
    if width % 2 or not 0 <= width <= q[3] or bool(width) != has_input(inputs, 3):
        raise ShapeError(f"{width} columns of {q} cannot be rotated")
    for index in (3, 4) if width else ():
        table = shape_of(inputs, index)
        rows = ((1, 1, q[2]), (q[0], 1, q[2]))
        if op.attrs.positions:
            rows = ((1, 1, keys[2]), (1, 1, keys[2]))
        if len(table) != 4 or table[:3] not in rows or table[3] not in (width, width // 2):
            raise ShapeError(f"the table {table} does not fit {width} columns of {q}")
    if width and shape_of(inputs, 3) != shape_of(inputs, 4):
        raise ShapeError("cosines and sines have different shapes")
    if shape_of(inputs, 7) not in ((), (1,), (q[0],)):
        raise ShapeError(f"{shape_of(inputs, 7)} are not the numbers of rows of {q[0]} caches")
    if has_input(inputs, 8):
        check_broadcastable_to(shape_of(inputs, 8), (*q[:3], keys[2]), "mask")
    if has_input(inputs, 9):
        check_shape(inputs, 9, (q[1], 1, 1), "sinks")
    for index in (10, 11):
        if has_input(inputs, index):
            check_shape(inputs, index, (q[3],), "factors of normalised rows")
    if has_input(inputs, 10) != has_input(inputs, 11):
        raise ShapeError("either queries or keys are normalised")
    given = [0, 5, 6] if op.attrs.layout == "packed" else [0, 1, 2, 5, 6]
    if packing:
        given = given[:-2]
        for place in (5, 6):
            check_packed(inputs, place)
    dtype = same_dtype(inputs, *given)
    y = (q[0], q[2], q[1], v[3]) if op.attrs.layout else (*q[:3], v[3])
    return [(dtype, y), (dtype_of(inputs, 5), keys), (dtype_of(inputs, 6), cached)]


def _heads_first(attrs: CachedAttentionAttrs, inputs: Infos) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of queries, keys and values as they are with `layout` ""."""
    if attrs.layout != "packed":
        found = (shape_of(inputs, place) for place in range(3))
        return tuple((x[0], x[2], x[1], x[3]) if attrs.layout else x for x in found)
    q, keys, cached = (shape_of(inputs, place) for place in (0, 5, 6))
    if len(q) != 3 or len(keys) != 4 or len(cached) != 4 or not keys[3]:
        raise ShapeError(f"{q} cannot be queries, keys and values for a cache {keys}")
    depth, columns = (row_elements(attrs.packing, cache[3]) for cache in (keys, cached))
    if depth < 1:
        raise ShapeError(f"{keys} is no cache of keys")
    heads, rest = divmod(q[2] - keys[1] * (depth + columns), depth)
    if rest or heads < 1:
        raise ShapeError(f"{q} cannot be queries, keys and values for a cache {keys}")
    rows = (q[0], heads, q[1], depth)
    return rows, (q[0], keys[1], q[1], depth), (q[0], keys[1], q[1], columns)


@shape_rule("CachedAttention")
def _named_cached_attention(op: Op[CachedAttentionAttrs], facts: Facts) -> list[Found]:
    q, cached = facts.shape(op), facts.shape(op, 6)
    dtype = facts.dtype(op)
    known = q is not None and cached is not None and op.attrs.layout != "packed"
    known = known and not op.attrs.packing
    y = (*q[:3], cached[3]) if known and q and cached else None
    caches = [(facts.dtype(op, place), facts.shape(op, place)) for place in (5, 6)]
    return [(dtype, y), *caches]
