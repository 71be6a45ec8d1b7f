"""Convolutions of 3 x 3 taps by cooperative matrices that read a patch of pixels for all taps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.ir import Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shader_files.tiles import HALO_DEPTH, HALO_TAPS, HaloStage
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.cost.tiles import Tiling, tiles_cost, weighed_us
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.binding import bind_convolution
from vkmnn.vulkan.gemm.coop_tiles import (
    LARGE_MATRIX,
    LLVMPIPE_MATRIX,
    WIDE_MATRIX,
    XE2_MATRIX,
    XE_MATRIX,
    CoopTile,
    Matrix,
    matrix_of,
)
from vkmnn.vulkan.gemm.family import Bid, ConvKernel, Place, kernel_family
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm
from vkmnn.vulkan.gemm.split import dispatch_tiles, parts_of
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait

STEP = HALO_TAPS * HALO_DEPTH
# Channels of a block, and elements of a uvec4.
BLOCK, VECTOR = 4, 8
# Smallest number of input channels: with fewer, most of a step is padding.
MIN_INPUTS = 9
# Steps of the loop over channels, at most.
MAX_STEPS = 1 << 12


@dataclass(frozen=True, slots=True)
class Strips:
    """How the pixels of an image are counted: in strips, each row by row.

    Attributes:
        columns: computed pixels of a row of a strip.
        pitch: pixels from one row to the next, two more than computed ones.
        spacing: pixels from one matrix to the next.
        strips: strips of an image.
        tiles: tiles of a strip.
        staged: pixels that a tile reads.
    """

    columns: int
    pitch: int
    spacing: int
    strips: int
    tiles: int
    staged: int


@dataclass(frozen=True, slots=True)
class HaloTile(HaloStage, CoopTile):
    """A tile of `conv_halo_coop`."""

    @property
    def splits(self) -> bool:
        """Whether several workgroups may share the channels."""
        return self.rows <= 64

    @lru_cache(maxsize=1024)  # noqa: B019  tiles are few, and live as long as the program
    def strips(self, height: int, width: int) -> Strips:
        """Return the strips of an image, with as few tiles as possible.

        Strips are one matrix wide, or as wide as the image, where a tile's pixels and those around
        them fit into shared memory.
        """
        m, matrices = self.matrix.m, self.rows // self.matrix.m
        ways = []
        for columns, spacing in ((m, m + 2), (width, m)):
            pitch = columns + 2
            staged = (matrices - 1) * spacing + m + 2 * pitch + 2
            # The last row of a strip ends with its last computed pixel.
            pixels = (height - 1) * pitch + columns
            tiles = ceil_div(ceil_div(pixels - m, spacing) + 1, matrices)
            if staged <= self.patch:
                strips = ceil_div(width, columns)
                ways.append(Strips(columns, pitch, spacing, strips, tiles, staged))
        return min(ways, key=lambda way: (way.strips * way.tiles, way.staged))


def _tiles(matrix: Matrix, *sizes: tuple[int, int, int, int]) -> tuple[HaloTile, ...]:
    step = cast(kernels.MatmulCoopStep, STEP)  # no value of that axis: CoopTile is used for both
    return tuple(
        HaloTile(rows, columns, step, down, across, 1, matrix)
        for rows, columns, down, across in sizes
    )


# By matrix, largest first.
HALO_TILES: dict[Matrix, tuple[HaloTile, ...]] = {
    LARGE_MATRIX: _tiles(
        LARGE_MATRIX,
        *((128, 64, 32, 32), (128, 32, 32, 32), (128, 16, 32, 16)),
        *((64, 64, 32, 32), (64, 32, 32, 16)),
    ),
    WIDE_MATRIX: _tiles(WIDE_MATRIX, (64, 64, 32, 32)),
    XE2_MATRIX: _tiles(XE2_MATRIX, (64, 64, 16, 32)),
    XE_MATRIX: _tiles(XE_MATRIX, (64, 64, 16, 16)),
    LLVMPIPE_MATRIX: _tiles(LLVMPIPE_MATRIX, (64, 64, 16, 16)),
}


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvHalo(ConvKernel):
    """Windows of 3 x 3 adjacent taps with steps of one; K is split over `parts` workgroups."""

    tile: HaloTile
    parts: int = 1

    family = "halo"
    supports = Trait.PLAIN_IO
    dtypes = frozenset({"f16"})

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by predicted time."""
        matrix = matrix_of(target.info)
        if matrix is None or not _fits(problem):
            return
        place = Place.TIMED if target.gpu else Place.EMULATED
        for tile in HALO_TILES.get(matrix, ()):
            if not tile.fits(target.info):
                continue
            gemm = _gemm(problem)
            split = parts_of(_steps(problem), gemm.k) if tile.splits else ()
            bids = []
            for parts in (1, *split):
                kernel = cls(tile, parts)
                us = kernel.cost(problem, target.info, target.weight_bytes).total
                cost = weighed_us(us, kernel.done(problem), problem.work)
                bids.append(Bid[ConvKernel](kernel, place, cost))
            # One way to share K is enough beside none.
            yield bids[0]
            if len(bids) > 1:
                yield min(bids[1:], key=lambda bid: bid.cost)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time of the tiles, each with its halo."""
        cost = self.cost(problem, target.info, target.weight_bytes)
        return Expected(cost, problem.work, self.done(problem))

    def cost(self, problem: ConvProblem, info: DeviceInfo, weight_bytes: int) -> Cost:
        """Return the predicted time."""
        tile, gemm = self.tile, _gemm(problem)
        subgroups = tile.invocations // tile.matrix.subgroup
        pixels = self._strips(problem).staged
        reads = subgroups * (tile.sub_rows + tile.sub_columns) * STEP
        tiling = Tiling(
            tiles=self.tiles(problem),
            parts=self.parts,
            steps=ceil_div(_steps(problem), self.parts),
            left_bytes=2 * pixels * HALO_DEPTH,
            right_bytes=2 * tile.columns * STEP,
            staged_bytes=2 * (reads + pixels * HALO_DEPTH + tile.columns * STEP),
            flops=2 * tile.rows * tile.columns * STEP,
            results=tile.rows * tile.columns,
            invocations=tile.invocations,
            registers=tile.registers,
            shared=tile.shared_bytes,
            groups=1,
            buffers=tile.buffers,
            weight_bytes=2 * gemm.columns * gemm.k * gemm.batches,
            matrices=True,
        )
        return tiles_cost(tiling, info, weight_bytes > class_of(info).cache_bytes)

    def tiles(self, problem: ConvProblem) -> int:
        """Return the number of tiles of all images, groups and channels."""
        return self._down(problem) * problem.group * ceil_div(problem.outputs, self.tile.columns)

    def done(self, problem: ConvProblem) -> int:
        """Return the multiplications of the tiles, including padding."""
        each = self.tile.rows * self.tile.columns * STEP * _steps(problem)
        return self.tiles(problem) * each

    def _strips(self, problem: ConvProblem) -> Strips:
        return self.tile.strips(*problem.out_size[1:])

    def _down(self, problem: ConvProblem) -> int:
        strips = self._strips(problem)
        return problem.batch * strips.strips * strips.tiles

    @property
    def panel(self) -> int:
        """The columns of a tile."""
        return self.tile.columns // BLOCK

    @property
    def form(self) -> str:
        """The single packed form of all tiles."""
        return "halo"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights [O, C/group, 9] as [group][O/group][C/16][tap][16].

        Output channels are padded to whole blocks of four, input channels to whole steps.
        """
        _, inputs, taps = w.shape
        split = w.reshape(group, -1, inputs, taps)
        padding = ((0, 0), (0, -split.shape[1] % BLOCK), (0, -inputs % HALO_DEPTH), (0, 0))
        padded = np.pad(split, padding) if any(map(any, padding)) else split
        steps = padded.reshape(*padded.shape[:2], -1, HALO_DEPTH, taps)
        ordered: Array = steps.swapaxes(3, 4)
        return ordered

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of elements of the packed weights."""
        return problem.group * ceil_div(problem.outputs, BLOCK) * BLOCK * _gemm(problem).k

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        problem, strips = job.problem, self._strips(job.problem)
        bound = bind_convolution(job, self, encoder)
        tiles = self.tiles(problem)
        names = (
            *("out_block", "out_stride", "out_offset", "in_block", "in_blocks"),
            *("group_blocks", "group_panels", "channels", "act_alpha", "act_beta"),
        )
        sizes: dict[str, Any] = {name: bound.sizes[name] for name in names}
        params = kernels.ConvHaloCoopParams(
            in_size=problem.in_size[1:],
            out_size=problem.out_size[1:],
            pad=problem.pad[1:],
            k8=_steps(problem) * STEP // VECTOR,
            tiles=tiles,
            steps=ceil_div(_steps(problem), self.parts),
            parts=self.parts,
            tiles_down=self._down(problem),
            strips=strips.strips,
            strip_tiles=strips.tiles,
            pitch=strips.pitch,
            spacing=strips.spacing,
            columns=strips.columns,
            **sizes,
        )
        spec = {name: value for name, value in bound.spec.items() if name != "PLANES"}
        dispatch_tiles(
            kernels.conv_halo_coop(
                tile=cast(kernels.ConvHaloCoopTile, self.tile.name),
                split=1 if self.parts > 1 else 0,
            ),
            bound.tensors,
            params,
            {**spec, "TAIL": problem.in_blocks * BLOCK % HALO_DEPTH != 0},
            encoder,
            tiles=tiles,
            parts=self.parts,
            part_elements=self.tile.part_elements,
        )


def _fits(problem: ConvProblem) -> bool:
    """Return whether a convolution has the kernel's window, and enough channels."""
    adjacent = problem.kernel == (1, 3, 3) and problem.dilation == problem.stride == (1, 1, 1)
    flat = problem.in_size[0] == problem.out_size[0] == 1 and problem.pad[0] == 0
    few = problem.inputs < MIN_INPUTS or _steps(problem) > MAX_STEPS
    return adjacent and flat and not few and not problem.is_empty


def _steps(problem: ConvProblem) -> int:
    return ceil_div(problem.inputs, HALO_DEPTH)


def _gemm(problem: ConvProblem) -> Gemm:
    return Gemm(problem.pixels, problem.outputs, _steps(problem) * STEP, problem.group)
