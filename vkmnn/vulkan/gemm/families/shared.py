"""Convolution as implicit GEMM through shared memory: which tiles, and what the kernel takes."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.shared_tiles import Product, SharedKernel, rank_shared
from vkmnn.vulkan.gemm.split import buffer_storage, dispatch_shared

if TYPE_CHECKING:
    from vkmnn.vulkan.gemm.convolution import ConvProblem

Triple = tuple[int, int, int]
# A table of taps takes 16 bytes per four products of an output: no more than a few megabytes.
MAX_TAP_BLOCKS = 1 << 18


def gemm_of(problem: ConvProblem) -> Product:
    """Return a convolution as the product that its tiles make."""
    blocks = ceil_div(problem.inputs, 4)
    k = prod(problem.kernel) * blocks * 4
    return Product(problem.pixels, problem.outputs, k, problem.group)


def rank_conv_shared(problem: ConvProblem, info: DeviceInfo) -> list[SharedKernel]:
    """Return the tiles that can do a convolution, the likely fastest first; maybe none."""
    product = gemm_of(problem)
    if product.k > 4 * MAX_TAP_BLOCKS:
        return []
    return rank_shared(product, info)


@lru_cache(maxsize=256)
def _taps(kernel: Triple, dilation: Triple, in_size: Triple, blocks: int, in_block: int) -> Array:
    """Return (depth, height, width, distance in texels) of each channel block of each tap.

    Cached, since plans share what they upload by the array's identity.
    """
    positions = np.indices(kernel).reshape(3, -1).T * np.array(dilation)
    _, height, width = in_size
    distance = positions @ np.array([height * width, width, 1])
    table = np.empty((len(positions), blocks, 4), np.int32)
    table[:, :, :3] = positions[:, None]
    table[:, :, 3] = distance[:, None] + np.arange(blocks) * in_block
    return table


def dispatch_conv_shared(
    problem: ConvProblem,
    kernel: SharedKernel,
    sizes: dict[str, Any],
    tensors: list[Tensor],
    spec: dict[str, int | bool],
    encoder: VulkanEncoder,
) -> None:
    """Record a dispatch of `conv_shared`.

    Args:
        problem: what to compute.
        kernel: one of `rank_conv_shared`.
        sizes: the parameters that all convolution kernels take.
        tensors: x, packed weights, bias, residual and y.
        spec: the specialization of residual and activation.
        encoder: takes the dispatch.
    """
    blocks = ceil_div(problem.inputs, 4)
    in_block = problem.batch * prod(problem.in_size)
    *inputs, y = tensors
    one_tap = problem.kernel == (1, 1, 1)
    taps = inputs[0]
    if not one_tap:
        table = _taps(problem.kernel, problem.dilation, problem.in_size, blocks, in_block)
        taps = encoder.literal("taps", table)
    shader = kernels.conv_shared(
        tile=kernel.tile.name,  # type: ignore[arg-type]
        split=kernel.split,
        storage=buffer_storage(encoder),
    )
    walk = kernel.walk(gemm_of(problem))
    params = kernels.ConvSharedParams(k4=prod(problem.kernel) * blocks, **sizes, **walk)
    still = problem.stride == (1, 1, 1) and problem.in_size == problem.out_size
    _, height, width = problem.out_size
    size = prod(problem.out_size)
    spec = {
        **spec,
        **index_spec(shader, problem.pixels),
        "PADDED": problem.padded,
        "ONE_TAP": one_tap,
        "SAME": one_tap and still and problem.pad == (0, 0, 0),
        "PLAIN": problem.out_strides == (size, height * width, width, 1)
        and problem.out_offset == 0
        and problem.out_block == problem.pixels,
    }
    dispatch_shared(kernel, walk["tiles"], shader, [*inputs, taps, y], params, spec, encoder)
