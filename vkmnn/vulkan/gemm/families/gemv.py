"""Convolution that makes one pixel: its window is a vector, and the weights are a matrix.

Squeeze-and-excitation blocks and fully connected layers written as convolutions are such. A pixel
lies in NC4HW4 as a plain vector does, so that the kernel of matrix products does it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import Epilogue
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.shared_tiles import GemvKernel, Product, rank_gemv
from vkmnn.vulkan.gemm.split import buffer_storage

if TYPE_CHECKING:
    from vkmnn.vulkan.gemm.convolution import ConvProblem

PANEL_VECTORS = 8


def rank_conv_gemv(problem: ConvProblem, info: DeviceInfo) -> list[GemvKernel]:
    """Return the kernel for a convolution whose window is the whole input, if it is one."""
    whole = problem.kernel == problem.in_size and problem.pad == (0, 0, 0)
    alone = problem.pixels == problem.out_block == 1 and problem.batch == problem.group == 1
    # The kernel knows no lanes behind the last channel.
    if not whole or not alone or problem.outputs % 4:
        return []
    k = prod(problem.kernel) * ceil_div(problem.inputs, 4) * 4
    return rank_gemv(Product(1, problem.outputs, k), info)


def pack_gemv_weights(w: Array) -> Array:
    """Pack weights [O, C, taps] as [panel][K][8][4]; K goes as the input lies, block by block."""
    outputs, inputs, taps = w.shape
    width = 4 * PANEL_VECTORS
    panels, blocks = ceil_div(outputs, width), ceil_div(inputs, 4)
    padded = np.zeros((panels * width, blocks * 4, taps), w.dtype)
    padded[:outputs, :inputs] = w
    split: Array = padded.reshape(panels, width, blocks, 4, taps).transpose(0, 2, 4, 3, 1)
    return split


def dispatch_conv_gemv(
    problem: ConvProblem,
    kernel: GemvKernel,
    epilogue: Epilogue,
    tensors: list[Tensor],
    spec: dict[str, int | bool],
    encoder: VulkanEncoder,
) -> None:
    """Record a dispatch of `matmul_gemv`.

    Args:
        problem: what to compute.
        kernel: one of `rank_conv_gemv`.
        epilogue: how the activation is computed.
        tensors: x, packed weights, bias, residual and y.
        spec: the specialization of residual and activation.
        encoder: takes the dispatch.
    """
    k4 = prod(problem.kernel) * ceil_div(problem.inputs, 4)
    sizes: dict[str, Any] = {
        "rows": 1,
        "columns": problem.outputs,
        "k4": k4,
        "a_row": k4,
        "a_step": 1,
        "b_panel": 4 * k4 * PANEL_VECTORS,
        "b_row": PANEL_VECTORS,
        "batch_size": (1, 1),
        "a_batch": (0, 0, 0),
        "b_batch": (0, 0, 0),
        "alpha": 1.0,
        "act_alpha": epilogue.alpha,
        "act_beta": epilogue.beta,
    }
    storage = buffer_storage(encoder)
    shader = kernels.matmul_gemv(rows=1, aligned=4, storage=storage)
    encoder.dispatch(
        shader,
        tensors,
        kernels.MatmulGemvParams(**sizes),
        (ceil_div(problem.outputs, 4 * kernel.width), 1, 1),
        {**spec, "HAS_BIAS": True, "WIDTH": kernel.width, "local_size_x": kernel.local},
    )
