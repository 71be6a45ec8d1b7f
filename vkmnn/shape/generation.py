"""Shapes of operators that generate tensors from shapes and scalars."""

from __future__ import annotations

import math

import numpy as np

from vkmnn.errors import ShapeError
from vkmnn.ir import Array, DType, Op
from vkmnn.ir.ops import ConstantOfShapeAttrs, MelWeightMatrixAttrs, ShapeAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Values,
    content_of,
    int_list,
    int_scalar,
    same_dtype,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import MAX_ELEMENTS, Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import shape_rule, value_rule


def shape_slice(rank: int, start: int, end: int | None) -> slice:
    """Return the axes that ONNX Shape 15 reports; start and end are clamped into the rank."""
    first = min(max(start + rank if start < 0 else start, 0), rank)
    last = rank if end is None else min(max(end + rank if end < 0 else end, 0), rank)
    return slice(first, last)


def range_count(start: Array, limit: Array, delta: Array) -> int:
    """Return max(ceil((limit - start) / delta), 0) of three scalars (ONNX Range).

    Raises:
        ShapeError: one is not a scalar or not finite, or `delta` is 0.
    """
    if not start.size == limit.size == delta.size == 1:
        raise ShapeError("start, limit and delta must be scalars")
    first, last, step = start.item(), limit.item(), delta.item()
    if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
        if step == 0:
            raise ShapeError("delta is 0")
        return max(-((first - last) // step), 0)
    numbers = [float(number) for number in (first, last, step)]
    if step == 0 or not all(math.isfinite(number) for number in numbers):
        raise ShapeError(f"start {first}, limit {last}, delta {step} do not give a finite range")
    return max(math.ceil((numbers[1] - numbers[0]) / numbers[2]), 0)


@shape_rule("Shape", exact=True)
def _shape(op: Op[ShapeAttrs], facts: Facts) -> list[Found]:
    dims = _shape_values(op, facts)
    return [(DType.INT64, None if dims is None else (len(dims),))]


@value_rule("Shape")
def _shape_values(op: Op[ShapeAttrs], facts: Facts) -> NamedShape | None:
    attrs, shape = op.attrs, facts.shape(op)
    return None if shape is None else shape[shape_slice(len(shape), attrs.start, attrs.end)]


@shape_rule("Size", exact=True)
def _size(op: Op, facts: Facts) -> list[Found]:
    return [(DType.INT64, ())]


@value_rule("Size")
def _size_values(op: Op, facts: Facts) -> NamedShape | None:
    shape = facts.shape(op)
    return None if shape is None else (facts.algebra.product(shape),)


@size_computer("Range")
def _range(op: Op, inputs: Infos, values: Values) -> Outputs:
    count = range_count(*(content_of(values, index) for index in range(3)))
    return [(same_dtype(inputs, 0, 1, 2), (count,))]


@shape_rule("Range")
def _named_range(op: Op, facts: Facts) -> list[Found]:
    dtype = facts.dtype(op, 0, 1, 2)
    ends = [facts.constants.get(name) for name in op.inputs]
    known = [
        np.asarray(numbers) if end is None else end
        for place, end in enumerate(ends)
        if end is not None or (numbers := facts.ints(op, place)) is not None
    ]
    if len(known) == 3:
        return [(dtype, (range_count(*known),))]
    start, limit, delta = (facts.values(op, place) for place in range(3))
    if not start or not limit or delta != (1,):
        return [(dtype, (None,))]
    return [(dtype, (facts.algebra.clipped(facts.algebra.subtract(limit[0], start[0])),))]


@size_computer("MelWeightMatrix")
def _mel_weight_matrix(op: Op[MelWeightMatrixAttrs], inputs: Infos, values: Values) -> Outputs:
    bins = int_scalar(values, 0, "the number of mel bins")
    length = int_scalar(values, 1, "the length of the transform")
    if bins < 0 or length < 0:
        raise ShapeError(f"{bins} mel bins of a transform of length {length}")
    return [(op.attrs.dtype, (length // 2 + 1, bins))]


@shape_rule("MelWeightMatrix")
def _named_mel_weight_matrix(op: Op[MelWeightMatrixAttrs], facts: Facts) -> list[Found]:
    (bins,), (length,) = (facts.values(op, place) or (None,) for place in (0, 1))
    rows = facts.algebra.add(facts.algebra.floor_divide(length, 2), 1)
    return [(op.attrs.dtype, (rows, bins))]


@size_computer("ConstantOfShape")
def _constant_of_shape(op: Op[ConstantOfShapeAttrs], inputs: Infos, values: Values) -> Outputs:
    shape = int_list(values, 0, "the shape")
    if any(dim < 0 for dim in shape):
        raise ShapeError(f"shape {shape} holds a negative number")
    return [(op.attrs.dtype, tuple(shape))]


@shape_rule("ConstantOfShape")
def _named_constant_of_shape(op: Op[ConstantOfShapeAttrs], facts: Facts) -> list[Found]:
    return [(op.attrs.dtype, facts.vector(op, 0))]


@value_rule("ConstantOfShape")
def _constant_of_shape_values(op: Op[ConstantOfShapeAttrs], facts: Facts) -> NamedShape | None:
    attrs, shape = op.attrs, facts.ints(op, 0)
    if shape is None or len(shape) > 1 or not attrs.dtype.is_integer:
        return None
    length = shape[0] if shape else 1
    return (int(attrs.value),) * length if 0 <= length <= MAX_ELEMENTS else None
