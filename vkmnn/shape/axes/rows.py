"""Axes of ops that work along rows: reductions, softmax, norms, sorting, running sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vkmnn.ir import Op, OpAttrs
from vkmnn.ir.ops import (
    ArgReduceAttrs,
    GroupNormAttrs,
    LayerNormAttrs,
    RecurrentAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    TopKAttrs,
)
from vkmnn.shape.axes.elementwise import aligned
from vkmnn.shape.axes.loops import (
    Known,
    Loop,
    Numbering,
    axes_of,
    mixed,
    parallel,
    reduction,
)
from vkmnn.shape.common import has_input, int_list, int_scalar, normalize_axis
from vkmnn.shape.reduction import flatten_axis, reduction_axes


@axes_of("Reduction", numbering={1: Numbering.AXES})
def _reduction(op: Op[ReductionAttrs], known: Known) -> list[Loop]:
    attrs, shape = op.attrs, known.shape()
    given = int_list(known.values, 1, "axes") if has_input(known.inputs, 1) else None
    axes = reduction_axes(len(shape), given, noop_with_empty_axes=attrs.noop_with_empty_axes)
    kept = _kept(op, known, axes, attrs.keepdims)
    return [*kept, *(reduction(attrs.kind, shape[axis], [axis]) for axis in axes)]


@axes_of("ArgMax", "ArgMin", numbering={"axis": Numbering.AXES})
def _arg_reduce(op: Op[ArgReduceAttrs], known: Known) -> list[Loop]:
    attrs, shape = op.attrs, known.shape()
    axis = normalize_axis(attrs.axis, len(shape))
    return [*_kept(op, known, [axis], attrs.keepdims), mixed(shape[axis], [axis])]


def _kept(op: Op, known: Known, axes: Sequence[int], keepdims: bool) -> list[Loop]:
    """Return the loops over the axes that are not reduced."""
    return [
        parallel(size, [axis], axis if keepdims else axis - sum(n < axis for n in axes))
        for axis, size in enumerate(known.shape())
        if axis not in axes
    ]


@axes_of("DynamicRange")
def _dynamic_range(op: Op, known: Known) -> list[Loop]:
    return [mixed(size, [axis]) for axis, size in enumerate(known.shape())]


@axes_of("Softmax", numbering={"axis": Numbering.AXES})
def _softmax(op: Op[SoftmaxAttrs], known: Known) -> list[Loop]:
    attrs, shape = op.attrs, known.shape()
    if attrs.flatten:
        axes = range(flatten_axis(attrs.axis, len(shape)), len(shape))
    else:
        axis = normalize_axis(attrs.axis, len(shape)) if shape else 0
        axes = range(axis, axis + 1)
    return [
        reduction("LOG_SUM_EXP", size, [axis], axis)
        if axis in axes
        else parallel(size, [axis], axis)
        for axis, size in enumerate(shape)
    ]


def _along(known: Known, axis: int) -> list[Loop]:
    return [
        (mixed if own == axis else parallel)(size, [own], own)
        for own, size in enumerate(known.shape())
    ]


@axes_of("TopK", numbering={"axis": Numbering.AXES, 1: Numbering.KEPT})
def _top_k(op: Op[TopKAttrs], known: Known) -> list[Loop]:
    return _along(known, normalize_axis(op.attrs.axis, len(known.shape())))


@axes_of("SampleToken")
def _sample_token(op: Op, known: Known) -> list[Loop]:
    rows, tokens = known.shape()
    return [parallel(rows, [0, 0, 0], 0), mixed(tokens, [1, None, None], None)]


@axes_of("CumSum", "CumProd")
def _running(op: Op, known: Known) -> list[Loop]:
    return _along(known, normalize_axis(int_scalar(known.values, 1, "axis"), len(known.shape())))


@axes_of("LayerNorm")
def _layer_norm(op: Op[LayerNormAttrs], known: Known) -> list[Loop]:
    """Rows; the axes of a row are mixed."""
    shape = known.shape()
    rank = len(shape)
    first = normalize_axis(op.attrs.axis, rank)
    loops = []
    for axis in range(rank):
        # A bias may differ from row to row: it has all axes then.
        factors = [aligned(rank, factor, axis) for factor in known.inputs[1:]]
        if axis < first:
            given = zip(known.inputs[1:], factors, strict=True)
            own = [n if n is not None and f is not None and f[n] != 1 else None for f, n in given]
            loops.append(parallel(shape[axis], [axis, *own], axis))
        else:
            loops.append(mixed(shape[axis], [axis, *factors], (axis, None, None)))
    return loops


@axes_of("GroupNorm")
def _group_norm(op: Op[GroupNormAttrs], known: Known) -> list[Loop]:
    """Groups of channels, images."""
    attrs, shape = op.attrs, known.shape()

    def part(begin: int, end: int) -> OpAttrs:
        return replace(attrs, groups=end - begin if attrs.groups else 0)

    return [
        parallel(attrs.groups or shape[1], [1, 0, 0], 1, attrs=part),
        parallel(shape[0], [0], 0),
        *(mixed(shape[axis], [axis], axis) for axis in range(2, len(shape))),
    ]


@axes_of("LRN")
def _lrn(op: Op, known: Known) -> list[Loop]:
    return _along(known, 1)


@axes_of("Det")
def _det(op: Op, known: Known) -> list[Loop]:
    shape = known.shape()
    rank = len(shape)
    return [
        parallel(size, [axis], axis) if axis < rank - 2 else mixed(size, [axis])
        for axis, size in enumerate(shape)
    ]


@axes_of("DFT")
def _dft(op: Op, known: Known) -> list[Loop]:
    """All axes but that of the transform, and that of the parts of a number."""
    shape = known.shape()
    axes = normalize_axis(int_scalar(known.values, 1, "axis"), len(shape)), len(shape) - 1
    return [
        (mixed if axis in axes else parallel)(size, [axis], axis) for axis, size in enumerate(shape)
    ]


@axes_of("Recurrent")
def _recurrent(op: Op[RecurrentAttrs], known: Known) -> list[Loop]:
    """Sequences; each step continues from the one before."""
    shape, first = known.shape(), op.attrs.batch_first
    batch, time = (0, 1) if first else (1, 0)
    states = (0, 0) if first else (1, 1)
    every = (0, *states) if first else (2, *states)
    reads = [batch, None, None, 0, states[0], states[0]]
    return [
        parallel(shape[batch], reads, every),
        mixed(shape[time], [time], (time, None, None)),
    ]
