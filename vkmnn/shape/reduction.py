"""Shapes of operators that work along axes: reductions, softmax, extrema, sorting, running sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeVar

from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, DType, Op
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
    Values,
    dtype_of,
    has_input,
    int_list,
    int_scalar,
    normalize_axes,
    normalize_axis,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import is_absent, like_first, shape_rule, value_rule, with_dim

_D = TypeVar("_D", bound=Dim)


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


def reduced_shape(
    shape: Sequence[_D], axes: Collection[int], *, keepdims: bool
) -> tuple[_D | Literal[1], ...]:
    """Return `shape` with `axes` (counted from the front) removed, or set to 1 with `keepdims`."""
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


@size_computer("Reduction")
def _reduction(op: Op[ReductionAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    if attrs.kind not in REDUCTION_KINDS:
        raise ShapeError(f"reduction kind '{attrs.kind}' is unknown")
    shape = shape_of(inputs, 0)
    given = int_list(values, 1, "axes") if has_input(inputs, 1) else None
    axes = reduction_axes(len(shape), given, noop_with_empty_axes=attrs.noop_with_empty_axes)
    return [(dtype_of(inputs, 0), reduced_shape(shape, axes, keepdims=attrs.keepdims))]


@shape_rule("Reduction")
def _named_reduction(op: Op[ReductionAttrs], facts: Facts) -> list[Found]:
    attrs, shape = op.attrs, facts.shape(op)
    given = () if is_absent(op, 1) else facts.ints(op, 1)
    if shape is None or (given is None and not attrs.keepdims):
        return [(facts.dtype(op), None)]
    if given is None:
        return [(facts.dtype(op), (None,) * len(shape))]
    axes = reduction_axes(len(shape), given, noop_with_empty_axes=attrs.noop_with_empty_axes)
    return [(facts.dtype(op), reduced_shape(shape, axes, keepdims=attrs.keepdims))]


@value_rule("Reduction")
def _reduction_values(op: Op[ReductionAttrs], facts: Facts) -> NamedShape | None:
    attrs, values = op.attrs, facts.values(op, 0)
    if values is None or attrs.kind != "PROD" or attrs.noop_with_empty_axes:
        return None
    return (facts.algebra.product(values),)


@shape_rule("Softmax", exact=True)
def _softmax(op: Op[SoftmaxAttrs], facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    if shape is not None:
        check = flatten_axis if op.attrs.flatten else normalize_axis
        check(op.attrs.axis, len(shape))
    return [(facts.dtype(op), shape)]


def flatten_axis(axis: int, rank: int) -> int:
    """Return the axis of ONNX Flatten, counted from the front; here `rank` itself is allowed too.

    Raises:
        ShapeError: it is outside [-rank, rank].
    """
    if not -rank <= axis <= rank:
        raise ShapeError(f"axis {axis} is outside [{-rank}, {rank}] of a rank-{rank} tensor")
    return axis + rank if axis < 0 else axis


@shape_rule("ArgMax", "ArgMin", exact=True)
def _arg_reduce(op: Op[ArgReduceAttrs], facts: Facts) -> list[Found]:
    attrs, shape = op.attrs, facts.shape(op)
    if shape is None:
        return [(DType.INT64, None)]
    axis = normalize_axis(attrs.axis, len(shape))
    output = reduced_shape(shape, (axis,), keepdims=attrs.keepdims)
    if shape[axis] == 0 and 0 not in output and not attrs.empty_gives_zero:
        raise ShapeError(f"there is no extremum along the empty axis {axis} of {shape}")
    return [(DType.INT64, output)]


@size_computer("TopK")
def _topk(op: Op[TopKAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    shape = shape_of(inputs, 0)
    axis = normalize_axis(attrs.axis, len(shape))
    count = int_scalar(values, 1, "k")
    if not 0 <= count <= shape[axis]:
        raise ShapeError(f"k = {count} is outside [0, {shape[axis]}], the size of axis {axis}")
    output = (*shape[:axis], count, *shape[axis + 1 :])
    return [(dtype_of(inputs, 0), output), (DType.INT64, output)]


@shape_rule("TopK")
def _named_topk(op: Op[TopKAttrs], facts: Facts) -> list[Found]:
    shape, k = facts.shape(op), facts.values(op, 1)
    if shape is not None:
        shape = with_dim(shape, op.attrs.axis, k[0] if k else None)
    return [(facts.dtype(op), shape), (DType.INT64, shape)]


@shape_rule("SampleToken", exact=True)
def _sample_token(op: Op, facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    if shape is None:
        return [(DType.INT64, None)]
    if len(shape) != 2 or shape[1] == 0:
        raise ShapeError(f"logits are [rows, tokens], not {shape}")
    return [(DType.INT64, (shape[0], 1))]


shape_rule("CumSum", "CumProd")(like_first)


@size_computer("CumProd")
@size_computer("CumSum")
def _cumsum(op: Op[CumSumAttrs], inputs: Infos, values: Values) -> Outputs:
    shape = shape_of(inputs, 0)
    normalize_axis(int_scalar(values, 1, "axis"), len(shape))
    return [(dtype_of(inputs, 0), shape)]


@shape_rule("DynamicRange", exact=True)
def _dynamic_range(op: Op, facts: Facts) -> list[Found]:
    dtype = facts.dtype(op)
    if dtype not in (None, DType.FLOAT32):
        raise ShapeError(f"dynamic range of {dtype.value}")
    return [(DType.FLOAT32, ())] * len(op.outputs)
