"""Shapes of Recurrent."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import (
    RECURRENT_ACTIVATIONS,
    RECURRENT_GATES,
    RECURRENT_KINDS,
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
"""The input that says how long each sequence is."""


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
