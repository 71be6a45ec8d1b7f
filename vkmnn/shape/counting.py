"""Floating-point operations of an operator: for tuning, placement and reports."""

from __future__ import annotations

from vkmnn.ir import OP_TYPES, Op, TensorInfo
from vkmnn.shape.common import Infos


def flops(op: Op, inputs: Infos, outputs: list[TensorInfo]) -> int:
    """Return the number of floating-point operations of `op`, as its declaration counts them.

    Args:
        op: the operator.
        inputs: its inputs with static shapes; None = absent.
        outputs: its outputs, as from `compute_shapes`.
    """
    if not outputs:
        return 0
    shapes = [None if info is None else info.dims for info in inputs]
    return OP_TYPES[op.type].flops(op.attrs, shapes, outputs[0].dims)
