"""Tiles in shared memory for convolutions of codes, by dot products of four bytes each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.records import dataclass
from vkmnn.runtime.recorder import linear_groups
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import has_fast_dots
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.binding import bind_convolution
from vkmnn.vulkan.gemm.families.shared import tap_table
from vkmnn.vulkan.gemm.family import Bid, ConvKernel, Place, Target, conv_family
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.weights import pack_panels

TILES: tuple[kernels.ConvDotTile, ...] = ("64x64", "32x32")
# Sums of products of bytes fit into 32 bits, and loops stay short, up to this inner axis.
MAX_K = 1 << 16
# Below, a tile is empty for the most part.
MIN_K, MIN_OUTPUTS = 64, 16
# The fraction of a multiprocessor's rate that a tile reaches, at a guess: no GPU was measured.
EFFICIENCY = {"64x64": 1.0, "32x32": 0.6}
# Multiprocessors of a device that does not tell.
SMALL_GPU = 16


@conv_family
@dataclass(frozen=True, slots=True)
class ConvDot(ConvKernel):
    """Convolutions as implicit GEMM of bytes, with sums of 32-bit integers."""

    tile: kernels.ConvDotTile
    family = "dot"
    narrow = True

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Take codes by signed bytes: first where the device has instructions for that."""
        if not target.dots or "integer_dot" not in target.info.features:
            return
        gemm = problem.gemm()
        if gemm.k > MAX_K:
            return
        worth = gemm.k >= MIN_K and gemm.columns >= MIN_OUTPUTS
        fast = Place.MADE_FOR_IT if worth and has_fast_dots(target.info) else Place.SPARE
        place = fast if target.gpu else Place.EMULATED
        for tile in TILES:
            kernel = cls(tile)
            waves = ceil_div(kernel._tiles(problem), target.info.multiprocessors or SMALL_GPU)
            yield Bid(kernel, place, waves * kernel.rows * 4 * kernel.panel / EFFICIENCY[tile])

    @property
    def rows(self) -> int:
        """Pixels of a tile."""
        return int(self.tile.split("x")[0])

    @property
    def panel(self) -> int:
        """The columns of a tile."""
        return int(self.tile.split("x")[1]) // 4

    @property
    def form(self) -> str:
        """Words along K, not along output channels."""
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
        offsets = _offsets(job, encoder)
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


def _offsets(job: ConvJob, encoder: VulkanEncoder) -> Tensor:
    """Return what the bytes of x fall short of the codes, times all weights of each channel."""
    weights, shift = job.weights, job.x.codes or 0
    width = ceil_div(job.problem.channels, 4) * 4

    def sums(plain: Array) -> Array:
        seen = weights.view(plain)
        made = np.zeros(width, np.int32)
        made[: seen.shape[0]] = seen.reshape(seen.shape[0], -1).sum(1, dtype=np.int64) * shift
        return made

    return encoder.constant(weights.tensor, f"offset:{weights.key}:{shift}", sums)
