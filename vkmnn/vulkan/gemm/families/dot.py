"""Quantised convolutions and products in shared memory, with four-byte dot products."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import cast

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.recorder import linear_groups
from vkmnn.shader_files.tiles import DotTile
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.cost.tiles import Tiling, tiles_cost, weighed_us
from vkmnn.vulkan.device_rules import has_fast_dots
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.binding import alignment, bind_convolution, bind_matmul
from vkmnn.vulkan.gemm.families.shared import tap_table
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    kernel_family,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import (
    PANEL,
    Operand,
    left_operand,
    right_matrices,
    right_operand,
    right_words,
)
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm, MatMulProblem
from vkmnn.vulkan.gemm.shared_tiles import EFFICIENCY as TILE_EFFICIENCY
from vkmnn.vulkan.gemm.shared_tiles import LOAD_FLOPS, REGISTERS, Tile, room_of, workgroups
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import pack_panels

TILES: tuple[kernels.ConvDotTile, ...] = ("64x64", "32x32")
# Up to this inner axis, sums of byte products fit 32 bits, and loops stay short.
MAX_K = 1 << 16
# Below this size, a tile is mostly empty.
MIN_K, MIN_OUTPUTS = 64, 16
# Words along K per step, and values per word.
DEPTH, WORD = 16, 4


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvDot(ConvKernel):
    """Convolutions as implicit GEMM of bytes, with sums of 32-bit integers."""

    tile: kernels.ConvDotTile
    family = "dot"
    supports = Trait.INT8_WEIGHTS | Trait.INT32_SUM
    requires = Trait.INT8_DOT

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank quantised convolutions; first if the device has dot product instructions."""
        if "integer_dot" not in target.info.features:
            return
        gemm = problem.gemm()
        if gemm.k > MAX_K:
            return
        fast = Place.MADE_FOR_IT if worth(gemm) and has_fast_dots(target.info) else Place.SPARE
        place = fast if target.gpu else Place.EMULATED
        for tile in TILES:
            kernel = cls(tile)
            expected = kernel.predict(problem, target)
            us = weighed_us(expected.cost.total, expected.done, expected.needed)
            yield Bid(kernel, place, us)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the predicted time of the tiles, whose words are loaded one at a time."""
        gemm, tiles = problem.gemm(), self._tiles(problem)
        size = DotTile.parse(self.tile)
        rows, columns, each, invocations = size.rows, size.columns, size.each, size.invocations
        steps = ceil_div(gemm.k, WORD * DEPTH)
        tiling = Tiling(
            tiles=tiles,
            parts=1,
            steps=steps,
            left_bytes=WORD * DEPTH * rows,
            right_bytes=WORD * DEPTH * columns,
            staged_bytes=4 * DEPTH * (invocations * sum(each) + rows + columns),
            flops=2 * rows * columns * WORD * DEPTH,
            results=rows * columns,
            invocations=invocations,
            registers=prod(each) + REGISTERS,
            shared=16 * size.stage,
            groups=1,
            buffers=1,
            weight_bytes=gemm.columns * gemm.k * gemm.batches,
            dots=True,
            efficiency=TILE_EFFICIENCY[each],
            lane_flops=LOAD_FLOPS * DEPTH * (rows + columns // 4),
        )
        cold = target.weight_bytes > class_of(target.info).cache_bytes
        done = tiles * rows * columns * steps * WORD * DEPTH
        return Expected(tiles_cost(tiling, target.info, cold), problem.work, done)

    @property
    def rows(self) -> int:
        """Pixels of a tile."""
        return DotTile.parse(self.tile).rows

    @property
    def panel(self) -> int:
        """The columns of a tile."""
        return DotTile.parse(self.tile).columns // 4

    @property
    def form(self) -> str:
        """Words along K rather than along output channels."""
        return f"dot:{self.panel}"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights [group][panels][tap][C / 4][columns][4]."""
        panels = pack_panels(w, self.panel, group)
        *outer, depth, width = panels.shape
        words: Array = panels.reshape(*outer, depth // 4, 4, width).swapaxes(-1, -2)
        return words

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        problem = job.problem
        bound = bind_convolution(job, self, encoder)
        *inputs, y = bound.tensors
        one_tap = problem.kernel == (1, 1, 1)
        offsets = offsets_of(job, encoder)
        taps = offsets
        if not one_tap:
            sizes = problem.in_size, problem.in_blocks, bound.sizes["in_block"]
            taps = encoder.literal("taps", tap_table(problem.kernel, problem.dilation, *sizes))
        shader = kernels.conv_dot(tile=self.tile)
        tiles = self._tiles(problem)
        params = kernels.ConvDotParams(
            k4=problem.taps * problem.in_blocks, tiles=tiles, **bound.sizes
        )
        spec = {
            **bound.spec,
            **index_spec(shader, problem.pixels),
            "PADDED": problem.padded,
            "ONE_TAP": one_tap,
        }
        groups = linear_groups(tiles, 1, encoder.info.limits)
        encoder.dispatch(shader, [*inputs, taps, offsets, y], params, groups, spec)

    def _tiles(self, problem: ConvProblem) -> int:
        panels = problem.group * ceil_div(problem.outputs, 4 * self.panel)
        return ceil_div(problem.pixels, self.rows) * panels


def worth(gemm: Gemm) -> bool:
    """Return whether byte tiles are mostly full."""
    return gemm.k >= MIN_K and gemm.columns >= MIN_OUTPUTS


def offsets_of(job: ConvJob, encoder: VulkanEncoder) -> Tensor:
    """Return the sum of each channel's weights, to be multiplied by the shift of x."""
    weights = job.weights
    width = ceil_div(job.problem.channels, 4) * 4

    def sums(plain: Array) -> Array:
        seen = weights.view(plain)
        made = np.zeros(width, np.int32)
        made[: seen.shape[0]] = seen.reshape(seen.shape[0], -1).sum(1, dtype=np.int64)
        return made

    return encoder.constant(weights.tensor, f"offset:{weights.key}", sums)


# --- products -------------------------------------------------------------------------------------

PRODUCT_TILES = (Tile(64, 64), Tile(32, 32), Tile(32, 32, 4))
# Words along K per step of a group of invocations.
LINES = 8
# Cost of packing four floats into a word: two multiplications, four additions, and the packing.
WORD_FLOPS = 16
# Up to this size, the guaranteed minimum of shared memory, tiles are double-buffered.
TWO_BUFFERS = 16 << 10


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulDot(MatMulKernel):
    """Quantised products with 32-bit sums."""

    tile: Tile
    family = "dot"
    supports = Trait.INT8_WEIGHTS
    requires = Trait.INT8_DOT
    dtypes = frozenset({"f32"})

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Rank quantised products; by time if the device has dot product instructions."""
        if "integer_dot" not in target.info.features:
            return
        if not 0 < problem.k <= MAX_K:
            return
        fast = Place.TIMED if has_fast_dots(target.info) else Place.SPARE
        place = fast if target.gpu else Place.EMULATED
        for number, tile in enumerate(PRODUCT_TILES):
            if tile.invocations > room_of(target.info)[0]:
                continue
            kernel, cost = cls(tile), float(number)
            if target.gpu:
                expected = kernel.predict(problem, target)
                cost = weighed_us(expected.cost.total, expected.done, expected.needed)
            yield Bid(kernel, place, cost)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the predicted time of the tiles: a byte per constant element, four otherwise."""
        gemm = problem.gemm
        return Expected(self._cost(gemm, target), gemm.work, self._done(gemm))

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return both operands: floats, and constants as words of four along K."""
        left = left_operand(job, encoder)
        if job.b.value is None:
            return left, right_operand(job, encoder, PANEL)
        return left, right_words(job, encoder)

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm, codes, plain = job.problem.gemm, job.int8.dots, job.b.value is None
        assert codes is not None
        operands = self.pack(job, encoder)
        bound = bind_matmul(job, operands, encoder)
        *inputs, y = bound.tensors
        unused = inputs[2]
        shader = kernels.matmul_dot(
            tile=cast(kernels.MatmulDotTile, self.tile.name), aligned=alignment(job)
        )
        tiles = workgroups(self.tile, gemm)
        encoder.dispatch(
            shader,
            [*inputs, unused if plain else sums_of(job, encoder), codes.point or unused, y],
            kernels.MatmulDotParams(
                **bound.sizes, tiles=tiles, b_matrix=operands[1].batch, a_shift=codes.left
            ),
            linear_groups(tiles, 1, encoder.info.limits),
            {
                **bound.spec,
                "WEIGHT_SHIFT": codes.right,
                "B_PLAIN": plain,
                "POINTED": codes.point is not None,
                "TAIL": ceil_div(gemm.k, WORD) % self._lines != 0,
            },
        )

    @property
    def _lines(self) -> int:
        return LINES * self.tile.groups

    @property
    def _depth(self) -> int:
        return WORD * self._lines

    def _done(self, gemm: Gemm) -> int:
        steps = ceil_div(gemm.k, self._depth)
        return workgroups(self.tile, gemm) * self.tile.results * steps * self._depth

    def _cost(self, gemm: Gemm, target: Target) -> Cost:
        tile, lines = self.tile, self._lines
        constant = Trait.INT8_WEIGHTS in target.needs
        vectors = lines * (tile.rows + (0 if constant else tile.columns))
        stage = lines * (tile.rows // 4 + 1 + tile.columns // 4) * 16
        buffers = 2 if 2 * stage <= TWO_BUFFERS else 1
        weights = (1 if constant else 4) * gemm.columns * gemm.k * gemm.batches
        members = tile.invocations // tile.groups
        tiling = Tiling(
            tiles=workgroups(tile, gemm),
            parts=1,
            steps=ceil_div(gemm.k, self._depth),
            left_bytes=4 * tile.rows * self._depth,
            right_bytes=(1 if constant else 4) * tile.columns * self._depth,
            staged_bytes=4 * lines * (members * sum(tile.each) + tile.rows + tile.columns),
            flops=2 * tile.results * self._depth,
            results=tile.results,
            invocations=tile.invocations,
            registers=prod(tile.each) + REGISTERS,
            shared=buffers * stage,
            groups=tile.groups,
            buffers=buffers,
            weight_bytes=weights,
            dots=True,
            efficiency=TILE_EFFICIENCY[tile.each],
            lane_flops=(LOAD_FLOPS + WORD_FLOPS) * vectors,
        )
        cold = target.weight_bytes > class_of(target.info).cache_bytes
        return tiles_cost(tiling, target.info, cold)


def sums_of(job: MatMulJob, encoder: VulkanEncoder) -> Tensor:
    """Return the column sums along K of a constant right operand, padded to vec4s per matrix."""

    def sums(array: Array) -> Array:
        matrices = right_matrices(array, job.transposed_b)
        made = matrices.sum(1, dtype=np.int64).astype(np.int32)
        return np.pad(made, ((0, 0), (0, -made.shape[1] % 4)))

    key = f"matmul_sums:{job.transposed_b}"
    elements = job.problem.matrices[1] * ceil_div(job.problem.n, 4) * 4
    return encoder.constant(job.b, key, sums, words=elements)
