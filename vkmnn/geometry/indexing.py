"""Regions of gathers along axes whose indices are known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from vkmnn.geometry.regions import merge
from vkmnn.geometry.registry import GeometryContext
from vkmnn.ir import Region, View


def axis_copy(size: int, src: int = 0, dst: int = 0, step: int = 1) -> Region:
    """Return the region that copies `size` elements of one axis; `step` is the source's."""
    return Region(View(src, (step,)), View(dst, (1,)), (size,))


def axis_gather(ctx: GeometryContext, indices: npt.NDArray[np.int64]) -> list[Region]:
    """Return few regions that copy element `indices[i]` of one axis to element i.

    Indices in arithmetic progression form one region, and repeated progressions one more axis.

    Raises:
        BudgetError: there are too many progressions.
    """
    steps = np.diff(indices)
    found = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    ctx.check_pieces(len(found) + 1)
    turns: list[int] = found.tolist()
    regions = []
    begin, count = 0, len(indices)
    while begin < count:
        turn = bisect_right(turns, begin)
        end = min(turns[turn] + 1 if turn < len(turns) else count, count)
        step = int(steps[begin]) if end - begin > 1 else 1
        regions.append(axis_copy(end - begin, int(indices[begin]), begin, step))
        begin = end
    return merge(regions)


def combine_axes(
    ctx: GeometryContext,
    axes: Sequence[Sequence[Region]],
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    origin: int = 0,
) -> list[Region]:
    """Return the regions of a tensor whose axes are each copied by separate regions.

    Args:
        ctx: the owner of the regions.
        axes: per axis, regions that count in elements of that axis.
        src_strides: the step in the source for one element of each axis.
        dst_strides: the same in the destination.
        origin: the input that the regions read.

    Raises:
        BudgetError: there are too many of them.
    """
    ctx.check_pieces(prod(map(len, axes)))
    scaled = [
        [_scale(region, src, dst) for region in regions]
        for regions, src, dst in zip(axes, src_strides, dst_strides, strict=True)
    ]
    return [
        Region(
            View(
                sum(part.src.offset for part in parts),
                tuple(stride for part in parts for stride in part.src.strides),
            ),
            View(
                sum(part.dst.offset for part in parts),
                tuple(stride for part in parts for stride in part.dst.strides),
            ),
            tuple(size for part in parts for size in part.size),
            origin,
        )
        for parts in product(*scaled)
    ]


def _scale(region: Region, src: int, dst: int) -> Region:
    return Region(
        View(region.src.offset * src, tuple(stride * src for stride in region.src.strides)),
        View(region.dst.offset * dst, tuple(stride * dst for stride in region.dst.strides)),
        region.size,
        region.origin,
    )
