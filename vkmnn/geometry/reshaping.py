"""Geometry of operators that keep the elements in order: one region that copies everything."""

from __future__ import annotations

from math import prod

from vkmnn.geometry.regions import copy_region
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import TensorInfo


def emit_copy(ctx: GeometryContext, source: TensorInfo, output: TensorInfo) -> None:
    """Emit the Raster that gives `source` the shape of `output`, which has as many elements."""
    ctx.raster(output, [source.name], [copy_region(prod(source.dims))])


@geometry("Reshape")
@geometry("Flatten")
@geometry("Squeeze")
@geometry("Unsqueeze")
@geometry("Identity")
def _same_order(ctx: GeometryContext) -> None:
    emit_copy(ctx, ctx.input(0), ctx.outputs[0])
