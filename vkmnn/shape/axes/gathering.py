"""Axes of gathers, scatters and OneHot."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.errors import ShapeError
from vkmnn.ir import Op, OpAttrs
from vkmnn.ir.ops import AxisAttrs, GatherNBitsAttrs, GatherNDAttrs, ScatterElementsAttrs
from vkmnn.shape.axes.loops import Known, Loop, Shape, axes_of, mixed, parallel
from vkmnn.shape.common import normalize_axis


@axes_of("Gather")
def _gather(op: Op[AxisAttrs], known: Known) -> list[Loop]:
    """Axes that are not gathered along, and the indices."""
    data, indices = known.shape(), known.shape(1)
    axis, rank = normalize_axis(op.attrs.axis, len(data)), len(indices)
    loops = [
        parallel(size, [own], own if own < axis else own - 1 + rank)
        for own, size in enumerate(data)
        if own != axis
    ]
    loops += [parallel(size, [None, own], axis + own) for own, size in enumerate(indices)]
    return [*loops, mixed(data[axis], [axis])]


@axes_of("GatherNBits")
def _gather_nbits(op: Op[GatherNBitsAttrs], known: Known) -> list[Loop]:
    """Indices, whole blocks of columns."""
    attrs, codes, indices = op.attrs, known.shape(), known.shape(1)

    def narrower(begin: int, end: int) -> OpAttrs:
        return replace(attrs, depth=(end - begin) * attrs.block)

    loops = [parallel(size, [None, axis], axis) for axis, size in enumerate(indices)]
    if attrs.depth % attrs.block == 0:
        blocks, reads = attrs.depth // attrs.block, [1, None, 1, 1]
        loops.append(parallel(blocks, reads, len(indices), attrs=narrower))
    return [*loops, mixed(codes[0], [0, None, 0, 0])]


@axes_of("GatherElements")
def _gather_elements(op: Op[AxisAttrs], known: Known) -> list[Loop]:
    """The indices; along other axes than the gathered one, data may go on beyond them."""
    data, indices = known.shape(), known.shape(1)
    axis = normalize_axis(op.attrs.axis, len(data))
    longer = frozenset({0})
    loops = [
        parallel(size, [own if own != axis else None, own], own, longer=longer)
        for own, size in enumerate(indices)
    ]
    return [*loops, mixed(data[axis], [axis])]


@axes_of("GatherND")
def _gather_nd(op: Op[GatherNDAttrs], known: Known) -> list[Loop]:
    """The batch, the tuples of indices, the axes of slices; others are gathered along."""
    data, indices = known.shape(), known.shape(1)
    batch, tuples, inner = (
        op.attrs.batch_dims,
        len(indices) - 1,
        op.attrs.batch_dims + _depth(op, indices),
    )
    loops = [parallel(data[axis], [axis, axis], axis) for axis in range(batch)]
    loops += [parallel(indices[axis], [None, axis], axis) for axis in range(batch, tuples)]
    loops += [mixed(data[axis], [axis]) for axis in range(batch, inner)]
    return loops + [
        parallel(data[axis], [axis], tuples + axis - inner) for axis in range(inner, len(data))
    ]


def _depth(op: Op, indices: Shape) -> int:
    """Return how many axes an index addresses; raises ShapeError if unknown."""
    depth = indices[-1] if indices else None
    if not isinstance(depth, int):
        raise ShapeError("the number of axes that an index addresses is not known")
    return depth


@axes_of("ScatterND")
def _scatter_nd(op: Op, known: Known) -> list[Loop]:
    """The axes of the slices that are scattered."""
    data, indices = known.shape(), known.shape(1)
    depth, tuples = _depth(op, indices), len(indices) - 1
    loops = [
        parallel(data[axis], [axis, None, tuples + axis - depth], axis)
        for axis in range(depth, len(data))
    ]
    return loops + [mixed(data[axis], [axis], axis) for axis in range(depth)]


@axes_of("ScatterElements")
def _scatter_elements(op: Op[ScatterElementsAttrs], known: Known) -> list[Loop]:
    """Axes that the indices cover completely, except the one along which they scatter."""
    data, indices = known.shape(), known.shape(1)
    axis = normalize_axis(op.attrs.axis, len(data))
    return [
        (parallel if n != axis and indices[n] == size and size is not None else mixed)(
            size, [n, n, n], n
        )
        for n, size in enumerate(data)
    ]


@axes_of("OneHot")
def _one_hot(op: Op[AxisAttrs], known: Known) -> list[Loop]:
    indices = known.shape()
    axis = normalize_axis(op.attrs.axis, len(indices) + 1)
    return [parallel(size, [own], own + (own >= axis)) for own, size in enumerate(indices)]
