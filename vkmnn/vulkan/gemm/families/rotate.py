"""Rotation: operands in registers, exchanged by subgroup shuffles, for CPU devices.

CPU devices emulate shared memory and barriers, at ten times the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, cast

from vkmnn.base.records import dataclass
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.device_rules import CpuLanes, rotate_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.binding import bind_matmul
from vkmnn.vulkan.gemm.cpu_tiles import CPU_TILES, cpu_cost, cpu_tile, tiles_of
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    kernel_family,
    kernel_of,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.loops import LoopKernel
from vkmnn.vulkan.gemm.operands import (
    Operand,
    conv_element,
    left_operand,
    left_tiles,
    product_element,
    right_fours,
    right_operand,
)
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm, MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait

# Time of a tile by its rows, on llvmpipe with subgroups of eight and sixteen.
ROTATE_COST: dict[CpuLanes, dict[kernels.MatmulRotateRows, float]] = {
    8: {32: 32.0, 40: 40.0, 16: 18.0, 8: 14.0},
    16: {64: 64.0, 32: 33.0, 16: 19.0},
}
# Rewriting the left operand in blocks of k costs one dispatch and makes the product 1.1 to 1.4
# times faster: a tile's rows share cache lines, and do not map to the same cache sets.
PACKED, UNPACKED = 0.8, 1.1
# Operations of one core per microsecond.
ROTATE_FLOPS: dict[CpuLanes, float] = {8: 42_000.0, 16: 52_000.0}
# Ranked after kernels with the device's own subgroup size.
OTHER_LANES_US = 1e9


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvRotate(LoopKernel):
    """A workgroup is one subgroup of `local`, computing `pixels` pixels of as many blocks."""

    pixels: kernels.ConvRotateRows
    local: kernels.ConvRotateLanes
    family = "rotate"
    sized: ClassVar[bool] = False

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by measured speed on CPU devices."""
        if target.load != "texel":
            return
        lanes = rotate_lanes(target.info)
        if not target.gpu:
            for cost, tile in tiles_of("rotate", problem, target):
                if tile.panel in lanes:
                    yield Bid(kernel_of(cls, tile.pixels, tile.panel), Place.TIMED, cost)
            return
        for width in lanes:
            for tile in CPU_TILES[width]:
                if tile.family == "rotate":
                    pixels = cast(kernels.ConvRotateRows, tile.pixels)
                    yield Bid(cls(pixels, width), Place.SPARE, 1)

    def predict(self, problem: ConvProblem, target: Target) -> Expected | None:
        """Return the time as measured on CPU devices."""
        if target.gpu:
            return None
        tile = cpu_tile("rotate", self.pixels, self.local, target)
        return Expected(cpu_cost(problem, tile, target), problem.work, problem.work)

    @property
    def panel(self) -> int:
        """One channel block per invocation."""
        return self.local

    def across(self) -> int:
        """One: the invocations exchange values of the same pixels."""
        return 1

    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return the channel blocks."""
        return problem.in_blocks

    def call(self, job: ConvJob, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.conv_rotate(
            rows=self.pixels, lanes=self.local, element=conv_element(job, encoder)
        )
        return shader, kernels.ConvRotateParams


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulRotate(MatMulKernel):
    """A workgroup is one subgroup of `lanes`, computing `rows` rows of as many vec4s.

    `by_blocks`: the left operand is stored in blocks of four along k, with the rows of a block
    adjacent.
    """

    rows: kernels.MatmulRotateRows
    lanes: kernels.MatmulRotateLanes
    by_blocks: bool = False
    family = "rotate"
    supports = Trait.INT8_WEIGHTS | Trait.INT8_ACTIVATIONS

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Prefer the number of rows with the least total time; pack large operands."""
        if "texel" not in target.loads:
            return
        info = target.info
        lanes = rotate_lanes(info)
        pays = problem.m > 1 and not target.gpu and info.subgroup_size in lanes
        place = Place.MADE_FOR_IT if pays else Place.SPARE
        gemm, cores, start = problem.gemm, cores_of(info), class_of(info).start_us
        codes = Trait.INT8_ACTIVATIONS in target.needs
        for by_blocks in (False, True):
            if (by_blocks and codes) or not (by_blocks or codes or problem.plain):
                continue
            for number, width in enumerate(lanes):
                for rows in ROTATE_COST[width]:
                    kernel = kernel_of(cls, rows, width, by_blocks)
                    # Kernels with the device's own subgroup size come first.
                    cost = start + kernel.busy_us(gemm, cores) + number * OTHER_LANES_US
                    yield Bid(kernel, place, cost)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the time measured on CPU devices, without packing."""
        gemm, info = problem.gemm, target.info
        us = self.busy_us(gemm, cores_of(info))
        return Expected(Cost(class_of(info).start_us, arithmetic=us), gemm.work, gemm.work)

    def busy_us(self, gemm: Gemm, cores: int) -> float:
        """Return the predicted time without the launch."""
        panel = 4 * self.lanes
        columns = ceil_div(gemm.columns, panel) * panel * gemm.batches
        rows = ceil_div(gemm.rows, self.rows) * ROTATE_COST[self.lanes][self.rows]
        flops = 2 * rows * columns * gemm.k / ROTATE_FLOPS[self.lanes]
        gain = PACKED if gemm.pays_packing else UNPACKED
        return flops * (gain if self.by_blocks else 1.0) / cores

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return the left operand by rows, blocks or tiles, and the right one in panels."""
        if job.int8.activations is not None:
            left = left_tiles(job, self.rows, self.lanes, encoder)
        else:
            left = left_operand(job, encoder, by_blocks=self.by_blocks)
        if job.int8_weights:
            return left, right_fours(job, self.lanes, encoder)
        return left, right_operand(job, encoder, self.lanes)

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm = job.problem.gemm
        bound = bind_matmul(job, self.pack(job, encoder), encoder)
        shader = kernels.matmul_rotate(
            rows=self.rows,
            lanes=self.lanes,
            aligned=4 if gemm.columns % 4 == 0 else 1,
            element=product_element(job, encoder),
        )
        groups = (
            ceil_div(gemm.rows, self.rows),
            ceil_div(gemm.columns, 4 * self.lanes),
            gemm.batches,
        )
        params = kernels.MatmulRotateParams(**bound.sizes)
        # Kernels for quantised values bind the residual twice: as words and as vectors.
        twice = [bound.tensors[3]] if job.int8.activations is not None else []
        encoder.dispatch(shader, [*bound.tensors, *twice], params, groups, bound.spec)
