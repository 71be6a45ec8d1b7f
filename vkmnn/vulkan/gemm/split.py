"""Dispatches of kernels that go over tiles, and split-K: workgroups that share a tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vkmnn.core.tensor import Tensor
from vkmnn.runtime.recorder import linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.encoder import Params, VulkanEncoder, ceil_div

# No part has less of K, and no tile more parts.
MIN_PART = 256
MAX_PARTS = 8


def parts_of(steps: int, k: int) -> Iterator[int]:
    """Yield how many workgroups may share a tile with `steps` steps along an axis of k."""
    for parts in range(2, min(MAX_PARTS, k // MIN_PART) + 1):
        if used_parts(steps, parts) == parts:
            yield parts


def used_parts(steps: int, parts: int) -> int:
    """Return how many parts have steps to do when all but the last have the same number."""
    return ceil_div(steps, ceil_div(steps, max(1, min(parts, steps))))


def dispatch_tiles(
    shader: Shader,
    tensors: Sequence[Tensor],
    params: Params,
    spec: Mapping[str, int | bool],
    encoder: VulkanEncoder,
    *,
    tiles: int,
    parts: int,
    part_elements: int,
) -> None:
    """Record a dispatch of a workgroup per tile, or of `parts` workgroups.

    Of several, each leaves its part of the sums in memory, and the last to arrive adds them
    (`include/last_arriver.glsl.j2`).

    Args:
        shader: the kernel.
        tensors: what it binds, without what the split needs.
        params: its parameters.
        spec: its specialization.
        encoder: takes the dispatch.
        tiles: of the whole product.
        parts: workgroups that share a tile.
        part_elements: float32 numbers of one part.
    """
    workspace: list[Tensor] = []
    if parts > 1:
        sums = encoder.scratch(tiles * parts * part_elements, full=True)
        workspace = [sums, encoder.counter(tiles)]
    groups = linear_groups(tiles * parts, 1, encoder.info.limits)
    encoder.dispatch(shader, [*tensors, *workspace], params, groups, spec)
