"""Shapes of Recurrent and LinearAttention."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import (
    RECURRENT_ACTIVATIONS,
    RECURRENT_GATES,
    RECURRENT_KINDS,
    LinearAttentionAttrs,
    RecurrentAttrs,
)
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    check_shape,
    dtype_of,
    has_input,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import shape_rule

LENGTHS = 3
"""The input with the length of each sequence."""


@size_computer("Recurrent")
def _recurrent(op: Op[RecurrentAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs, gates, weights = op.attrs, shape_of(inputs, 0), shape_of(inputs, 1)
    _check(attrs, gates, weights)
    directions, hidden = attrs.directions, weights[-1]
    steps, batch = gates[1::-1] if attrs.batch_first else gates[:2]
    if attrs.batch_first:
        every, last = (batch, steps, directions, hidden), (batch, directions, hidden)
    else:
        every, last = (steps, directions, batch, hidden), (directions, batch, hidden)
    check_shape(inputs, 2, (directions, hidden), "bias")
    check_shape(inputs, LENGTHS, (batch,), "lengths of the sequences")
    check_shape(inputs, 4, last, "first hidden state")
    check_shape(inputs, 5, last, "first cell state")
    check_shape(inputs, 6, (directions, 3 * hidden), "peepholes")
    if has_input(inputs, LENGTHS) and dtype_of(inputs, LENGTHS) is not DType.INT32:
        raise ShapeError(f"lengths are {dtype_of(inputs, LENGTHS).value}, not int32")
    dtype = same_dtype(inputs, 0, 1, 2, 4, 5, 6)
    return [(dtype, every), (dtype, last), (dtype, last)]


def _check(attrs: RecurrentAttrs, gates: Shape, weights: Shape) -> None:
    count = RECURRENT_GATES.get(attrs.cell)
    if count is None:
        raise ShapeError(f"cell '{attrs.cell}' is unknown")
    directions = attrs.directions
    if len(attrs.activations) != directions * RECURRENT_ACTIVATIONS[attrs.cell]:
        raise ShapeError(f"{len(attrs.activations)} activations for {directions} directions")
    unknown = [one.kind for one in attrs.activations if one.kind not in RECURRENT_KINDS]
    if unknown:
        raise ShapeError(f"activation '{unknown[0]}' is unknown")
    if len(weights) != 3 or weights[:2] != (directions, count * weights[2]):
        raise ShapeError(
            f"recurrent weights {weights} are not [{directions}, {count} · hidden, hidden]"
        )
    if len(gates) != 3 or gates[2] != directions * weights[1]:
        raise ShapeError(f"gates {gates} of recurrent weights {weights}")


@shape_rule("Recurrent")
def _named_recurrent(op: Op[RecurrentAttrs], facts: Facts) -> list[Found]:
    attrs, gates, weights = op.attrs, facts.shape(op), facts.shape(op, 1)
    dtype = facts.dtype(op, 0, 1)
    if gates is None or weights is None or len(gates) != 3 or len(weights) != 3:
        return [(dtype, None)] * 3
    directions, hidden = attrs.directions, weights[-1]
    first, second = gates[:2]
    if attrs.batch_first:
        return _found(dtype, (first, second, directions, hidden), (first, directions, hidden))
    return _found(dtype, (first, directions, second, hidden), (directions, second, hidden))


def _found(dtype: DType | None, every: NamedShape, last: NamedShape) -> list[Found]:
    return [(dtype, every), (dtype, last), (dtype, last)]


@size_computer("LinearAttention")
def _linear_attention(op: Op[LinearAttentionAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    q, k, v = (shape_of(inputs, place) for place in range(3))
    readers, heads = attrs.query_heads, attrs.heads
    if heads < 1 or readers < 1 or readers % heads:
        raise ShapeError(f"{readers} heads of queries do not share {heads} heads of keys")
    if len(q) != 3 or q[2] % readers or len(v) != 3 or v[:2] != q[:2] or v[2] % heads:
        raise ShapeError(f"queries {q} and values {v} do not hold {readers} and {heads} heads")
    depth, width = q[2] // readers, v[2] // heads
    if k != (*q[:2], heads * depth):
        raise ShapeError(f"keys have shape {k}, expected {(*q[:2], heads * depth)}")
    state = (q[0], heads, depth, width)
    check_shape(inputs, 3, state, "first state")
    for place, columns, what in ((4, (heads, heads * depth), "decays"), (5, (heads, 1), "rates")):
        if has_input(inputs, place):
            given = shape_of(inputs, place)
            if len(given) != 3 or given[:2] != q[:2] or given[2] not in columns:
                raise ShapeError(f"{what} have shape {given}, which does not fit queries {q}")
    dtype = same_dtype(inputs, 0, 1, 2, 3, 4, 5)
    return [(dtype, (*q[:2], readers * width)), (dtype, state)]


@shape_rule("LinearAttention")
def _named_linear_attention(op: Op[LinearAttentionAttrs], facts: Facts) -> list[Found]:
    q, v, attrs = facts.shape(op), facts.shape(op, 2), op.attrs
    dtype = facts.dtype(op)
    depth = q[2] // attrs.query_heads if q and isinstance(q[2], int) else None
    width = v[2] // attrs.heads if v and isinstance(v[2], int) else None
    columns = None if width is None else attrs.query_heads * width
    images, steps = q[:2] if q else (None, None)
    return [(dtype, (images, steps, columns)), (dtype, (images, attrs.heads, depth, width))]
