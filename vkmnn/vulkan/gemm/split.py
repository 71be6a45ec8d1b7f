"""Dispatches of kernels whose tiles pass through shared memory, and what split products need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from vkmnn.core.tensor import Tensor
from vkmnn.runtime.encoder import linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.encoder import Params, VulkanEncoder
from vkmnn.vulkan.gemm.shared_tiles import SharedKernel


def buffer_storage(encoder: VulkanEncoder) -> Literal["ssbo", "half"]:
    """Return the value of the storage axis of kernels that load from buffers alone."""
    return "half" if encoder.load_storage.startswith("half") else "ssbo"


def meeting_tensors(
    tiles: int, parts: int, tile_elements: int, encoder: VulkanEncoder
) -> list[Tensor]:
    """Return what `include/last_arriver.glsl.j2` binds: the parts of every tile, and the counters.

    Args:
        tiles: of the whole product.
        parts: workgroups that share a tile.
        tile_elements: float32 numbers of one part.
        encoder: makes the tensors.
    """
    return [encoder.scratch(tiles * parts * tile_elements, full=True), encoder.counter(tiles)]


def dispatch_shared(
    kernel: SharedKernel,
    tiles: int,
    shader: Shader,
    tensors: Sequence[Tensor],
    params: Params,
    spec: Mapping[str, int | bool],
    encoder: VulkanEncoder,
) -> None:
    """Record a dispatch of `matmul_shared` or `conv_shared` for so many tiles."""
    meeting: list[Tensor] = []
    if kernel.split:
        elements = kernel.tile.rows * kernel.tile.columns
        meeting = meeting_tensors(tiles, kernel.parts, elements, encoder)
    encoder.dispatch(
        shader,
        [*tensors, *meeting],
        params,
        linear_groups(tiles * kernel.parts, 1, encoder.info.limits),
        {**spec, "BUFFERS": kernel.tile.buffers(encoder.info)},
    )
