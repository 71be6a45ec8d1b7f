"""Reductions, arg-reductions, sorting, running sums."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vkmnn_suite.fuzz.recipes.movement import list_input
from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch
from vkmnn_suite.fuzz.values import ANY, DISTINCT, FINITE, POSITIVE, Spread

# Operator -> the opset from which its axes are an input, and the values that it accepts.
_REDUCTIONS: Mapping[str, tuple[int, Spread]] = {
    "ReduceSum": (13, FINITE),
    "ReduceMean": (18, FINITE),
    "ReduceMax": (18, ANY),
    "ReduceMin": (18, ANY),
    "ReduceProd": (18, Spread(-1.5, 1.5, special=False)),
    "ReduceL1": (18, FINITE),
    "ReduceL2": (18, FINITE),
    "ReduceLogSum": (18, POSITIVE),
    "ReduceLogSumExp": (18, FINITE),
    "ReduceSumSquare": (18, FINITE),
}

_FRACTIONAL = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


@recipe(*_REDUCTIONS)
def _reduce(s: Sketch, op: str) -> None:
    since, spread = _REDUCTIONS[op]
    dtype = s.dtype(op)
    if op in _FRACTIONAL and not dtype.startswith("float"):
        raise Skip  # what becomes of the fractions of integers is not said
    x = s.pick(dtype, spread=spread)
    keep = s.choose(None, 0, 1)
    if x.rank == 0 or s.chance(0.2):
        empty = s.choose(None, 0, 1) if s.since(since) else None
        axes = [s.parameter(np.zeros(0, np.int64))] if s.since(since) and s.chance(0.3) else []
        s.one(op, x, *axes, keepdims=keep, noop_with_empty_axes=empty)
        return
    axes_list = s.axes(x.rank)
    if not s.since(11):
        axes_list = [axis % x.rank for axis in axes_list]
    inputs, attributes = list_input(s, since, "axes", axes_list)
    s.one(op, x, *inputs, keepdims=keep, **attributes)


@recipe("ArgMax", "ArgMin")
def _arg_reduce(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    axis = s.axis(x.rank) if s.since(11) else s.rng.randrange(x.rank)
    last = s.choose(None, 0, 1) if s.since(12) else None
    s.one(op, x, axis=axis, keepdims=s.choose(None, 0, 1), select_last_index=last)


@recipe("TopK")
def _top_k(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=DISTINCT)
    if s.chance(0.2):  # lines from which a part is selected before it is sorted
        shape = s.within([s.choose(1, 2, 17), s.choose(130, 520, 1_031, 2_052)])
        x = s.fresh(x.dtype, shape[:: s.choose(1, -1)], DISTINCT)
    axis = s.axis(x.rank) if s.since(11) else s.rng.randrange(x.rank)
    k = s.rng.randint(min(1, x.shape[axis]), x.shape[axis])
    if not s.since(10):
        s.node(op, [x], 2, k=max(1, k), axis=axis)
        return
    largest = s.choose(None, 0, 1) if s.since(11) else None
    s.node(op, [x, s.parameter([k])], 2, axis=axis, largest=largest)


@recipe("CumSum")
def _cum_sum(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    axis = s.parameter(s.axis(x.rank), s.choose("int32", "int64"))
    s.one(op, x, axis, exclusive=s.choose(None, 0, 1), reverse=s.choose(None, 0, 1))


@recipe("CumProd")
def _cum_prod(s: Sketch, op: str) -> None:
    """Factors near 1: engines multiply in different orders."""
    shape = s.within([s.size(9) for _ in range(s.choose(1, 2, 3))])
    dtype = s.one_of(["float32", "int32", "int64"])
    x = s.pick(dtype, shape, spread=Spread(-1.2, 1.2, special=False))
    axis = s.parameter(s.axis(x.rank), s.choose("int32", "int64"))
    s.one(op, x, axis, exclusive=s.choose(None, 0, 1), reverse=s.choose(None, 0, 1))
