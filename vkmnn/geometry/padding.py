"""Geometry of Pad."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from vkmnn.geometry.indexing import axis_copy, axis_gather, combine_axes
from vkmnn.geometry.regions import row_major
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import Region, View
from vkmnn.ir.ops import PadAttrs
from vkmnn.shape.slicing import pad_widths

_Indices = npt.NDArray[np.int64]


def _reflect(indices: _Indices, size: int) -> _Indices:
    period = max(2 * (size - 1), 1)
    folded = indices % period
    return np.minimum(folded, period - folded) if size > 1 else folded


# Source of an index outside [0, size) (numpy.pad's definitions).
_MODES: dict[str, Callable[[_Indices, int], _Indices]] = {
    "reflect": _reflect,
    "edge": lambda indices, size: np.clip(indices, 0, size - 1),
    "wrap": lambda indices, size: indices % size,
}


@geometry("Pad")
def _pad(ctx: GeometryContext[PadAttrs]) -> None:
    source, output = ctx.input(0), ctx.outputs[0]
    mode = ctx.attrs.mode
    widths = pad_widths(source.dims, ctx.ints(1, "pads") or [], ctx.ints(3, "axes"))
    axes = [
        _axis_regions(ctx, mode, size, begin, end)
        for size, (begin, end) in zip(source.dims, widths, strict=True)
    ]
    regions = combine_axes(ctx, axes, row_major(source.dims), row_major(output.dims))
    names = [source.name]
    fill: float | int = 0
    if mode == "constant":
        value = ctx.optional_input(2)
        content = ctx.value(2)
        if content is not None:
            number = content.item()
            fill = number if isinstance(number, float) else int(number)
        elif value is not None:
            names.append(value.name)
            regions += _border(output.dims, widths)
    ctx.raster(output, names, regions, fill)


def _axis_regions(ctx: GeometryContext, mode: str, size: int, begin: int, end: int) -> list[Region]:
    """Return the regions along one axis; cropping precedes padding."""
    first = max(-begin, 0)
    kept = size - first - max(-end, 0)
    before, after = max(begin, 0), max(end, 0)
    if mode == "constant" or before == after == 0:
        return [axis_copy(kept, first, before)]
    indices = np.arange(-before, kept + after, dtype=np.int64)
    return axis_gather(ctx, _MODES[mode](indices, kept) + first)


def _border(shape: tuple[int, ...], widths: Sequence[tuple[int, int]]) -> list[Region]:
    """Return boxes that cover everything around the interior, filled from scalar input 1."""
    strides = row_major(shape)
    low, size = [0] * len(shape), list(shape)
    regions = []
    for axis, (begin, end) in enumerate(widths):
        before, after = max(begin, 0), max(end, 0)
        for start, count in ((0, before), (shape[axis] - after, after)):
            low[axis], size[axis] = start, count
            offset = sum(at * stride for at, stride in zip(low, strides, strict=True))
            regions.append(
                Region(View(0, (0,) * len(shape)), View(offset, strides), tuple(size), 1)
            )
        low[axis], size[axis] = before, shape[axis] - before - after
    return regions
