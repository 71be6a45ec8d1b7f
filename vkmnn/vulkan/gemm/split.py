"""Dispatches of kernels that go over tiles, and split-K: workgroups that share a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.core.tensor import Tensor
from vkmnn.runtime.recorder import linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.encoder import Params, VulkanEncoder


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
