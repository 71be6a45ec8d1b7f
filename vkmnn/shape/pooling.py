"""Shapes of Pooling."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import PoolingAttrs
from vkmnn.shape.common import Infos, Outputs, Values, dtype_of, shape_of
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape, known_ints
from vkmnn.shape.symbolic.rules import shape_rule
from vkmnn.shape.windows import named_windows, pool_window

POOLING_KINDS = ("MAX", "AVERAGE", "LP")


@size_computer("Pooling")
def _pooling(op: Op[PoolingAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
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


@shape_rule("Pooling")
def _named_pooling(op: Op[PoolingAttrs], facts: Facts) -> list[Found]:
    attrs, x = op.attrs, facts.shape(op)
    if x is None:
        output: NamedShape | None = None
    elif attrs.is_global:
        output = (*x[:2], *(1,) * (len(x) - 2))
    elif (spatial := known_ints(x[2:])) is not None:
        output = (*x[:2], *pool_window(attrs, spatial).output)
    else:
        ceil_mode = attrs.ceil_mode and attrs.auto_pad == "NOTSET"
        windows = named_windows(attrs, attrs.kernel, x[2:], facts.algebra, ceil_mode=ceil_mode)
        output = (*x[:2], *windows)
    return [(facts.dtype(op), output), (DType.INT64, output)]
