"""Products by cooperative matrices: operands as their kernels read them, parameters, dispatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.encoder import linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import Params, VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.coop_tiles import VECTOR, CoopKernel, rank_coop
from vkmnn.vulkan.gemm.shared_tiles import Product
from vkmnn.vulkan.gemm.split import meeting_tensors

if TYPE_CHECKING:
    from vkmnn.vulkan.gemm.convolution import ConvProblem

Triple = tuple[int, int, int]
# A table of taps takes 16 bytes per eight products of an output: no more than a few megabytes.
MAX_TAP_PAIRS = 1 << 18
# Depths, heights and widths of taps have 16 bits.
MAX_TAP = 1 << 15
# Lies outside of every input.
NOWHERE = 1 << 30


class Rows(NamedTuple):
    """An operand as rows along k of whole uvec4s; `row` and `batch` are strides in those."""

    tensor: Tensor
    row: int
    batch: int


def lies_by_rows(tensor: Tensor, rows: int, k: int, across: bool) -> bool:
    """Return whether `rows_of` needs no dispatch; its arguments."""
    return tensor.value is not None or (k % VECTOR == 0 and not (across and rows > 1))


def rows_of(
    tensor: Tensor, rows: int, k: int, across: bool, batches: int, encoder: VulkanEncoder
) -> Rows:
    """Return matrices as rows along k, packed unless they lie so.

    Args:
        tensor: so many `batches` of matrices of `rows` rows.
        rows: of a matrix, as the kernel sees it.
        k: elements of a row.
        across: neighbours along k lie `rows` apart, not side by side.
        batches: how many matrices the tensor holds.
        encoder: takes the packing.
    """
    k8 = ceil_div(k, VECTOR)

    def pack(array: Array) -> Array:
        matrices = array.reshape(batches, *((k, rows) if across else (rows, k)))
        ordered = matrices.swapaxes(1, 2) if across else matrices
        return np.pad(ordered, ((0, 0), (0, 0), (0, -k % VECTOR))) if k % VECTOR else ordered

    if tensor.value is not None:
        packed = encoder.constant(tensor, f"coop:{rows}:{k}:{across}", pack)
    elif lies_by_rows(tensor, rows, k, across):
        packed = tensor
    else:
        packed = encoder.scratch(batches * rows * k8 * VECTOR)
        vectors = k8 * VECTOR // 4
        params = kernels.MatmulPackParams(
            count=batches * rows * ceil_div(vectors, 4),
            rows=rows,
            vectors=vectors,
            k=k,
            columns=k,
            row_stride=1 if across else k,
            column_stride=rows if across else 1,
            batch_stride=rows * k,
            out_row=vectors,
            out_step=1,
        )
        shader = kernels.matmul_pack(operand="a", storage=encoder.load_storage)
        encoder.dispatch_linear(shader, [tensor, packed], params, params.count)
    return Rows(packed, k8, rows * k8)


def dispatch_product(
    product: Product,
    kernel: CoopKernel,
    sizes: dict[str, Any],
    tensors: Sequence[Tensor],
    spec: Mapping[str, int | bool],
    encoder: VulkanEncoder,
) -> None:
    """Record a dispatch of `matmul_coop`.

    Args:
        product: what to compute.
        kernel: one of `rank_coop`.
        sizes: the parameters that all kernels of matrix products take.
        tensors: both operands as `rows_of` returns them, bias, residual and y.
        spec: the specialization of bias and residual.
        encoder: takes the dispatch.
    """
    shader = kernels.matmul_coop(
        tile=kernel.tile.name,  # type: ignore[arg-type]
        step=kernel.tile.step,  # type: ignore[arg-type]
        split=kernel.split,
        aligned=4 if product.columns % 4 == 0 else 1,
    )
    k8 = ceil_div(product.k, VECTOR)
    walk = kernel.walk(product)
    params = kernels.MatmulCoopParams(**{**sizes, "k4": k8 * VECTOR // 4, **walk})
    spec = {**spec, "TAIL": k8 * VECTOR % kernel.tile.step != 0}
    _dispatch(kernel, walk["tiles"], shader, tensors, params, spec, encoder)


def gemm_of(problem: ConvProblem) -> Product:
    """Return a convolution as the product that its tiles make: k has pairs of channel blocks."""
    k = prod(problem.kernel) * _pairs(problem) * VECTOR
    return Product(problem.pixels, problem.outputs, k, problem.group)


def rank_conv_coop(problem: ConvProblem, info: DeviceInfo, weight_bytes: int) -> list[CoopKernel]:
    """Return the tiles that can do a convolution, the likely fastest first; maybe none."""
    product = gemm_of(problem)
    reach = [(k - 1) * step for k, step in zip(problem.kernel, problem.dilation, strict=True)]
    if product.k > VECTOR * MAX_TAP_PAIRS or max(reach) >= MAX_TAP:
        return []
    return rank_coop(product, info, weight_bytes)


def pack_conv_weights(w: Array, group: int) -> Array:
    """Pack weights [O, C/group, taps] as [group][O/group][tap][C/group].

    Output channels fill whole blocks of four, input channels whole pairs of blocks, with zeros.
    """
    _, inputs, taps = w.shape
    outputs = w.shape[0] // group
    split = w.reshape(group, outputs, inputs, taps)
    padding = ((0, 0), (0, -outputs % 4), (0, -inputs % VECTOR), (0, 0))
    padded = np.pad(split, padding) if any(map(any, padding)) else split
    ordered: Array = padded.transpose(0, 1, 3, 2)
    return ordered


def dispatch_convolution(
    problem: ConvProblem,
    kernel: CoopKernel,
    sizes: Mapping[str, Any],
    tensors: Sequence[Tensor],
    spec: Mapping[str, int | bool],
    encoder: VulkanEncoder,
) -> None:
    """Record a dispatch of `conv_coop`.

    Args:
        problem: what to compute.
        kernel: one of `rank_conv_coop`.
        sizes: the parameters that all convolution kernels take.
        tensors: x, packed weights, bias, residual and y.
        spec: the specialization of residual and activation.
        encoder: takes the dispatch.
    """
    shader = kernels.conv_coop(
        tile=kernel.tile.name,  # type: ignore[arg-type]
        step=kernel.tile.step,  # type: ignore[arg-type]
        split=kernel.split,
    )
    product = gemm_of(problem)
    blocks = ceil_div(problem.inputs, 4)
    tail = product.k % kernel.tile.step != 0
    padded = problem.padded or tail or blocks % 2 != 0
    one_tap = problem.kernel == (1, 1, 1) and not padded
    x, weights, bias, residual, y = tensors
    taps = weights
    if not one_tap:
        in_block = problem.batch * prod(problem.in_size)
        table = _taps(problem.kernel, problem.dilation, problem.in_size, blocks, in_block)
        taps = encoder.literal("coop taps", table)
    walk = kernel.walk(product)
    params = kernels.ConvCoopParams(k8=product.k // VECTOR, **sizes, **walk)
    spec = {
        **spec,
        **index_spec(shader, problem.pixels),
        "TAIL": tail,
        "PADDED": padded,
        "ONE_TAP": one_tap,
    }
    bound = [x, weights, taps, bias, residual, y]
    _dispatch(kernel, walk["tiles"], shader, bound, params, spec, encoder)


def _pairs(problem: ConvProblem) -> int:
    return ceil_div(problem.inputs, VECTOR)


@lru_cache(maxsize=256)
def _taps(kernel: Triple, dilation: Triple, in_size: Triple, blocks: int, in_block: int) -> Array:
    """Return for each pair of channel blocks of each tap what `conv_coop` wants to know.

    That is: distance in texels, from there to the second block (0: there is none), depth, height
    · 65536 + width. Behind the last pair are enough that lie outside for the longest step. Cached,
    since plans share what they upload by the array's identity.
    """
    positions = np.indices(kernel).reshape(3, -1).T * np.array(dilation)
    _, height, width = in_size
    distance = positions @ np.array([height * width, width, 1])
    pairs = ceil_div(blocks, 2)
    table = np.zeros((len(positions), pairs, 4), np.int32)
    table[:, :, 0] = distance[:, None] + 2 * np.arange(pairs) * in_block
    table[:, :, 1] = np.where(2 * np.arange(pairs) + 1 < blocks, in_block, 0)
    table[:, :, 2] = positions[:, :1]
    table[:, :, 3] = positions[:, 1:2] << 16 | positions[:, 2:]
    outside = np.zeros((-table.shape[0] * pairs % 32, 4), np.int32)
    outside[:, 2] = NOWHERE
    return np.concatenate([table.reshape(-1, 4), outside])


def _dispatch(
    kernel: CoopKernel,
    tiles: int,
    shader: Shader,
    tensors: Sequence[Tensor],
    params: Params,
    spec: Mapping[str, int | bool],
    encoder: VulkanEncoder,
) -> None:
    meeting: list[Tensor] = []
    if kernel.split:
        meeting = meeting_tensors(tiles, kernel.parts, kernel.tile.part_elements, encoder)
    groups = linear_groups(tiles * kernel.parts, 1, encoder.info.limits)
    encoder.dispatch(shader, [*tensors, *meeting], params, groups, spec)
