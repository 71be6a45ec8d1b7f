"""Fourier transforms whose lengths are known in planning, as products with a matrix."""

from __future__ import annotations

import numpy as np

from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import DType, TensorInfo
from vkmnn.ir.ops import DFTAttrs, MatMulAttrs, ReshapeAttrs, TransposeAttrs
from vkmnn.shape.fourier import MAX_MATRIX, fourier_matrix, planned_transform


@geometry("DFT", only_for=frozenset({DType.FLOAT16, DType.FLOAT32}))
def _dft(ctx: GeometryContext[DFTAttrs]) -> None:
    """Multiply by the Fourier matrix; long transforms stay on the host, which has a fast one."""
    found = planned_transform(ctx.op, ctx.inputs, ctx.values)
    if found.matrix_size > MAX_MATRIX:
        return
    x = ctx.input(0)
    ctx.charge(2 * 8 * found.matrix_size)
    rank = len(x.dims)
    perm = [*(place for place in range(rank - 1) if place != found.axis), found.axis, rank - 1]
    lead = [x.dims[place] for place in perm[:-2]]
    name = x.name
    if found.axis != rank - 2:
        moved = ctx.temp(x.dtype, [x.dims[place] for place in perm])
        ctx.emit("Transpose", [name], TransposeAttrs(tuple(perm)), moved)
        name = moved.name
    rows = _reshaped(ctx, name, ctx.temp(x.dtype, [*lead, found.rows * found.parts]))
    matrix = ctx.constant(fourier_matrix(found).astype(x.dtype.numpy))
    made = ctx.temp(x.dtype, [*lead, found.made * found.outputs])
    ctx.emit("MatMul", [rows, matrix], MatMulAttrs(), made)
    if found.axis == rank - 2:
        _reshaped(ctx, made.name, ctx.outputs[0])
        return
    parted = ctx.temp(x.dtype, [*lead, found.made, found.outputs])
    back = TransposeAttrs(tuple(perm.index(place) for place in range(rank)))
    ctx.emit("Transpose", [_reshaped(ctx, made.name, parted)], back, ctx.outputs[0])


def _reshaped(ctx: GeometryContext, name: str, result: TensorInfo) -> str:
    shape = ctx.constant(np.array(result.dims, np.int64))
    ctx.emit("Reshape", [name, shape], ReshapeAttrs(allowzero=True), result)
    return result.name
