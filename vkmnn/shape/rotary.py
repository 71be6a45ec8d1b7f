"""Shapes of Rotary."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import RotaryAttrs
from vkmnn.shape.common import Infos, Outputs, Values, same_dtype, shape_of
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.rules import like_first, shape_rule


@size_computer("Rotary")
def _rotary(op: Op[RotaryAttrs], inputs: Infos, values: Values) -> Outputs:
    x, width = shape_of(inputs, 0), op.attrs.width
    if len(x) != 4 or width < 2 or width % 2 or width > x[-1]:
        raise ShapeError(f"{width} columns of {x} cannot be rotated")
    for index in (1, 2):
        table = shape_of(inputs, index)
        rows = ((1, 1, x[2]), (x[0], 1, x[2]))
        if len(table) != 4 or table[:3] not in rows or table[3] not in (width, width // 2):
            raise ShapeError(f"the table {table} does not fit {width} columns of {x}")
    if shape_of(inputs, 1) != shape_of(inputs, 2):
        raise ShapeError("cosines and sines have different shapes")
    return [(same_dtype(inputs, 0, 1, 2), x)]


shape_rule("Rotary")(like_first)
