"""Gathering, scattering, one-hot."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, Spread


def indices(
    s: Sketch, size: int, shape: list[int] | tuple[int, ...], *, negative: bool = True
) -> Value:
    """Return indices of an axis, which may count from the back."""
    if size == 0 and int(np.prod(shape)):
        raise Skip
    spread = Spread(-size if negative and s.chance(0.4) else 0, max(0, size - 1))
    return s.fresh(s.choose("int64", "int64", "int32"), shape, spread)


@recipe("Gather")
def _gather(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1)
    axis = s.axis(x.rank)
    shape = s.choose([], [1], s.shape(max_rank=2), s.shape(max_rank=3))
    negative = s.since(11)
    picked = indices(s, x.shape[axis], shape, negative=negative)
    s.one(op, x, picked, axis=axis if negative else axis % x.rank)


@recipe("GatherElements")
def _gather_elements(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1)
    axis = s.axis(x.rank)
    shape = [s.rng.randint(min(1, size), size) for size in x.shape]
    shape[axis] = s.size(5)
    s.one(op, x, indices(s, x.shape[axis], shape), axis=axis)


def _tuples(s: Sketch, x: Value, batch: list[int], sizes: list[int], distinct: bool) -> Value:
    """Return rows of indices into axes of these sizes."""
    count = int(np.prod(batch))
    room = int(np.prod(sizes))
    if (room == 0 and count) or (distinct and count > room):
        raise Skip
    flat = (
        s.draws.permutation(room)[:count] if distinct else s.draws.integers(0, max(1, room), count)
    )
    rows = (
        np.stack(np.unravel_index(flat, sizes), -1)
        if sizes and count
        else np.zeros((count, len(sizes)), np.int64)
    )
    if s.chance(0.3) and rows.size:
        rows = np.where(s.draws.random(rows.shape) < 0.3, rows - np.array(sizes), rows)
    return s.parameter(rows.reshape(*batch, len(sizes)), constant=0.4)


@recipe("GatherND")
def _gather_nd(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1)
    batch_dims = s.rng.randint(0, min(2, x.rank - 1)) if s.since(12) and s.chance(0.4) else 0
    depth = s.rng.randint(1, x.rank - batch_dims)
    sizes = list(x.shape[batch_dims : batch_dims + depth])
    batch = [*x.shape[:batch_dims], *s.choose([], [s.size(5)], [s.size(3), s.size(3)])]
    rows = _tuples(s, x, batch, sizes, distinct=False)
    s.one(op, x, rows, batch_dims=batch_dims or None)


def _reduction(s: Sketch, *, min_opset: int) -> str | None:
    kinds: list[str | None] = [None, None, "none"]
    kinds += ["add", "mul"] if s.since(16) else []
    kinds += ["max", "min"] if s.since(18) else []
    return s.rng.choice(kinds) if s.since(min_opset) else None


@recipe("ScatterElements", "Scatter")
def _scatter_elements(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    axis = s.rng.randrange(x.rank)
    shape = [s.rng.randint(min(1, size), size) for size in x.shape]
    reduction = _reduction(s, min_opset=16) if op == "ScatterElements" else None
    if reduction in (None, "none") and s.chance(0.5):
        order = s.draws.permuted(
            np.broadcast_to(
                np.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.rank)]),
                [x.shape[a] if a == axis else shape[a] for a in range(x.rank)],
            ),
            axis=axis,
        )
        picked = s.parameter(np.take(order, np.arange(shape[axis]), axis), constant=0.4)
    else:
        picked = indices(s, x.shape[axis], shape)
    updates = s.pick(x.dtype, shape, spread=Spread(-2, 2, special=False))
    named = axis - (x.rank if s.since(11) and s.chance(0.3) else 0)
    attributes: dict[str, Any] = {"reduction": reduction} if reduction else {}
    s.one(op, x, picked, updates, axis=named, **attributes)


@recipe("ScatterND")
def _scatter_nd(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    depth = s.rng.randint(1, x.rank)
    reduction = _reduction(s, min_opset=16)
    plain = reduction in (None, "none")
    # Of repeated tuples the last remains; factors are few, so that products stay finite.
    batch = s.choose([s.size(5)], [s.size(3)], [2, 2])
    if reduction != "mul" and x.dtype != "float16" and s.chance(0.2):
        batch = s.within([s.choose(65, 130, 700), *x.shape[depth:]])[:1]
    distinct = plain and s.chance(0.5)
    rows = _tuples(s, x, batch, list(x.shape[:depth]), distinct=distinct)
    updates = s.pick(x.dtype, [*batch, *x.shape[depth:]], spread=Spread(-2, 2, special=False))
    s.one(op, x, rows, updates, reduction=reduction)


@recipe("OneHot")
def _one_hot(s: Sketch, op: str) -> None:
    depth = s.size(13)
    dtype = s.one_of(("int64", "int64", "int32", "float32"))
    shape = s.shape(max_rank=3)
    spread = Spread(-depth if s.since(11) else 0, depth, special=False)
    picked = s.fresh(dtype, shape, spread)
    if dtype == "float32":
        picked = s.parameter(picked.array.round(), dtype)
    values = s.weight(s.one_of(("float32", "int64", "int32")), [2], FINITE)
    axis = s.rng.randrange(-len(shape) - 1, len(shape) + 1)
    s.one(
        op,
        picked,
        s.parameter(s.choose(depth, [depth]), "int64"),
        values,
        axis=s.choose(None, axis),
    )
