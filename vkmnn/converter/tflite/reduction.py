"""Reductions, running sums, ArgMax and ArgMin."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.nodes import BOOL, FLOAT, INT32, INT64
from vkmnn.converter.tflite.nodes import LiteOp, reads

_REDUCTIONS = {
    "MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin", "REDUCE_PROD": "ReduceProd",
    "REDUCE_ANY": "ReduceMax", "REDUCE_ALL": "ReduceMin",
}  # fmt: skip


@reads(*_REDUCTIONS)
def reduction(op: LiteOp) -> None:
    """A reduction over the axes in the second input; an empty list of axes is no reduction."""
    op.need(2)
    truth = op.type in ("REDUCE_ANY", "REDUCE_ALL")
    x = op.cast(op.inputs[0], INT32) if truth else op.real(0)
    options: dict[str, Any] = {"keepdims": int(op.flag("keep_dims")), "noop_with_empty_axes": 1}
    whole = op.type == "MEAN" and op.type_of(x) != FLOAT
    x = op.cast(x, FLOAT) if whole else x
    made = op.make(_REDUCTIONS[op.type], x, op.vector(1), **options)
    if whole:  # integers are divided towards zero
        made = op.make("Mul", op.make("Sign", made), op.make("Floor", op.make("Abs", made)))
    op.give(op.cast(made, BOOL) if truth else made)


@reads("ARG_MAX", "ARG_MIN")
def places(op: LiteOp) -> None:
    """ArgMax and ArgMin along the axis in the second input."""
    op.need(2)
    (axis,) = op.settled(1, "an axis")[:1] or [0]
    kind = "ArgMax" if op.type == "ARG_MAX" else "ArgMin"
    x = op.inputs[0]
    if op.type_of(x) == BOOL:
        x = op.cast(x, INT32)
    op.give(op.make(kind, x, dtype=INT64, axis=axis, keepdims=0))


@reads("CUMSUM")
def running_sum(op: LiteOp) -> None:
    """CumSum along the axis in the second input."""
    op.need(2)
    axis = op.make("Reshape", op.inputs[1], op.constant([], np.int64))
    found = op.integers(1)
    if found is not None:
        axis = op.constant(found[0] if found else 0)
    options: dict[str, Any] = {name: int(op.flag(name)) for name in ("exclusive", "reverse")}
    op.give(op.make("CumSum", op.real(0), axis, **options))


@reads("TOPK_V2")
def largest(op: LiteOp) -> None:
    """TopK along the last axis, with int32 indices."""
    op.need(2, 2)
    values, indexes = op.make_several("TopK", 2, op.real(0), op.vector(1), axis=-1)
    op.scope.types[indexes] = INT64
    op.give(values)
    op.give(indexes, 1)


@reads("SEGMENT_SUM", "UNSORTED_SEGMENT_SUM")
def segment_sum(op: LiteOp) -> None:
    """ScatterND that adds rows to the segments that they belong to."""
    _segments(op, "add", 0.0)


@reads("UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN")
def segment_extreme(op: LiteOp) -> None:
    """ScatterND that multiplies rows, or keeps the largest or the smallest."""
    whole = op.type_of(op.inputs[0]) != FLOAT
    limits = np.iinfo(np.int32) if whole else np.finfo(np.float32)
    kind = op.type.rsplit("_", 1)[1]
    start = {"PROD": 1, "MAX": limits.min, "MIN": limits.max}[kind]
    _segments(op, {"PROD": "mul"}.get(kind, kind.lower()), start)


def _segments(op: LiteOp, reduction: str, start: float) -> None:
    op.need(2)
    x, ids = op.real(0), op.long(1)
    if op.has(2):
        count = op.vector(2)
    else:
        last = op.make("Gather", ids, op.constant([-1]), dtype=INT64)
        count = op.make("Add", last, op.constant([1]))
    rest = op.make("Shape", x, dtype=INT64, start=op.known_rank(1))
    shape = op.make("Concat", count, rest, axis=0)
    dtype = np.float32 if op.type_of(x) == FLOAT else np.int32
    zeros = op.make("Expand", op.constant(start, dtype), shape)
    rows = op.make("Unsqueeze", ids, op.constant([-1]))
    op.give(op.make("ScatterND", zeros, rows, x, reduction=reduction))
