"""Copies of several regions into one output, in one dispatch or one after the other.

Byte ranges cannot express that interleaved regions do not overlap, so separate copies wait for each
other. Concatenations along the last axis, as in the heads of detectors, are an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Region
from vkmnn.shaders import kernels
from vkmnn.vulkan.copies.region_copy import (
    Walk,
    blocked_of,
    copy_region,
    moves,
    reach_of,
    walk_of,
)
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.storage import storage_bytes

# Limits of one dispatch: see raster_parts.comp.j2.
MAX_SOURCES = 6
MAX_REGIONS = 16


@dataclass(frozen=True, slots=True)
class _Part:
    """A region, how a kernel walks over it, and its source, which may be blocked."""

    region: Region
    walk: Walk
    source: Tensor
    blocked: bool
    reach: int


def copy_regions(
    regions: Sequence[Region],
    sources: Mapping[int, Tensor],
    output: Tensor,
    encoder: VulkanEncoder,
    *,
    by_blocks: bool = False,
    ordered: bool = False,
) -> None:
    """Record the copies of regions, as `copy_region` does one.

    Args:
        regions: simplified.
        sources: sources by the regions' origins.
        output: the output.
        encoder: records the dispatches.
        by_blocks: all tensors are blocked, and addresses follow that order.
        ordered: regions overlap, and the last one wins.
    """
    parts: list[_Part] = []
    for region in regions:
        source = sources[region.origin]
        blocked = blocked_of(source, output, by_blocks)
        if ordered or blocked == "both" or not _fits(source, output, encoder):
            copy_region(region, source, output, encoder, by_blocks=by_blocks)
            continue
        walk = walk_of(region, source, output, blocked)
        reach = reach_of(source, output, blocked)
        parts.append(_Part(region, walk, source, blocked == "source", reach))
    for wide in (True, False):
        for group in _groups([part for part in parts if part.walk.wide is wide]):
            if len(group) > 1 and _together(group, encoder):
                _record(group, output, encoder)
                continue
            for part in group:
                copy_region(part.region, part.source, output, encoder, by_blocks=by_blocks)


def _fits(source: Tensor, output: Tensor, encoder: VulkanEncoder) -> bool:
    limits = encoder.info.limits
    whole = max(storage_bytes(source), storage_bytes(output)) <= limits.max_storage_buffer_range
    return whole and limits.max_storage_bindings >= MAX_SOURCES + 2


def _groups(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Return the parts in groups that fit the sources and regions of a dispatch."""
    groups: list[list[_Part]] = []
    seen: set[Tensor] = set()
    for part in parts:
        if not groups or len(groups[-1]) == MAX_REGIONS or len(seen | {part.source}) > MAX_SOURCES:
            groups.append([])
            seen = set()
        groups[-1].append(part)
        seen.add(part.source)
    return groups


def _together(group: Sequence[_Part], encoder: VulkanEncoder) -> bool:
    """Return whether one dispatch copies them; CPU devices are faster with few axes at a time."""
    gpu = is_gpu(encoder.info)
    problem = tuple((part.walk.axes, part.blocked) for part in group)
    return encoder.choose("regions", problem, (gpu, not gpu))


def _record(group: Sequence[_Part], output: Tensor, encoder: VulkanEncoder) -> None:
    """Record one dispatch for all of them."""
    sources = list(dict.fromkeys(part.source for part in group))
    rows, count = [], 0
    for part in group:
        walk, axes = part.walk, part.walk.padded
        rows.append(
            [
                *(count, walk.src, walk.dst, sources.index(part.source)),
                *(walk.source if part.blocked else (0, 1, 1)),
                *(size for size, _, _ in axes[1:]),
                *(step for _, step, _ in axes),
                *(step for _, _, step in axes),
            ]
        )
        count += walk.count
    bound = [*sources, *[sources[0]] * (MAX_SOURCES - len(sources))]
    shader = kernels.raster_parts(width=group[0].walk.width, element=encoder.element)
    encoder.dispatch_linear(
        shader,
        [*bound, encoder.literal("regions", np.array(rows, np.int32)), output],
        kernels.RasterPartsParams(count=count),
        count,
        {"AXES": max(1, *(len(part.walk.axes) for part in group)), "REGIONS": len(group)},
        reach=max(part.reach for part in group),
    )
    elements = sum(prod(part.region.size) for part in group)
    encoder.expect(lambda: moves(elements, output, encoder))
