"""Tiles in registers only: no shared memory or optional feature; the only ones for integers."""

from __future__ import annotations

from collections.abc import Iterator

from vkmnn.base.elements import FLOATS
from vkmnn.base.records import dataclass
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import cpu_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.binding import alignment, bind_rowwise
from vkmnn.vulkan.gemm.cpu_tiles import cpu_cost, cpu_tile, tiles_of
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    kernel_family,
    kernel_of,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.loops import GPU_LOCAL, LoopKernel
from vkmnn.vulkan.gemm.operands import (
    PANEL,
    Operand,
    conv_element,
    left_operand,
    right_operand,
    weight_element,
)
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait

# (pixels, channel blocks) per invocation, largest first: reuse in registers versus parallelism.
GPU_TILES: tuple[tuple[kernels.ConvTilePixels, kernels.ConvTileBlocks], ...] = (
    (8, 2),
    (4, 2),
    (4, 1),
    (1, 1),
)
# Fraction of a multiprocessor's peak rate when operands come from caches.
GPU_EFFICIENCY = 0.35


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvTile(LoopKernel):
    """An invocation computes `pixels` pixels of `blocks` channel blocks."""

    pixels: kernels.ConvTilePixels
    blocks: kernels.ConvTileBlocks
    family = "tile"

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by time: measured on CPU devices, predicted on GPUs."""
        if not target.gpu:
            local = cpu_lanes(target.info)
            for cost, tile in tiles_of("tile", problem, target):
                yield Bid(kernel_of(cls, tile.pixels, local, tile.panel), Place.TIMED, cost)
            return
        for pixels, blocks in GPU_TILES:
            kernel = cls(pixels, GPU_LOCAL, blocks)
            yield Bid(kernel, Place.TIMED, kernel.predict(problem, target).cost.total)
        yield Bid(cls(8, GPU_LOCAL, 1), Place.SPARE)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time: as measured on CPU devices, predicted on GPUs."""
        if not target.gpu:
            tile = cpu_tile("tile", self.pixels, self.blocks, target)
            return Expected(cpu_cost(problem, tile, target), problem.work, problem.work)
        panels = ceil_div(ceil_div(problem.outputs, 4), self.blocks) * problem.group
        loop = _loop(
            problem,
            ceil_div(problem.pixels, self.pixels * GPU_LOCAL) * panels,
            (self.pixels, self.blocks),
            # All invocations read the same weights, and different pixels.
            4 * self.blocks + self.pixels * min(GPU_LOCAL, ceil_div(problem.pixels, self.pixels)),
            target,
        )
        cost = loop_cost(loop, target.info, target.cold)
        return Expected(cost, problem.work, problem.work)

    @property
    def panel(self) -> int:
        """The channel blocks of an invocation."""
        return self.blocks

    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return the channel blocks."""
        return problem.in_blocks

    def call(self, job: ConvJob, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.conv_tile(
            across="pixels",
            pixels=self.pixels,
            blocks=self.blocks,
            element=conv_element(job, encoder),
            load=encoder.load,
        )
        return shader, kernels.ConvTileParams


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvTileChannels(LoopKernel):
    """Tiles for few pixels: the invocations of a workgroup have different channel blocks."""

    pixels: kernels.ConvTilePixels
    family = "channels"

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by time: measured on CPU devices, predicted on GPUs."""
        if not target.gpu:
            for cost, tile in tiles_of("channels", problem, target):
                yield Bid(kernel_of(cls, tile.pixels, tile.panel), Place.TIMED, cost)
            return
        sizes: tuple[kernels.ConvTilePixels, ...] = (4, 1)
        for pixels in sizes:
            kernel = cls(pixels, GPU_LOCAL)
            yield Bid(kernel, Place.TIMED, kernel.predict(problem, target).cost.total)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time: as measured on CPU devices, predicted on GPUs."""
        if not target.gpu:
            tile = cpu_tile("channels", self.pixels, self.local, target)
            return Expected(cpu_cost(problem, tile, target), problem.work, problem.work)
        channels = ceil_div(problem.outputs, 4)
        panels = ceil_div(channels, GPU_LOCAL) * problem.group
        loop = _loop(
            problem,
            ceil_div(problem.pixels, self.pixels) * panels,
            (self.pixels, 1),
            # All invocations read the same pixels, and different weights.
            self.pixels + 4 * min(GPU_LOCAL, channels),
            target,
        )
        cost = loop_cost(loop, target.info, target.cold)
        return Expected(cost, problem.work, problem.work)

    @property
    def panel(self) -> int:
        """One channel block per invocation."""
        return self.local

    def across(self) -> int:
        """One: all invocations compute the same pixels."""
        return 1

    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return the channel blocks."""
        return problem.in_blocks

    def call(self, job: ConvJob, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.conv_tile(
            across="channels",
            pixels=self.pixels,
            blocks=1,
            element=conv_element(job, encoder),
            load=encoder.load,
        )
        return shader, kernels.ConvTileParams


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulTile(MatMulKernel):
    """An invocation computes `rows` rows of two vec4s.

    `by_blocks`: the left operand is stored in blocks of four along k, with the rows of a block
    adjacent.
    """

    rows: kernels.MatmulTileTile
    by_blocks: bool = False
    family = "tile"
    supports = Trait.INT8_WEIGHTS | Trait.NORM_ROWS | Trait.GATED
    dtypes = frozenset({*FLOATS, "i32"})

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Prefer several rows if there are any."""
        rows: tuple[kernels.MatmulTileTile, ...] = (8, 1) if problem.m > 1 else (1, 8)
        for count in rows:
            kernel = cls(count)
            yield Bid(kernel, Place.TIMED, kernel.predict(problem, target).cost.total)
        # No known device benefits: for the tuner, and for tests of the packing.
        yield Bid(cls(8, True), Place.SPARE)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the time of a tile of `rows` by two vec4s per invocation."""
        gemm = problem.gemm
        local = 32 if target.gpu else cpu_lanes(target.info)
        across, down = ceil_div(gemm.columns, 8 * local), ceil_div(gemm.rows, self.rows)
        loop = Loop(
            workgroups=across * down * gemm.batches,
            invocations=local,
            rounds=ceil_div(gemm.k, 4),
            round_bytes=4 * target.element_bytes * (self.rows + 8 * local),
            round_flops=2 * 4 * 8 * self.rows * local,
            results=8 * self.rows * local,
            registers=32 + 8 * self.rows,
            weight_bytes=gemm.columns * gemm.k * gemm.batches * target.element_bytes,
            efficiency=GPU_EFFICIENCY,
        )
        return Expected(loop_cost(loop, target.info, target.cold), gemm.work, gemm.work)

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return the left operand packed by rows or by blocks."""
        left = left_operand(job, encoder, by_blocks=self.by_blocks)
        return left, right_operand(job, encoder, PANEL)

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm = job.problem.gemm
        bound = bind_rowwise(job, self.pack(job, encoder), encoder)
        shader = kernels.matmul_tile(
            tile=self.rows,
            aligned=alignment(job),
            element="i32" if job.problem.dtype == "i32" else weight_element(job, encoder),
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


def _loop(
    problem: ConvProblem, workgroups: int, tile: tuple[int, int], loads: int, target: Target
) -> Loop:
    """Return the cost of the loop on a GPU.

    Args:
        problem: the convolution.
        workgroups: number of workgroups in the dispatch.
        tile: pixels and channel blocks per invocation.
        loads: blocks of four that a workgroup loads per iteration; shared ones count once.
        target: the device.
    """
    pixels, blocks = tile
    return Loop(
        workgroups=workgroups,
        invocations=GPU_LOCAL,
        rounds=problem.taps * problem.in_blocks,
        round_bytes=4 * target.element_bytes * loads,
        round_flops=2 * 16 * pixels * blocks * GPU_LOCAL,
        results=4 * pixels * blocks * GPU_LOCAL,
        registers=32 + 4 * pixels * blocks,
        weight_bytes=problem.channels * problem.taps * problem.inputs * target.element_bytes,
        efficiency=GPU_EFFICIENCY,
    )
