"""Geometry of Reduction and Softmax: forms that a kernel over [outer, axis, inner] can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from vkmnn.geometry.narrow import widened
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.geometry.reshaping import emit_copy
from vkmnn.ir import TensorInfo
from vkmnn.ir.ops import ReductionAttrs, SoftmaxAttrs, TransposeAttrs, UnaryAttrs
from vkmnn.shape.reduction import flatten_axis, reduced_shape, reduction_axes

# A reduction over several runs of axes as reductions over one run each: the kinds of the first one,
# of those between and of the last one.
_CHAINS: dict[str, tuple[str, str, str]] = {
    "SUM": ("SUM", "SUM", "SUM"),
    "MEAN": ("MEAN", "MEAN", "MEAN"),
    "MAX": ("MAX", "MAX", "MAX"),
    "MIN": ("MIN", "MIN", "MIN"),
    "PROD": ("PROD", "PROD", "PROD"),
    "L1": ("L1", "SUM", "SUM"),
    "L2": ("L2", "L2", "L2"),
    "SUM_SQUARE": ("SUM_SQUARE", "SUM", "SUM"),
    "LOG_SUM": ("SUM", "SUM", "LOG_SUM"),
    "LOG_SUM_EXP": ("LOG_SUM_EXP", "LOG_SUM_EXP", "LOG_SUM_EXP"),
}

# Kinds whose intermediate results exceed the range of integers.
_INEXACT_IN_INTEGERS = frozenset({"MEAN", "L2", "LOG_SUM", "LOG_SUM_EXP"})

# Effect of a reduction over no axes on each element; the other kinds leave it unchanged.
_ELEMENTWISE = {"L1": "ABS", "L2": "ABS", "SUM_SQUARE": "SQUARE", "LOG_SUM": "LOG"}


@geometry("Reduction")
def _reduction(ctx: GeometryContext[ReductionAttrs]) -> None:
    if widened(ctx):
        return
    attrs = ctx.attrs
    source, output = ctx.input(0), ctx.outputs[0]
    shape = source.dims
    axes = reduction_axes(
        len(shape), ctx.ints(1, "axes"), noop_with_empty_axes=attrs.noop_with_empty_axes
    )
    if not axes:
        _elementwise(ctx, attrs.kind, source, output)
        return
    if axes[-1] - axes[0] + 1 == len(axes):
        return  # kernels execute one run of axes
    runs = _runs(shape, axes)
    integer = not source.dtype.is_float
    if prod(shape) == 0 or (integer and attrs.kind in _INEXACT_IN_INTEGERS):
        _transposed(ctx, attrs.kind, source, output, axes)
    else:
        _chained(ctx, attrs, source, output, runs)


def _elementwise(ctx: GeometryContext, kind: str, source: TensorInfo, output: TensorInfo) -> None:
    if kind in _ELEMENTWISE:
        ctx.emit("UnaryOp", [source.name], UnaryAttrs(_ELEMENTWISE[kind]), output)
    else:
        emit_copy(ctx, source, output)


def _runs(shape: tuple[int, ...], axes: Sequence[int]) -> list[list[int]]:
    """Return the axes as runs of neighbours; axes of size 1 in between are reduced along."""
    runs: list[list[int]] = []
    for axis in axes:
        if runs and all(dim == 1 for dim in shape[runs[-1][-1] + 1 : axis]):
            runs[-1].extend(range(runs[-1][-1] + 1, axis + 1))
        else:
            runs.append([axis])
    return runs


def _reduce(
    ctx: GeometryContext, kind: str, source: TensorInfo, axes: Sequence[int], output: TensorInfo
) -> None:
    """Emit one reduction that keeps the reduced axes if `output` has as many axes as `source`."""
    keepdims = len(output.dims) == len(source.dims)
    names = [source.name, ctx.constant(np.array(axes, np.int64))]
    ctx.emit("Reduction", names, ReductionAttrs(kind, keepdims), output)


def _chained(
    ctx: GeometryContext,
    attrs: ReductionAttrs,
    source: TensorInfo,
    output: TensorInfo,
    runs: list[list[int]],
) -> None:
    """Reduce run by run, the longest first, to shrink the tensor early."""
    runs = sorted(runs, key=lambda run: -prod(source.dims[axis] for axis in run))
    first, middle, last = _CHAINS[attrs.kind]
    kinds = [first, *[middle] * (len(runs) - 2), last] if len(runs) > 1 else [attrs.kind]
    current = source
    for number, (kind, run) in enumerate(zip(kinds, runs, strict=True), 1):
        is_result = number == len(runs) and attrs.keepdims
        shape = reduced_shape(current.dims, run, keepdims=True)
        reduced = output if is_result else ctx.temp(source.dtype, shape)
        _reduce(ctx, kind, current, run, reduced)
        current = reduced
    if not attrs.keepdims:
        emit_copy(ctx, current, output)


def _transposed(
    ctx: GeometryContext, kind: str, source: TensorInfo, output: TensorInfo, axes: Sequence[int]
) -> None:
    """Bring the reduced axes together at the end, and reduce once."""
    shape = source.dims
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    perm = (*kept, *axes)
    moved = ctx.temp(source.dtype, [shape[axis] for axis in perm])
    ctx.emit("Transpose", [source.name], TransposeAttrs(perm), moved)
    reduced = ctx.temp(source.dtype, [shape[axis] for axis in kept])
    _reduce(ctx, kind, moved, range(len(kept), len(shape)), reduced)
    emit_copy(ctx, reduced, output)


@geometry("Softmax")
def _softmax(ctx: GeometryContext[SoftmaxAttrs]) -> None:
    attrs = ctx.attrs
    source = ctx.input(0)
    if not attrs.flatten:
        return
    axis = flatten_axis(attrs.axis, len(source.dims))
    flat = (prod(source.dims[:axis]), prod(source.dims[axis:]))
    rows, result = ctx.temp(source.dtype, flat), ctx.temp(source.dtype, flat)
    emit_copy(ctx, source, rows)
    ctx.emit("Softmax", [rows.name], replace(attrs, axis=1, flatten=False), result)
    emit_copy(ctx, result, ctx.outputs[0])
