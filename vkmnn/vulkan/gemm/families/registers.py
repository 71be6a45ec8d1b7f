"""Tiles in registers alone: no shared memory, no feature, and the only ones for integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import cpu_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.binding import bind_matmul
from vkmnn.vulkan.gemm.cpu_tiles import tiles_of
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    Target,
    conv_family,
    matmul_family,
)
from vkmnn.vulkan.gemm.job import MatMulJob
from vkmnn.vulkan.gemm.loops import GPU_INVOCATIONS, GPU_LOCAL, LoopKernel
from vkmnn.vulkan.gemm.operands import PANEL, Operand, left_operand, right_operand
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem

# (pixels, channel blocks) per invocation, largest first: reuse in registers against invocations.
GPU_TILES: tuple[tuple[kernels.ConvTilePixels, kernels.ConvTileBlocks], ...] = (
    (8, 2),
    (4, 2),
    (4, 1),
    (1, 1),
)
# With so few pixels, the invocations of a workgroup take channels on GPUs.
FEW_PIXELS = 4


@conv_family
@dataclass(frozen=True)
class ConvTile(LoopKernel):
    """An invocation computes `pixels` pixels of `blocks` channel blocks; neighbours take pixels."""

    pixels: kernels.ConvTilePixels
    blocks: kernels.ConvTileBlocks
    family = "tile"

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by measured speed on CPU devices; on GPUs, the largest tile that fills them."""
        if not target.gpu:
            local = cpu_lanes(target.info)
            for cost, tile in tiles_of("tile", problem, target):
                pixels = cast(kernels.ConvTilePixels, tile.pixels)
                blocks = cast(kernels.ConvTileBlocks, tile.panel)
                yield Bid(cls(pixels, local, blocks), Place.REGISTERS, cost)
            return
        for number, (pixels, blocks) in enumerate(GPU_TILES):
            panels = ceil_div(ceil_div(problem.outputs, 4), blocks) * problem.group
            invocations = ceil_div(problem.pixels, pixels) * panels
            fills = invocations >= GPU_INVOCATIONS
            # Where none fills the device, the smallest.
            cost = number if fills else 2 * len(GPU_TILES) - number
            yield Bid(cls(pixels, GPU_LOCAL, blocks), Place.REGISTERS, cost)
        yield Bid(cls(8, GPU_LOCAL, 1), Place.SPARE)

    @property
    def panel(self) -> int:
        """The channel blocks of an invocation."""
        return self.blocks

    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return the channel blocks."""
        return problem.in_blocks

    def call(self, problem: ConvProblem, encoder: VulkanEncoder) -> ShaderCall:
        """Return what to dispatch."""
        shader = kernels.conv_tile(
            across="pixels",
            pixels=self.pixels,
            blocks=self.blocks,
            element=encoder.element,
            load=encoder.load,
        )
        return shader, kernels.ConvTileParams


@conv_family
@dataclass(frozen=True)
class ConvTileChannels(LoopKernel):
    """The same where pixels are few: the invocations of a workgroup take channel blocks."""

    pixels: kernels.ConvTilePixels
    family = "channels"

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by measured speed on CPU devices; first on GPUs where pixels are few."""
        if not target.gpu:
            for cost, tile in tiles_of("channels", problem, target):
                pixels = cast(kernels.ConvTilePixels, tile.pixels)
                yield Bid(cls(pixels, tile.panel), Place.REGISTERS, cost)
            return
        cost = -1 if problem.pixels <= FEW_PIXELS else 2 * len(GPU_TILES) + 1
        sizes: tuple[kernels.ConvTilePixels, ...] = (1, 4) if problem.pixels == 1 else (4, 1)
        for pixels in sizes:
            yield Bid(cls(pixels, GPU_LOCAL), Place.REGISTERS, cost)

    @property
    def panel(self) -> int:
        """A channel block for each invocation."""
        return self.local

    def across(self) -> int:
        """One: all invocations compute the same pixels."""
        return 1

    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return the channel blocks."""
        return problem.in_blocks

    def call(self, problem: ConvProblem, encoder: VulkanEncoder) -> ShaderCall:
        """Return what to dispatch."""
        shader = kernels.conv_tile(
            across="channels",
            pixels=self.pixels,
            blocks=1,
            element=encoder.element,
            load=encoder.load,
        )
        return shader, kernels.ConvTileParams


@matmul_family
@dataclass(frozen=True)
class MatMulTile(MatMulKernel):
    """An invocation computes `rows` rows of two vec4s.

    `by_blocks`: the left operand lies in blocks of four along k, the rows of a block side by side.
    """

    rows: kernels.MatmulTileTile
    by_blocks: bool = False
    family = "tile"
    dtypes = frozenset({"f32", "i32"})

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Prefer several rows where there are any."""
        several = problem.m > 1
        yield Bid(cls(8), Place.REGISTERS, 0 if several else 1)
        yield Bid(cls(1), Place.REGISTERS, 1 if several else 0)
        # Last, since no device is known that gains: for the tuner, and for tests of the packing.
        yield Bid(cls(8, True), Place.REGISTERS, 2)

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return the left operand by rows or by blocks."""
        left = left_operand(job, encoder, by_blocks=self.by_blocks)
        return left, right_operand(job, encoder, PANEL)

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm = job.problem.gemm
        bound = bind_matmul(job, self.pack(job, encoder))
        shader = kernels.matmul_tile(
            tile=self.rows,
            aligned=4 if gemm.columns % 4 == 0 else 1,
            element="i32" if job.problem.dtype == "i32" else encoder.element,
            load=encoder.load,
        )
        local = cpu_lanes(encoder.info) if encoder.load == "texel" else 32
        groups = (
            ceil_div(gemm.columns, 8 * local),
            ceil_div(gemm.rows, self.rows),
            gemm.batches,
        )
        spec = bound.spec | {"local_size_x": local}
        encoder.dispatch(
            shader, bound.tensors, kernels.MatmulTileParams(**bound.sizes), groups, spec
        )
