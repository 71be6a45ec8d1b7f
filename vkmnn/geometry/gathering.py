"""Geometry of gathers whose indices are known."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.errors import ShapeError
from vkmnn.geometry.indexing import axis_copy, axis_gather, combine_axes
from vkmnn.geometry.regions import row_major
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir.ops import AxisAttrs
from vkmnn.shape.common import normalize_axis

MAX_GATHER_REGIONS = 4
"""Most regions that a Gather may become; with more, one gather kernel beats the copies."""

_MAX_INDICES = 4096


@geometry("Gather")
def _gather(ctx: GeometryContext[AxisAttrs]) -> None:
    source, indices = ctx.input(0), ctx.value(1)
    if indices is None or indices.size > _MAX_INDICES:
        return
    shape = source.dims
    axis = normalize_axis(ctx.attrs.axis, len(shape))
    size = shape[axis]
    flat = np.asarray(indices, np.int64).reshape(-1)
    if np.any((flat < -size) | (flat >= size)):
        raise ShapeError(f"an index is outside [{-size}, {size - 1}]: {flat.tolist()}")
    picked = axis_gather(ctx, np.where(flat < 0, flat + size, flat))
    if len(picked) > MAX_GATHER_REGIONS:
        return
    before, after = prod(shape[:axis]), prod(shape[axis + 1 :])
    regions = combine_axes(
        ctx,
        [[axis_copy(before)], picked, [axis_copy(after)]],
        row_major((before, size, after)),
        row_major((before, flat.size, after)),
    )
    ctx.raster(ctx.outputs[0], [source.name], regions)
