"""Fusion of chains of Rasters: virtual tensors collapse, unread copies disappear."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod

from vkmnn.base.budget import Meter, unlimited
from vkmnn.base.memo import Memo
from vkmnn.geometry.regions import (
    MAX_REGIONS,
    compose,
    covers,
    is_identity,
    merge,
    region_elements,
)
from vkmnn.geometry.registry import compact_origins
from vkmnn.ir import Op, Region, TensorInfo
from vkmnn.ir.alike import MAX_ALIKE
from vkmnn.ir.ops import RasterAttrs


def view_source(op: Op, infos: Mapping[str, TensorInfo]) -> str | None:
    """Return the input that the op's output may share storage with, or None.

    That is the input of a Raster that copies all of it, in order, into all of the output.
    """
    attrs = op.attrs
    if not isinstance(attrs, RasterAttrs) or len(attrs.regions) != 1:
        return None
    source, output = infos[op.inputs[attrs.regions[0].origin]], infos[op.outputs[0]]
    elements = prod(output.dims)
    same = elements == prod(source.dims) and source.dtype is output.dtype
    return source.name if same and is_identity(attrs.regions[0], elements) else None


def fuse_rasters(
    ops: Sequence[Op],
    infos: Mapping[str, TensorInfo],
    keep: AbstractSet[str],
    meter: Meter | None = None,
) -> list[Op]:
    """Let Rasters read through the Rasters before them, and drop those without readers.

    A Raster that reads another's result reads that one's inputs instead, if the composed regions
    are exact and at most MAX_REGIONS; if the other's result is needed anyway, only if the number of
    regions does not grow. Parts that the other Raster only filled are filled here. An ordered
    Raster is never read through. Equal Rasters become one.

    Args:
        ops: ops in topological order; they are not changed.
        infos: every tensor, with static shapes.
        keep: names that must still be produced (the graph's outputs).
        meter: asked for time at every op; None has no limits.

    Returns:
        The ops in topological order.
    """
    meter = meter or unlimited()
    if RasterAttrs not in {type(op.attrs) for op in ops}:
        return list(ops)
    stored = _stored(ops, infos, keep)
    chains = _Chains(stored, meter)
    seen: dict[object, str] = {}
    same: dict[str, str] = {}
    result: list[Op] = []
    for op in ops:
        meter.check_time(op.type, op.source or op.name)
        inputs = [same.get(name, name) for name in op.inputs]
        attrs = op.attrs
        if not isinstance(attrs, RasterAttrs):
            same_inputs = inputs == op.inputs
            made = op if same_inputs else Op(op.type, op.name, inputs, op.outputs, attrs, op.source)
            result.append(made)
            continue
        output = infos[op.outputs[0]]
        inputs, attrs = chains.collapsed(inputs, attrs, prod(output.dims))
        key = (tuple(inputs), chains.number(attrs), output.dtype, output.shape)
        if key in seen and output.name not in keep:
            same[output.name] = seen[key]
            continue
        seen.setdefault(key, output.name)
        if len(attrs.regions) < 2 or not attrs.ordered:
            chains.add(output.name, inputs, attrs)
        result.append(Op(op.type, op.name, inputs, op.outputs, attrs, op.source))
    return _without_unread(result, keep)


class _Chains:
    """The Rasters so far that others may read through.

    Layers have the same chains for other tensors, and the same attributes (`AlikeLowerings`):
    what became of one chain is what becomes of the others.

    Args:
        stored: the tensors that exist in memory anyway.
        meter: asked for time.
    """

    def __init__(self, stored: AbstractSet[str], meter: Meter) -> None:
        self._stored = stored
        self._meter = meter
        self._rasters: dict[str, RasterAttrs] = {}
        self._sources: dict[str, list[str]] = {}
        self._known: Memo[tuple[object, ...], tuple[list[int], RasterAttrs]] = Memo(MAX_ALIKE)
        # All attributes that keys name by identity are kept, so that it stays theirs.
        self._kept: dict[int, tuple[RasterAttrs, int]] = {}
        self._numbers: dict[object, int] = {}

    def add(self, output: str, inputs: list[str], attrs: RasterAttrs) -> None:
        """Let readers of `output` read through its Raster."""
        self._rasters[output], self._sources[output] = attrs, inputs

    def number(self, attrs: RasterAttrs) -> int:
        """Return a number that is the same for equal attributes."""
        kept = self._kept.get(id(attrs))
        if kept is None:
            key = attrs, _fill_key(attrs.fill)
            number = self._numbers.setdefault(key, len(self._numbers))
            kept = self._kept[id(attrs)] = attrs, number
        return kept[1]

    def collapsed(
        self, inputs: list[str], attrs: RasterAttrs, elements: int
    ) -> tuple[list[str], RasterAttrs]:
        """Return inputs and attributes of a Raster that reads through those before it."""
        names: dict[str, int] = {}
        chain: list[object] = [self.number(attrs), elements]
        self._describe(inputs, names, chain)
        key = tuple(chain)
        known = self._known.get(key)
        if known is None:
            own, made = _canonical(inputs, attrs)
            own, made = _collapse(
                own, made, elements, self._rasters, self._sources, self._stored, self._meter
            )
            self._known.keep(key, ([names[name] for name in own], made))
            return own, made
        at = list(names)
        return [at[number] for number in known[0]], known[1]

    def _describe(self, inputs: Sequence[str], names: dict[str, int], chain: list[object]) -> None:
        """Add to `chain` everything that collapsing depends on, with names replaced by numbers."""
        chain.append(len(inputs))
        for name in inputs:
            number = names.get(name)
            if number is not None:
                chain.append(number)
                continue
            names[name] = len(names)
            attrs = self._rasters.get(name)
            if attrs is None:
                chain.append(None)
            else:
                chain.append((name in self._stored, self.number(attrs)))
                self._describe(self._sources[name], names, chain)


def _stored(ops: Sequence[Op], infos: Mapping[str, TensorInfo], keep: AbstractSet[str]) -> set[str]:
    """Return the tensors that exist in memory whatever is fused: non-Raster ops read them."""
    stored = set(keep)
    for op in reversed(ops):
        if not isinstance(op.attrs, RasterAttrs):
            stored.update(op.inputs)
        elif op.outputs[0] in stored:
            source = view_source(op, infos)
            if source is not None:
                stored.add(source)
    return stored


def _canonical(inputs: Sequence[str], attrs: RasterAttrs) -> tuple[list[str], RasterAttrs]:
    """Return the Raster with merged regions where order does not matter, and inputs in use only."""
    inputs, attrs = _compact(inputs, attrs)
    if attrs.ordered:
        return inputs, attrs
    regions = tuple(sorted(merge(attrs.regions), key=lambda region: region.dst.offset))
    if regions == attrs.regions:
        return inputs, attrs
    return _compact(inputs, replace(attrs, regions=regions))


def _compact(inputs: Sequence[str], attrs: RasterAttrs) -> tuple[list[str], RasterAttrs]:
    names, regions = compact_origins(inputs, attrs.regions)
    if names == inputs:  # then all origins are unchanged
        return names, attrs
    return names, replace(attrs, regions=tuple(regions))


def _collapse(
    inputs: list[str],
    attrs: RasterAttrs,
    elements: int,
    rasters: Mapping[str, RasterAttrs],
    sources: Mapping[str, list[str]],
    stored: AbstractSet[str],
    meter: Meter,
) -> tuple[list[str], RasterAttrs]:
    """Read through producers until none can be read through."""
    refused: set[str] = set()
    while True:
        name = next((name for name in inputs if name in rasters and name not in refused), None)
        if name is None:
            return _canonical(inputs, attrs)
        composed = _read_through(
            attrs, inputs.index(name), len(inputs), rasters[name], elements, meter
        )
        if composed is None:
            refused.add(name)
            continue
        limit = len(attrs.regions) if name in stored else max(MAX_REGIONS, len(attrs.regions))
        names, candidate = _compact(inputs + sources[name], composed)
        if len(candidate.regions) > limit:
            names, candidate = _canonical(names, candidate)
        if len(candidate.regions) > limit:
            refused.add(name)
        else:
            inputs, attrs = names, candidate


def _read_through(
    attrs: RasterAttrs,
    origin: int,
    count: int,
    producer: RasterAttrs,
    elements: int,
    meter: Meter,
) -> RasterAttrs | None:
    """Replace input `origin` by the producer's inputs, numbered from `count` on."""
    regions: list[Region] = []
    filled = False
    for region in attrs.regions:
        if region.origin != origin:
            regions.append(region)
            continue
        meter.check_time("Raster")
        parts = _compose_all(region, producer.regions)
        if parts is None:
            return None
        filled = filled or not covers(parts, region_elements(region))
        regions += [replace(part, origin=count + part.origin) for part in parts]
    fill = attrs.fill
    if filled:
        if attrs.ordered:
            return None
        if covers(attrs.regions, elements):
            fill = producer.fill
        elif _fill_key(fill) != _fill_key(producer.fill):
            return None
    return replace(attrs, regions=tuple(regions), fill=fill)


def _compose_all(region: Region, producer: Iterable[Region]) -> list[Region] | None:
    parts: list[Region] = []
    for inner in producer:
        found = compose(region, inner)
        if found is None:
            return None
        parts += found
    return parts


def _fill_key(fill: float) -> tuple[object, ...]:
    """Return a key that distinguishes fills: -0.0 is not 0, and NaN equals NaN."""
    return ("nan",) if math.isnan(fill) else (fill, math.copysign(1, fill))


def _without_unread(ops: Sequence[Op], keep: AbstractSet[str]) -> list[Op]:
    read = set(keep)
    kept: list[Op] = []
    for op in reversed(ops):
        if isinstance(op.attrs, RasterAttrs) and op.outputs[0] not in read:
            continue
        read.update(op.inputs)
        kept.append(op)
    return kept[::-1]
