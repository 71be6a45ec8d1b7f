"""Attention reads and writes through Rasters: splitting and merging heads costs no copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod
from typing import Any

from vkmnn.geometry.regions import compose, covers, region_elements, row_major
from vkmnn.ir import Op, Region, TensorInfo, View
from vkmnn.ir.ops import RasterAttrs, StridedAttentionAttrs


def fuse_views(
    ops: Sequence[Op[Any]], infos: Mapping[str, TensorInfo], keep: AbstractSet[str]
) -> list[Op]:
    """Let attention read and write by strides instead of through Rasters of its own.

    Its rows must stay contiguous. A Raster that only attention reads is removed.

    Args:
        ops: ops in topological order; they are not changed.
        infos: every tensor, with static shapes.
        keep: names that must still be produced (the graph's outputs).

    Returns:
        The ops in topological order.
    """
    if StridedAttentionAttrs not in {type(op.attrs) for op in ops}:
        return list(ops)
    copies = {op.outputs[0]: op for op in ops if whole_region(op, infos) is not None}
    readers = Counter(name for op in ops for name in op.inputs)
    sole = {name: op for op in copies.values() for name in op.inputs if readers[name] == 1}
    result: list[Op] = []
    moved: set[str] = set()
    known: dict[object, _Read] = {}
    for op in ops:
        if isinstance(op.attrs, StridedAttentionAttrs):
            op = _read(op, copies, infos, known)
            after = sole.get(op.outputs[0])
            written = None
            if after is not None and op.outputs[0] not in keep:
                written = _write(op, after, infos)
            if after is not None and written is not None:
                op = written
                moved.add(after.outputs[0])
                del copies[after.outputs[0]]
        elif isinstance(op.attrs, RasterAttrs) and op.outputs[0] in moved:
            continue
        result.append(op)
    return _without_unread(result, copies, keep)


def whole_region(op: Op, infos: Mapping[str, TensorInfo]) -> Region | None:
    """Return the region of a Raster that fills its output with one."""
    if not isinstance(op.attrs, RasterAttrs) or len(op.attrs.regions) != 1:
        return None
    region = op.attrs.regions[0]
    elements = prod(infos[op.outputs[0]].dims)
    return region if elements and covers([region], elements) else None


_Read = tuple[StridedAttentionAttrs, dict[int, int]]
"""Attributes of an attention, and the inputs that it reads through a Raster, with their origins."""


def _read(
    op: Op[StridedAttentionAttrs],
    copies: Mapping[str, Op[RasterAttrs]],
    infos: Mapping[str, TensorInfo],
    known: dict[object, _Read],
) -> Op[StridedAttentionAttrs]:
    """Return the attention with strided queries, keys and values.

    `known` holds the results for other layers. Keys identify attributes, which the ops keep alive.
    """
    read: list[Op[RasterAttrs] | None] = []
    for name in op.inputs[:3]:
        copy = copies.get(name)
        same = copy is not None and infos[copy.inputs[0]].dtype is infos[name].dtype
        read.append(copy if same else None)
    key = (id(op.attrs), *[None if copy is None else id(copy.attrs) for copy in read])
    found = known.get(key)
    if found is None:
        regions = [None if copy is None else copy.attrs.regions[0] for copy in read]
        found = known[key] = _read_regions(op.attrs, regions)
    attrs, through = found
    inputs = list(op.inputs)
    for index, origin in through.items():
        copy = read[index]
        assert copy is not None
        inputs[index] = copy.inputs[origin]
    return Op(op.type, op.name, inputs, op.outputs, attrs, op.source)


def _read_regions(attrs: StridedAttentionAttrs, regions: Sequence[Region | None]) -> _Read:
    """Return attributes and origins of an attention whose inputs were copied by these regions.

    Heads that share keys and values are numbered over two axes; the shared ones have stride 0 along
    one (grouped queries: Ainslie et al., GQA, 2023).
    """
    through: dict[int, int] = {}
    for index, region in enumerate(regions):
        if region is None:
            continue
        for candidate in (attrs, *_groupings(attrs, region)):
            rows, columns = (
                (attrs.queries, attrs.depth),
                (attrs.keys, attrs.depth),
                (attrs.keys, attrs.width),
            )[index]
            view = _through(candidate.views[index], (*candidate.batch, rows, columns), region)
            if view is not None:
                views = list(candidate.views)
                views[index] = view
                attrs = replace(candidate, views=(views[0], views[1], views[2]))
                through[index] = region.origin
                break
    return attrs, through


def _groupings(attrs: StridedAttentionAttrs, region: Region) -> Iterator[StridedAttentionAttrs]:
    """Yield the attention with its last batch axis split, if the first one is unused.

    `region` repeats heads; the sizes of its axes say where to split.
    """
    first, middle, heads = attrs.batch
    if first != 1 or 0 not in region.src.strides:
        return
    sizes = {size for size in region.size if 1 < size < heads and heads % size == 0}
    for inner in sorted(sizes | {heads // size for size in sizes}):

        def cut(view: View, inner: int = inner) -> View:
            _, outer, step, *row = view.strides
            return replace(view, strides=(outer, step * inner, step, *row))

        q, k, v = (cut(view) for view in attrs.views)
        yield replace(
            attrs,
            batch=(middle, heads // inner, inner),
            views=(q, k, v),
            mask=None if attrs.mask is None else cut(attrs.mask),
            result=cut(attrs.result),
        )


def _write(op: Op[StridedAttentionAttrs], copy: Op, infos: Mapping[str, TensorInfo]) -> Op | None:
    """Return the attention that writes the output of the Raster after it."""
    attrs, region = op.attrs, whole_region(copy, infos)
    assert region is not None
    if region_elements(region) != prod(infos[op.outputs[0]].dims):
        return None
    size = (*attrs.batch, attrs.queries, attrs.width)
    view = _through(attrs.result, size, replace(region, src=region.dst, dst=region.src))
    if view is None or view.offset:
        return None
    return replace(op, outputs=list(copy.outputs), attrs=replace(attrs, result=view))


def _through(view: View, size: Sequence[int], inner: Region) -> View | None:
    """Return the addresses of a view before the copy `inner`.

    Args:
        view: strides of all axes of `size` but the last, whose stride is 1.
        size: the axes.
        inner: the copy that wrote the tensor which the view reads.

    Returns:
        None unless one stride per axis suffices, with none negative and the last 1.
    """
    weights = row_major(size)
    outer = Region(View(view.offset, (*view.strides, 1)), View(0, weights), tuple(size))
    parts = compose(outer, inner)
    if parts is None or len(parts) != 1 or region_elements(parts[0]) != prod(size):
        return None
    part = parts[0]
    strides: list[int] = []
    for count, weight in zip(size, weights, strict=True):
        stride = stride_of(part, count, weight)
        if stride is None or stride < 0:  # kernels count upwards
            return None
        strides.append(stride)
    if size[-1] > 1 and strides[-1] != 1:
        return None
    return View(part.src.offset, tuple(strides[:-1]))


def stride_of(part: Region, count: int, weight: int) -> int | None:
    """Return the source's step along the axis with `count` positions and this `weight`.

    Axes of the region may cover several that chain.
    """
    if count == 1:
        return 0
    for size, number, step in zip(part.size, part.dst.strides, part.src.strides, strict=True):
        if weight % number == 0 and number <= weight and weight * count <= number * size:
            return step * (weight // number)
    return None


def _without_unread(
    ops: Sequence[Op], copies: Mapping[str, Op], keep: AbstractSet[str]
) -> list[Op]:
    read = set(keep)
    kept: list[Op] = []
    for op in reversed(ops):
        if op.outputs[0] in copies and op.outputs[0] not in read and op.type == "Raster":
            continue
        read.update(op.inputs)
        kept.append(op)
    return kept[::-1]
