"""Maximum pooling fused with the 1 x 1 convolution after it, in shared memory tiles.

A workgroup stages the maximum of 3 x 3 texels instead of a single texel. SqueezeNets and Inceptions
pool before they squeeze (Iandola et al. 2016, Szegedy et al. 2015).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from vkmnn.base.records import dataclass
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.cost.tiles import weighed_us
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.encode import kernels_for
from vkmnn.vulkan.gemm.families.shared import ConvShared
from vkmnn.vulkan.gemm.family import MARGIN, Apart
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.shared_tiles import SharedKernel, Tile, listed_shared, room_of, shared_cost
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.splitting.spatial import Triple

# Workgroup size of a separate pooling; each invocation computes two pixels.
POOL_PIXELS = 128


@dataclass(frozen=True, slots=True)
class PooledProblem:
    """A convolution with one tap that reads the maxima of 3 x 3 windows, and their positions."""

    product: ConvProblem
    in_size: Triple
    stride: Triple
    pad: Triple

    @property
    def fused(self) -> ConvProblem:
        """The fused convolution, with windows as pixels."""
        return replace(self.product, in_size=self.in_size, stride=self.stride, pad=self.pad)

    @property
    def fits(self) -> bool:
        """Return whether a kernel exists: planar, one tap, no window outside the input."""
        one, zero = (1, 1, 1), (0, 0, 0)
        product = self.product
        flat = self.in_size[0] == self.stride[0] == product.out_size[0] == 1 and self.pad[0] == 0
        sizes = self.in_size[1:], product.out_size[1:], self.stride[1:], self.pad[1:]
        windows = zip(*sizes, strict=True)
        return (
            (product.group, product.kernel, product.stride, product.pad) == (1, one, one, zero)
            and product.in_size == product.out_size
            and flat
            and not product.phases
            and 0 not in (product.pixels, product.channels, product.inputs, *self.in_size)
            and all(
                pad < 3 and (out - 1) * stride - pad < size for size, out, stride, pad in windows
            )
        )


@dataclass(frozen=True, slots=True)
class PooledShared:
    """One dispatch."""

    tile: Tile
    family: ClassVar[str] = "shared"

    def predict(self, problem: PooledProblem, target: Target) -> Expected:
        """Return the predicted time."""
        gemm = problem.product.gemm()
        sizes = target.weight_bytes, target.element_bytes
        kernel = SharedKernel(self.tile)
        cost = shared_cost(kernel, gemm, target.info, *sizes, pixels=True, pooled=True)
        return Expected(cost, problem.product.work, self.tile.done(gemm))

    def record(self, problem: PooledProblem, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch of a job whose x is the input of the pooling."""
        ConvShared(self.tile).record(replace(job, problem=problem.fused, pooled=True), encoder)


Candidate = PooledShared | Apart


def candidates_of(
    problem: PooledProblem, target: Target, encoder: VulkanEncoder
) -> list[Candidate]:
    """Return the fused and separate candidates by predicted time; empty if only one exists."""

    def find() -> list[Candidate]:
        listed = listed_shared(problem.product.gemm().k, room_of(target.info), narrow=True)
        timed: list[tuple[float, float, PooledShared]] = []
        for tile in (kernel.tile for kernel in listed if kernel.parts == 1):
            kernel = PooledShared(tile)
            expected = kernel.predict(problem, target)
            us = expected.cost.total
            timed.append((weighed_us(us, expected.done, expected.needed), us, kernel))
        timed.sort(key=lambda one: one[:2])
        offered = [kernel for _, _, kernel in timed]
        faster = bool(timed) and MARGIN * timed[0][1] < _apart_us(problem, target, encoder)
        return [*offered, Apart()] if faster and target.gpu else [Apart(), *offered]

    if not problem.fits or not (target.gpu or encoder.offers_all):
        return []
    return encoder.once(("pooled", problem, target), find)


def _apart_us(problem: PooledProblem, target: Target, encoder: VulkanEncoder) -> float:
    """Return the predicted time of the separate pooling and convolution, with the gap between."""
    product, info = problem.product, target.info
    blocks = product.batch * product.in_blocks
    _, down, along = problem.in_size
    pixels = product.out_size[1] * product.out_size[2]
    nbytes = 4 * target.element_bytes * blocks * (down * along + pixels)
    pool = pass_cost(nbytes, info, ceil_div(blocks * pixels, POOL_PIXELS))
    expected = kernels_for(product, target, encoder)[0].predict(product, target)
    return pool.total + class_of(info).gap_us + (expected.cost.total if expected else 0.0)
