"""Shapes of operators that make tensors from shapes and numbers."""

from __future__ import annotations

import math

from vkmnn.errors import ShapeError
from vkmnn.ir import Array, DType, Op
from vkmnn.ir.ops import ConstantOfShapeAttrs, ShapeAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Values,
    attrs_of,
    content_of,
    int_list,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer


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


@size_computer("Shape")
def _shape(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs = attrs_of(op, ShapeAttrs)
    shape = shape_of(inputs, 0)
    return [(DType.INT64, (len(shape[shape_slice(len(shape), attrs.start, attrs.end)]),))]


@size_computer("Size")
def _size(op: Op, inputs: Infos, values: Values) -> Outputs:
    shape_of(inputs, 0)
    return [(DType.INT64, ())]


@size_computer("Range")
def _range(op: Op, inputs: Infos, values: Values) -> Outputs:
    count = range_count(*(content_of(values, index) for index in range(3)))
    return [(same_dtype(inputs, 0, 1, 2), (count,))]


@size_computer("ConstantOfShape")
def _constant_of_shape(op: Op, inputs: Infos, values: Values) -> Outputs:
    shape = int_list(values, 0, "the shape")
    if any(dim < 0 for dim in shape):
        raise ShapeError(f"shape {shape} holds a negative number")
    return [(attrs_of(op, ConstantOfShapeAttrs).dtype, tuple(shape))]
