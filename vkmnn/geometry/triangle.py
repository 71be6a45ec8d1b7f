"""Geometry of Trilu: a selection by a constant triangle."""

from __future__ import annotations

import numpy as np

from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import OpAttrs
from vkmnn.ir.ops import TriluAttrs


@geometry("Trilu")
def _trilu(ctx: GeometryContext[TriluAttrs]) -> None:
    source = ctx.input(0)
    rows, columns = source.dims[-2:]
    offset = (ctx.ints(1, "k") or [0])[0]
    ctx.charge(2 * rows * columns)
    # offsets far outside the matrix mean all or nothing, and must not overflow
    offset = min(max(offset, -rows), columns)
    if ctx.attrs.upper:
        kept = ~np.tri(rows, columns, offset - 1, dtype=np.bool_)
    else:
        kept = np.tri(rows, columns, offset, dtype=np.bool_)
    mask = ctx.constant(kept)
    zero = ctx.constant(np.zeros((), source.dtype.numpy))
    ctx.emit("Select", [mask, source.name, zero], OpAttrs(), ctx.outputs[0])
