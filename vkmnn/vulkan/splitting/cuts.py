"""Splits an op along an axis: parts of its operands compute a part of its result.

The cuts follow from the axes that an op declares with its shape rule (`shape/axes`), except for ops
on views (`strided_cuts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, Op
from vkmnn.ir.ops import ReductionAttrs, StridedAttentionAttrs
from vkmnn.shape.axes import (
    Kind,
    Known,
    Loop,
    is_broadcast,
    loops_of,
    with_sizes,
)
from vkmnn.vulkan.splitting.pieces import Cut, Part, Piece, along
from vkmnn.vulkan.splitting.strided_cuts import attention_cuts

Operands = Sequence["Tensor | None"]


def find_cuts(op: Op[Any], inputs: Operands, outputs: Sequence[Tensor]) -> list[Cut]:
    """Return the cuts that follow from the loops of an op."""
    if isinstance(op.attrs, StridedAttentionAttrs):
        return attention_cuts(op)
    if op.type in _WHOLE or "" in op.outputs[: len(outputs)]:  # parts number their outputs
        return []
    known = Known(
        [None if tensor is None else tensor.shape for tensor in inputs],
        [tensor.shape for tensor in outputs],
        [None if tensor is None else tensor.value for tensor in inputs],
    )
    loops = loops_of(op, known)
    cuts = [_cut_along(op, loop, known) for loop in loops if _is_apart(loop)]
    if isinstance(op.attrs, ReductionAttrs):
        reduced = [loop.reads[0] for loop in loops if loop.kind is Kind.REDUCTION]
        axes = [axis for axis in reduced if axis is not None]
        cuts += [_in_two_steps(op, op.attrs, known, axes, axis) for axis in axes]
    return cuts


_WHOLE = frozenset({"Append", "UnpackRows"})
"""Ops on caches that stay in place."""


def _is_apart(loop: Loop) -> bool:
    """Return whether parts of an op along a loop compute parts of its results."""
    if loop.window is not None:
        return not loop.window.is_blind
    return loop.kind is Kind.PARALLEL and None not in loop.writes


def _cut_along(op: Op[Any], loop: Loop, known: Known) -> Cut:
    """Return the cut along a loop."""
    shapes = [_static(shape) for shape in known.inputs]
    results = [_static(shape) for shape in known.outputs]
    reads = {
        place: axis
        for place, axis in enumerate(loop.reads)
        if axis is not None and not (loop.size != 1 and is_broadcast(loop, place, shapes[place]))
    }
    writes = [axis for axis in loop.writes if axis is not None]
    size = loop.size
    assert isinstance(size, int)  # all shapes are static

    def ranged(shape: tuple[int, ...], axis: int, begin: int, end: int) -> Piece:
        times = shape[axis] // size if size else 1
        return along(shape, axis, begin * times, end * times)

    def part(begin: int, end: int) -> Part:
        taken: list[Piece | Array | None] = [None] * len(shapes)
        for place, axis in reads.items():
            if loop.window is not None and place == 0:
                taken[place] = along(shapes[0], axis, *loop.window.part(begin, end)[0])
            elif place in loop.longer:
                taken[place] = along(shapes[place], axis, begin, end)
            else:
                taken[place] = ranged(shapes[place], axis, begin, end)
        given = tuple(
            ranged(shape, axis, begin, end) for shape, axis in zip(results, writes, strict=True)
        )
        for place, content in with_sizes(op, known.values, given[0].shape).items():
            taken[place] = content
        return Part(loop.attrs(begin, end) if loop.attrs else op.attrs, tuple(taken), given)

    touched = frozenset(reads) | {len(shapes) + number for number in range(len(results))}
    unit = _unit(op, loop, shapes, results)
    return Cut(size, unit, writes[0], touched, part)


def _static(shape: Sequence[int | str | None] | None) -> tuple[int, ...]:
    """Return the static shape of a tensor; () for an absent one."""
    return tuple(dim for dim in shape or () if isinstance(dim, int))


COLUMNS = 32
"""Columns of a product are split at multiples of this, as its kernels require."""
_CHANNELS = frozenset({"Convolution", "Deconvolution", "GroupNorm", "GridSample"})
"""Ops whose kernels process channels in blocks of four."""
_PRODUCTS = frozenset(
    {"MatMul", "NormedMatMul", "QuantizedMatMul", "DynamicQuantizeMatMul", "MatMulNBits",
     "ExpertMatMul"}
)  # fmt: skip


def _unit(
    op: Op[Any],
    loop: Loop,
    shapes: Sequence[tuple[int, ...]],
    results: Sequence[tuple[int, ...]],
) -> int:
    """Return the multiple at which the parts of an op begin."""
    axis, size = loop.writes[0], max(1, loop.size if isinstance(loop.size, int) else 1)
    if op.type in _CHANNELS and axis == 1:
        own = loop.reads[0]
        taken = [] if own is None else [shapes[0][own] // size]
        return 4 // gcd(4, results[0][1] // size, *taken)
    columns = loop.reads[1] if len(loop.reads) > 1 else None
    last = axis == len(results[0]) - 1
    if op.type in _PRODUCTS and last and columns is not None and loop.reads[0] is None:
        return COLUMNS // max(1, shapes[1][columns] // size)
    return 1


_FIRST_STEPS: Mapping[str, str] = {"LOG_SUM": "SUM"}
"""First step of reductions whose parts compute another reduction."""
_LAST_STEPS: Mapping[str, str] = {"SUM_SQUARE": "SUM", "L1": "SUM"}
"""Second step of reductions whose parts are combined by another reduction."""


def _in_two_steps(
    op: Op[Any], attrs: ReductionAttrs, known: Known, axes: Sequence[int], axis: int
) -> Cut:
    """Split along a reduced axis: reduce the reductions of the parts."""
    shape = _static(known.inputs[0])
    first = replace(attrs, kind=_FIRST_STEPS.get(attrs.kind, attrs.kind), keepdims=True)
    made = tuple(1 if n in axes else length for n, length in enumerate(shape))

    def part(begin: int, end: int) -> Part:
        taken = along(shape, axis, begin, end)
        return Part(first, (taken, *[None] * (len(op.inputs) - 1)), (along(made, axis, 0, 1),))

    again = replace(attrs, kind=_LAST_STEPS.get(attrs.kind, attrs.kind))
    return Cut(shape[axis], 1, axis, frozenset({0}), part, again, equal=attrs.kind == "MEAN")
