"""Operators whose results are known once shapes are: they become constants."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir.ops import ConstantOfShapeAttrs, ShapeAttrs
from vkmnn.shape import info_bytes
from vkmnn.shape.common import content_of
from vkmnn.shape.generation import shape_slice


@geometry("Shape")
def _shape(ctx: GeometryContext[ShapeAttrs]) -> None:
    attrs = ctx.attrs
    shape = ctx.input(0).dims
    axes = shape_slice(len(shape), attrs.start, attrs.end)
    ctx.constant_output(ctx.outputs[0], np.array(shape[axes], np.int64))


@geometry("Size")
def _size(ctx: GeometryContext) -> None:
    ctx.constant_output(ctx.outputs[0], np.array(prod(ctx.input(0).dims), np.int64))


@geometry("Range")
def _range(ctx: GeometryContext) -> None:
    output = ctx.outputs[0]
    ctx.charge(3 * 8 * output.dims[0])
    start, delta = content_of(ctx.values, 0), content_of(ctx.values, 2)
    steps = np.arange(output.dims[0]).astype(start.dtype)
    ctx.constant_output(output, np.add(start.reshape(()), np.multiply(steps, delta.reshape(()))))


@geometry("ConstantOfShape")
def _constant_of_shape(ctx: GeometryContext[ConstantOfShapeAttrs]) -> None:
    output = ctx.outputs[0]
    value = ctx.attrs.value
    ctx.charge(2 * info_bytes([output]))
    ctx.constant_output(output, np.full(output.dims, value, output.dtype.numpy))
