"""Tiles in shared memory with float16 arithmetic within a step, for `precision="low"` on GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from vkmnn.base.records import dataclass
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.binding import bind_matmul
from vkmnn.vulkan.gemm.families.shared import MAX_TAP_BLOCKS, SharedConv, kernels_of
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    kernel_family,
)
from vkmnn.vulkan.gemm.half import half_right, half_weights
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import left_operand
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.shared_tiles import HALF_NARROW, HALF_TILES, SharedKernel, shared_cost
from vkmnn.vulkan.gemm.split import dispatch_tiles
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulHalf(SharedKernel, MatMulKernel):
    """Products by constants."""

    requires = Trait.FP16_MATH
    half = True

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterable[Bid[MatMulKernel]]:
        """Rank by `shared_tiles`."""
        return kernels_of(cls, problem.gemm, target, HALF_TILES)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the time by `shared_tiles`."""
        gemm, device = problem.gemm, (target.info, target.weight_bytes, target.element_bytes)
        cost = shared_cost(self, gemm, *device)
        return Expected(cost, gemm.work, self.tile.done(gemm))

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm = job.problem.gemm
        right, powers = half_right(job, self.tile.chained, encoder)
        bound = bind_matmul(job, (left_operand(job, encoder), right), encoder)
        shader = kernels.matmul_half(
            tile=cast(kernels.MatmulHalfTile, self.tile.name),
            split=self.split,
            aligned=4 if gemm.columns % 4 == 0 else 1,
        )
        walk = self.walk(gemm)
        dispatch_tiles(
            shader,
            [*bound.tensors, powers],
            kernels.MatmulHalfParams(**bound.sizes, **walk, epsilon=0.0, mean=0.0),
            {
                **bound.spec,
                "BUFFERS": self.buffers(encoder.info),
                "TAIL": self.tile.has_tail(gemm.k),
            },
            encoder,
            tiles=walk["tiles"],
            parts=self.parts,
            part_elements=self.tile.results,
        )


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvHalf(SharedConv):
    """Convolutions as implicit GEMM, with constant weights."""

    supports = Trait.PHASES
    requires = Trait.FP16_MATH
    half = True

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterable[Bid[ConvKernel]]:
        """Rank by `shared_tiles`, if the tap table is not too long."""
        gemm = problem.gemm()
        if gemm.k > 4 * MAX_TAP_BLOCKS:
            return ()
        tiles = (*HALF_TILES, *HALF_NARROW)
        return kernels_of(cls, gemm, target, tiles, pixels=True, padded=problem.padded)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time by `shared_tiles`."""
        gemm, device = problem.gemm(), (target.info, target.weight_bytes, target.element_bytes)
        cost = shared_cost(self, gemm, *device, pixels=True, padded=problem.padded)
        return Expected(cost, problem.work, self.tile.done(gemm))

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        shader = kernels.conv_half(
            tile=cast(kernels.ConvHalfTile, self.tile.name), split=self.split
        )
        weights, powers = half_weights(job, self.tile.chained)
        tensors, sizes, spec = self.bind(replace(job, weights=weights), shader, encoder)
        dispatch_tiles(
            shader,
            [*tensors, encoder.constant(powers.tensor, powers.key, powers.view, full=True)],
            kernels.ConvHalfParams(**sizes),
            spec,
            encoder,
            tiles=sizes["tiles"],
            parts=self.parts,
            part_elements=self.tile.results,
        )
