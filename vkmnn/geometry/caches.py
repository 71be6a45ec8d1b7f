"""Geometry of JoinPast: a copy if all sequences are of one length, else a gather of rows."""

from __future__ import annotations

import numpy as np

from vkmnn.geometry.regions import row_major
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import DType, OpAttrs, Region, TensorInfo, View
from vkmnn.ir.ops import AxisAttrs, BinaryAttrs, ReshapeAttrs
from vkmnn.shape.common import int_scalar


@geometry("JoinPast")
def _join_past(ctx: GeometryContext) -> None:
    past, new = ctx.input(0), ctx.input(1)
    total = int_scalar(ctx.values, 3, "the number of rows")
    whole, seen = ctx.outputs
    batch, heads, room, depth = past.dims
    length = new.dims[2]
    if not whole.name:
        whole = ctx.temp(past.dtype, whole.dims)
    if total == length:  # a prompt: no sequence has a past
        _rows_of(ctx, whole, [(new, 0)])
    elif batch == 1 and total == room + length:
        _rows_of(ctx, whole, [(past, 0), (new, room)])
    else:
        rows = ctx.temp(past.dtype, (batch, heads, room + length + 1, depth))
        _rows_of(ctx, rows, [(past, 0), (new, room)])
        _picked(ctx, rows, whole, room)
    part = (batch, heads, total, depth)
    region = Region(View(0, row_major(whole.dims)), View(0, row_major(part)), part)
    ctx.raster(seen, [whole.name], [region])


def _rows_of(ctx: GeometryContext, output: TensorInfo, parts: list[tuple[TensorInfo, int]]) -> None:
    """Write tensors into an output, each from a row on; zeros elsewhere."""
    strides = row_major(output.dims)
    regions = [
        Region(View(0, row_major(part.dims)), View(first * strides[2], strides), part.dims, origin)
        for origin, (part, first) in enumerate(parts)
    ]
    ctx.raster(output, [part.name for part, _ in parts], regions)


def _picked(ctx: GeometryContext, rows: TensorInfo, output: TensorInfo, room: int) -> None:
    """Pick the rows of the output from [batch, heads, old, new and a row of zeros, depth].

    Row r of a sequence is old row r if it has as many, else new row r - `before`, else zeros.
    """
    batch, heads, count, depth = rows.dims
    places = output.dims[2]
    zeros = count - 1
    ctx.charge(3 * 8 * batch * heads * places)
    first = count * np.arange(batch * heads).reshape(batch, heads, 1)
    row = np.arange(places)
    old = ctx.constant(first + np.where(row < room, row, zeros))
    joined = ctx.constant(first + row + room)
    last = ctx.constant(first + zeros)
    before = ctx.temp(ctx.input(2).dtype, (batch, 1, 1))
    shape = ctx.constant(np.array(before.dims, np.int64))
    ctx.emit("Reshape", [ctx.input(2).name, shape], ReshapeAttrs(), before)
    sizes = (batch, heads, places)
    kept = ctx.temp(DType.BOOL, (batch, 1, places))
    ctx.emit("BinaryOp", [ctx.constant(row), before.name], BinaryAttrs("LESS"), kept)
    added, inside, picked = (ctx.temp(DType.INT64, sizes) for _ in range(3))
    ctx.emit("BinaryOp", [joined, before.name], BinaryAttrs("SUB"), added)
    ctx.emit("BinaryOp", [added.name, last], BinaryAttrs("MIN"), inside)
    ctx.emit("Select", [kept.name, old, inside.name], OpAttrs(), picked)
    flat = ctx.temp(rows.dtype, (batch * heads * count, depth))
    shape = ctx.constant(np.array(flat.dims, np.int64))
    ctx.emit("Reshape", [rows.name, shape], ReshapeAttrs(), flat)
    ctx.emit("Gather", [flat.name, picked.name], AxisAttrs(0), output)
