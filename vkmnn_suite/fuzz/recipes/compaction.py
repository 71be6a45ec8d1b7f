"""Operators whose results have sizes that depend on data; these stay the same from run to run."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.sketch import Sketch, Value


def _fixed(s: Sketch, dtype: str, shape: list[int], low: int, high: int) -> Value:
    """Return whole numbers that do not change from run to run."""
    values = s.draws.integers(low, high + 1, shape)
    return s.parameter(values.astype(dtype), dtype, constant=0.2)


@recipe("NonZero")
def _non_zero(s: Sketch, op: str) -> None:
    dtype = s.choose("float32", "int64", "bool", "int32", "uint8")
    most = s.choose(0, 1, 1, 3)
    s.one(op, _fixed(s, dtype, s.shape(min_rank=1, max_rank=4), 0, most))


@recipe("Compress")
def _compress(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1)
    axis = s.choose(None, s.axis(x.rank)) if s.since(11) else s.choose(None, 0)
    extent = x.array.size if axis is None else x.shape[axis]
    length = s.rng.randint(0, min(extent, 300))
    s.one(op, x, _fixed(s, "bool", [length], 0, 1), axis=axis)


@recipe("Unique")
def _unique(s: Sketch, op: str) -> None:
    shape = s.shape(min_rank=1, max_rank=3)
    in_order = s.choose(None, 0, 1)
    # The reference evaluator gets unsorted results wrong, and onnxruntime supports few types.
    dtype = s.choose("float32", "int64", *(() if in_order == 0 else ("int32", "int16")))
    x = _fixed(s, dtype, shape, -3, s.choose(3, 30))
    axis = s.axis(len(shape)) if (len(shape) == 1 or in_order != 0) and s.chance(0.5) else None
    s.node(op, [x], s.choose(1, 2, 4), axis=axis, sorted=in_order)


@recipe("TensorScatter")
def _tensor_scatter(s: Sketch, op: str) -> None:
    past = s.pick(s.dtype(op), min_rank=2, max_rank=4)
    axis = s.rng.randrange(1, past.rank)
    shape = list(past.shape)
    shape[axis] = s.rng.randint(min(1, shape[axis]), shape[axis])
    room = past.shape[axis] - shape[axis]
    ring = s.chance(0.4)
    starts = s.draws.integers(0, (past.shape[axis] if ring else room + 1) or 1, [past.shape[0]])
    update = s.pick(past.dtype, shape)
    where = s.parameter(np.asarray(starts), constant=0.3) if s.chance(0.8) else None
    mode = "circular" if ring else s.choose(None, "linear")
    s.one(op, past, update, where, mode=mode, axis=s.choose(axis, axis - past.rank))


@recipe("MaxUnpool")
def _max_unpool(s: Sketch, op: str) -> None:
    extents = [s.choose(1, 2, 3) for _ in range(s.choose(1, 2, 3))]
    shape = [s.choose(1, 2), s.choose(1, 3), *(2 * extent + s.size(5) for extent in extents)]
    x = s.parameter(s.draws.permutation(int(np.prod(shape))).reshape(shape), "float32", 0.2)
    windows: dict[str, Any] = {"kernel_shape": extents, "strides": extents}
    values, places = s.node("MaxPool", [x], 2, **windows)
    # The indices of MaxPool are positions in its input.
    given = s.parameter(shape) if s.chance(0.4) else None
    s.one(op, values, places, given, **windows)
