"""Shapes of Pooling."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import PoolingAttrs
from vkmnn.shape.common import Infos, Outputs, Values, attrs_of, dtype_of, shape_of
from vkmnn.shape.registry import size_computer
from vkmnn.shape.windows import pool_window

POOLING_KINDS = ("MAX", "AVERAGE", "LP")


@size_computer("Pooling")
def _pooling(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs = attrs_of(op, PoolingAttrs)
    if attrs.kind not in POOLING_KINDS:
        raise ShapeError(f"pooling kind '{attrs.kind}' is not one of {', '.join(POOLING_KINDS)}")
    x = shape_of(inputs, 0)
    if len(x) < 3 and not (attrs.is_global and len(x) == 2):
        raise ShapeError(f"pooling needs a batch, a channel and a spatial axis, got shape {x}")
    output = (*x[:2], *pool_window(attrs, x[2:]).output)
    outputs = [(dtype_of(inputs, 0), output)]
    if attrs.kind == "MAX":
        outputs.append((DType.INT64, output))
    return outputs
