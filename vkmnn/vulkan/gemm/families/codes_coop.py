"""Quantised convolutions and products by cooperative matrices of signed bytes.

The right operand of products is a constant of signed bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import cast

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.recorder import linear_groups
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.binding import Binding, alignment, bind_convolution, bind_matmul
from vkmnn.vulkan.gemm.coop_tiles import VECTOR_BYTES, CoopKernel, coop_cost, timed_coop
from vkmnn.vulkan.gemm.families.coop import MAX_TAP, pack_rows
from vkmnn.vulkan.gemm.families.dot import MAX_K, WORD_FLOPS, offsets_of, sums_of, worth
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    kernel_family,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import Operand, left_operand, right_matrices
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.shared_tiles import LOAD_FLOPS
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import packed_elements, words_of
from vkmnn.vulkan.splitting.spatial import Triple

# Channel blocks per uvec4 of bytes.
BLOCKS = 4


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvCodesCoop(CoopKernel, ConvKernel):
    """Quantised convolutions with byte matrices; k counts groups of four channel blocks."""

    supports = Trait.INT8_WEIGHTS | Trait.INT32_SUM
    requires = Trait.INT8_DOT

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank quantised convolutions with signed bytes by time, on devices with matrices."""
        gemm = problem.gemm(VECTOR_BYTES)
        reach = [(k - 1) * step for k, step in zip(problem.kernel, problem.dilation, strict=True)]
        if gemm.k > MAX_K or max(reach) >= MAX_TAP:
            return
        made_for_it = Place.MADE_FOR_IT if worth(problem.gemm()) else Place.SPARE
        place = made_for_it if target.gpu else Place.EMULATED
        timed = timed_coop(
            gemm, target.info, target.weight_bytes, needed=problem.work, of_bytes=True
        )
        for cost, kernel in timed:
            yield Bid(cls(kernel.tile), place, cost)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time by `coop_tiles`."""
        gemm = problem.gemm(VECTOR_BYTES)
        cost = coop_cost(self, gemm, target.info, target.weight_bytes)
        return Expected(cost, problem.work, self.tile.done(gemm))

    @property
    def panel(self) -> int:
        """The columns of a tile."""
        return self.tile.columns // 4

    @property
    def form(self) -> str:
        """The single packed form of all tiles."""
        return "codes_coop"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights as `pack_rows` does; input channels are padded to whole uvec4s."""
        return pack_rows(w, group, VECTOR_BYTES)

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of elements of the packed weights."""
        depth = ceil_div(problem.inputs, VECTOR_BYTES) * VECTOR_BYTES
        return packed_elements(problem.weight_groups, problem.outputs, depth, problem.taps, 1)

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        problem = job.problem
        gemm = problem.gemm(VECTOR_BYTES)
        bound = bind_convolution(job, self, encoder)
        *inputs, y = bound.tensors
        offsets = offsets_of(job, encoder)
        one_tap = problem.kernel == (1, 1, 1)
        taps = offsets if one_tap else _taps(problem, bound, encoder)
        shader = kernels.conv_codes_coop(
            tile=cast(kernels.ConvCodesCoopTile, self.tile.name),
            step=cast(kernels.ConvCodesCoopStep, self.tile.step),
        )
        tiles = self.tile.workgroups(gemm)
        params = kernels.ConvCodesCoopParams(k16=gemm.k // VECTOR_BYTES, tiles=tiles, **bound.sizes)
        spec = {
            **bound.spec,
            **index_spec(shader, problem.pixels),
            "TAIL": gemm.k % self.tile.step != 0,
            "PADDED": problem.padded,
            "ONE_TAP": one_tap,
        }
        groups = linear_groups(tiles, 1, encoder.info.limits)
        encoder.dispatch(shader, [*inputs, taps, offsets, y], params, groups, spec)


def _taps(problem: ConvProblem, bound: Binding, encoder: VulkanEncoder) -> Tensor:
    sizes = problem.kernel, problem.dilation, problem.in_size
    table = tap_table(*sizes, problem.in_blocks, bound.sizes["in_block"])
    return encoder.literal("codes coop taps", table)


@lru_cache(maxsize=256)
def tap_table(
    kernel: Triple, dilation: Triple, in_size: Triple, blocks: int, in_block: int
) -> Array:
    """Return the tap table of `conv_codes_coop`, an entry per four channel blocks of a tap.

    Columns: distance in texels, number of valid blocks, depth, height · 65536 + width. Cached,
    since plans share uploads by the array's identity.
    """
    positions = np.indices(kernel).reshape(3, -1).T * np.array(dilation)
    _, height, width = in_size
    distance = positions @ np.array([height * width, width, 1])
    first = np.arange(0, blocks, BLOCKS)
    table = np.zeros((len(positions), len(first), 4), np.int32)
    table[:, :, 0] = distance[:, None] + first * in_block
    table[:, :, 1] = np.minimum(blocks - first, BLOCKS)
    table[:, :, 2] = positions[:, :1]
    table[:, :, 3] = positions[:, 1:2] << 16 | positions[:, 2:]
    return table.reshape(-1, 4)


# --- products -------------------------------------------------------------------------------------


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulCodesCoop(CoopKernel, MatMulKernel):
    """Quantised products with constants, by byte matrices."""

    supports = Trait.INT8_WEIGHTS
    requires = Trait.INT8_DOT | Trait.SIGNED_WEIGHTS
    dtypes = frozenset({"f32"})

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Rank quantised products with signed bytes by time."""
        if problem.k > MAX_K:
            return
        place = Place.TIMED if target.gpu else Place.EMULATED
        timed = timed_coop(
            problem.gemm, target.info, target.weight_bytes, of_bytes=True, word_flops=_MADE_FLOPS
        )
        for cost, kernel in timed:
            if kernel.tile.rows <= MAX_ROWS:
                yield Bid(cls(kernel.tile), place, cost)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the predicted time by `coop_tiles`, with the conversion to bytes."""
        gemm, total = problem.gemm, target.weight_bytes
        cost = coop_cost(self, gemm, target.info, total, word_flops=_MADE_FLOPS)
        return Expected(cost, gemm.work, self.tile.done(gemm))

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return both operands: floats, and rows of bytes along k."""
        return left_operand(job, encoder), _byte_rows(job, encoder)

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm, codes = job.problem.gemm, job.int8.dots
        assert codes is not None
        operands = self.pack(job, encoder)
        bound = bind_matmul(job, operands, encoder)
        *inputs, y = bound.tensors
        shader = kernels.matmul_codes_coop(
            tile=cast(kernels.MatmulCodesCoopTile, self.tile.name),
            step=cast(kernels.MatmulCodesCoopStep, self.tile.step),
            aligned=alignment(job),
        )
        tiles = self.tile.workgroups(gemm)
        params = kernels.MatmulCodesCoopParams(
            **bound.sizes, tiles=tiles, b_matrix=operands[1].batch, a_shift=codes.left
        )
        spec = {name: value for name, value in bound.spec.items() if name != "WEIGHT_SHIFT"}
        encoder.dispatch(
            shader,
            [*inputs, sums_of(job, encoder), codes.point or inputs[2], y],
            params,
            linear_groups(tiles, 1, encoder.info.limits),
            {
                **spec,
                "POINTED": codes.point is not None,
                "TAIL": ceil_div(gemm.k, 4) * 4 % self.tile.step != 0,
            },
        )


# Larger tiles would exceed the registers.
MAX_ROWS = 64
# Cost of locating and loading four numbers, and of packing them into a word.
_MADE_FLOPS = LOAD_FLOPS + WORD_FLOPS


def _byte_rows(job: MatMulJob, encoder: VulkanEncoder) -> Operand:
    """Return a constant right operand as rows along k, padded to whole uvec4s of bytes."""
    problem, across = job.problem, job.transposed_b
    k16 = ceil_div(problem.k, VECTOR_BYTES)

    def rows(array: Array) -> Array:
        matrices = right_matrices(array, across).swapaxes(1, 2)
        return words_of(np.pad(matrices, ((0, 0), (0, 0), (0, -problem.k % VECTOR_BYTES))), 0)

    batch = problem.n * k16
    words = problem.matrices[1] * batch * 4
    packed = encoder.constant(job.b, f"codes_coop:{across}", rows, words=words)
    return Operand(packed, k16, batch)
