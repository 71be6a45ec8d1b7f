"""Shapes of operators that work along axes: reductions, softmax, extrema, sorting, running sums."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import (
    REDUCTION_KINDS,
    ArgReduceAttrs,
    CumSumAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    TopKAttrs,
)
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    attrs_of,
    dtype_of,
    has_input,
    int_list,
    int_scalar,
    normalize_axes,
    normalize_axis,
    shape_of,
)
from vkmnn.shape.registry import size_computer


def reduction_axes(
    rank: int, axes: Sequence[int] | None, *, noop_with_empty_axes: bool = False
) -> tuple[int, ...]:
    """Return the axes to reduce, sorted and counted from the front; absent or empty means all.

    Raises:
        ShapeError: an axis is out of range or given twice.
    """
    if not axes:
        return () if noop_with_empty_axes else tuple(range(rank))
    return tuple(sorted(normalize_axes(axes, rank)))


def reduced_shape(shape: Shape, axes: Sequence[int], *, keepdims: bool) -> Shape:
    """Return `shape` with `axes` (counted from the front) removed, or set to 1 with `keepdims`."""
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


@size_computer("Reduction")
def _reduction(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs = attrs_of(op, ReductionAttrs)
    if attrs.kind not in REDUCTION_KINDS:
        raise ShapeError(f"reduction kind '{attrs.kind}' is unknown")
    shape = shape_of(inputs, 0)
    given = int_list(values, 1, "axes") if has_input(inputs, 1) else None
    axes = reduction_axes(len(shape), given, noop_with_empty_axes=attrs.noop_with_empty_axes)
    return [(dtype_of(inputs, 0), reduced_shape(shape, axes, keepdims=attrs.keepdims))]


@size_computer("Softmax")
def _softmax(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs = attrs_of(op, SoftmaxAttrs)
    shape = shape_of(inputs, 0)
    if attrs.flatten:
        flatten_axis(attrs.axis, len(shape))
    else:
        normalize_axis(attrs.axis, len(shape))
    return [(dtype_of(inputs, 0), shape)]


def flatten_axis(axis: int, rank: int) -> int:
    """Return the axis of ONNX Flatten, counted from the front; here `rank` itself is allowed too.

    Raises:
        ShapeError: it is outside [-rank, rank].
    """
    if not -rank <= axis <= rank:
        raise ShapeError(f"axis {axis} is outside [{-rank}, {rank}] of a rank-{rank} tensor")
    return axis + rank if axis < 0 else axis


@size_computer("ArgMax")
@size_computer("ArgMin")
def _arg_reduce(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs = attrs_of(op, ArgReduceAttrs)
    shape = shape_of(inputs, 0)
    axis = normalize_axis(attrs.axis, len(shape))
    output = reduced_shape(shape, (axis,), keepdims=attrs.keepdims)
    if shape[axis] == 0 and 0 not in output:
        raise ShapeError(f"there is no extremum along the empty axis {axis} of {shape}")
    return [(DType.INT64, output)]


@size_computer("TopK")
def _topk(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs = attrs_of(op, TopKAttrs)
    shape = shape_of(inputs, 0)
    axis = normalize_axis(attrs.axis, len(shape))
    count = int_scalar(values, 1, "k")
    if not 0 <= count <= shape[axis]:
        raise ShapeError(f"k = {count} is outside [0, {shape[axis]}], the size of axis {axis}")
    output = (*shape[:axis], count, *shape[axis + 1 :])
    return [(dtype_of(inputs, 0), output), (DType.INT64, output)]


@size_computer("CumSum")
def _cumsum(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs_of(op, CumSumAttrs)
    shape = shape_of(inputs, 0)
    normalize_axis(int_scalar(values, 1, "axis"), len(shape))
    return [(dtype_of(inputs, 0), shape)]
