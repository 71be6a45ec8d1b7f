"""Dispatches over tiles, and split-K: several workgroups per tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vkmnn.core.tensor import Tensor
from vkmnn.runtime.recorder import linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.encoder import Params, VulkanEncoder, ceil_div

# Minimum K per part, and maximum parts per tile.
MIN_PART = 256
MAX_PARTS = 8


def parts_of(steps: int, k: int) -> Iterator[int]:
    """Yield the possible numbers of workgroups per tile with `steps` steps along an axis of k."""
    for parts in range(2, min(MAX_PARTS, k // MIN_PART) + 1):
        if used_parts(steps, parts) == parts:
            yield parts


def used_parts(steps: int, parts: int) -> int:
    """Return the number of parts with work, if all but the last have the same number of steps."""
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
    """Record a dispatch with one workgroup per tile, or with `parts` workgroups.

    With several, each stores its partial sums in memory, and the last one to finish adds them
    (`include/last_arriver.glsl.j2`).

    Args:
        shader: the kernel.
        tensors: its bindings, without those of the split.
        params: its parameters.
        spec: its specialization constants.
        encoder: records the dispatch.
        tiles: number of tiles of the whole product.
        parts: workgroups per tile.
        part_elements: float32 numbers per part.
    """
    workspace: list[Tensor] = []
    if parts > 1:
        sums = encoder.scratch(tiles * parts * part_elements, full=True)
        workspace = [sums, encoder.counter(tiles)]
    groups = linear_groups(tiles * parts, 1, encoder.info.limits)
    encoder.dispatch(shader, [*tensors, *workspace], params, groups, spec)
