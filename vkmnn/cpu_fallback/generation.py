"""Operators that generate tensors from shapes and scalars."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required
from vkmnn.ir import Op
from vkmnn.ir.ops import ConstantOfShapeAttrs, ShapeAttrs
from vkmnn.shape.common import int_list
from vkmnn.shape.generation import range_count, shape_slice


@cpu_execution("Shape")
def _shape(op: Op[ShapeAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x = required(inputs, 0)
    return [np.array(x.shape[shape_slice(x.ndim, attrs.start, attrs.end)], dtype=np.int64)]


@cpu_execution("Size")
def _size(op: Op, inputs: Inputs) -> list[AnyArray]:
    return [np.array(required(inputs, 0).size, dtype=np.int64)]


@cpu_execution("Range")
def _range(op: Op, inputs: Inputs) -> list[AnyArray]:
    start, limit, delta = (required(inputs, index) for index in range(3))
    count = range_count(start, limit, delta)
    steps = np.arange(count).astype(start.dtype)
    return [start.reshape(()) + steps * delta.reshape(())]


@cpu_execution("ConstantOfShape")
def _constant_of_shape(op: Op[ConstantOfShapeAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    return [np.full(int_list(inputs, 0, "the shape"), attrs.value, dtype=attrs.dtype.numpy)]
