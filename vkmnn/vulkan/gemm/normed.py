"""A normalisation fused with the product after it, in one dispatch.

The kernel accumulates rows and their squares while staging them, and normalises its sums at the
end. docs/decisions/normed-products.md explains when it is used, and the effect on results.
"""

from __future__ import annotations

from typing import ClassVar

from vkmnn.base.records import dataclass
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.cost.tiles import weighed_us
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.coop_tiles import (
    FRAGMENT_MARGIN,
    FRAGMENT_TILES,
    VECTOR,
    CoopKernel,
    CoopTile,
    coop_cost,
    matrix_of,
    product_tiles,
)
from vkmnn.vulkan.gemm.encode import kernels_for
from vkmnn.vulkan.gemm.families.coop import MatMulCoop
from vkmnn.vulkan.gemm.families.fragments import MatMulFragments, fits_fragments
from vkmnn.vulkan.gemm.families.shared import MatMulShared
from vkmnn.vulkan.gemm.family import MARGIN, Apart, spread
from vkmnn.vulkan.gemm.job import MatMulJob
from vkmnn.vulkan.gemm.problem import MatMulProblem
from vkmnn.vulkan.gemm.shared_tiles import (
    SharedKernel,
    Tile,
    listed_shared,
    room_of,
    shared_cost,
)
from vkmnn.vulkan.gemm.target import Target

VEC4 = 4


@dataclass(frozen=True, slots=True)
class NormedProblem:
    """A product of normalised rows; `keeps`: the rows are also a result."""

    product: MatMulProblem
    centered: bool
    keeps: bool = False

    @property
    def fits(self) -> bool:
        """Return whether a kernel may exist: one constant matrix, and rows of whole vec4s."""
        product = self.product
        return (
            product.constant
            and not product.batch
            and product.dtype == "f32"
            and product.k % VEC4 == 0
            and 0 not in (product.m, product.n, product.k)
        )


@dataclass(frozen=True, slots=True)
class NormedCoop:
    """One dispatch; every workgroup processes the whole K."""

    tile: CoopTile
    family: ClassVar[str] = "coop"

    def predict(self, problem: NormedProblem, target: Target) -> Expected:
        """Return the predicted time."""
        gemm = problem.product.gemm
        cost = coop_cost(
            CoopKernel(self.tile),
            gemm,
            target.info,
            target.weight_bytes,
            normed=True,
            keeps=problem.keeps,
        )
        return Expected(cost, gemm.work, self.tile.done(gemm))

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch of a job with `norms`."""
        MatMulCoop(self.tile).record(job, encoder)


@dataclass(frozen=True, slots=True)
class NormedFragments(NormedCoop):
    """The same with weights that are stored matrix by matrix."""

    family: ClassVar[str] = "fragments"

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch of a job with `norms`."""
        MatMulFragments(self.tile).record(job, encoder)


@dataclass(frozen=True, slots=True)
class NormedShared:
    """One dispatch of shared memory tiles; a pivot is subtracted from rows before the product."""

    tile: Tile
    family: ClassVar[str] = "shared"

    def predict(self, problem: NormedProblem, target: Target) -> Expected:
        """Return the predicted time."""
        gemm, info = problem.product.gemm, target.info
        sizes = target.weight_bytes, target.element_bytes
        cost = shared_cost(SharedKernel(self.tile), gemm, info, *sizes, normed=True)
        return Expected(cost, gemm.work, self.tile.done(gemm))

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch of a job with `norms`."""
        MatMulShared(self.tile).record(job, encoder)


NormedKernel = NormedCoop | NormedShared
Candidate = NormedKernel | Apart


def normed_kernels(
    problem: NormedProblem, target: Target, *, emulated: bool = False
) -> list[NormedKernel]:
    """Return the fused kernels, fastest prediction first.

    `emulated`: include those that rely on emulated shared memory.
    """
    if not problem.fits:
        return []
    timed: list[tuple[float, NormedKernel]] = []
    kernels: list[NormedKernel] = [*_coop_kernels(problem, target)]
    kernels += _shared_kernels(problem, target, emulated)
    for kernel in kernels:
        expected = kernel.predict(problem, target)
        us = weighed_us(expected.cost.total, expected.done, expected.needed)
        if isinstance(kernel, NormedFragments):
            us *= FRAGMENT_MARGIN
        timed.append((us, kernel))
    return [kernel for _, kernel in sorted(timed, key=lambda pair: pair[0])]


def _coop_kernels(problem: NormedProblem, target: Target) -> list[NormedCoop]:
    matrix = matrix_of(target.info)
    if matrix is None or target.element != "f16" or problem.product.k % VECTOR:
        return []
    found = [NormedCoop(tile) for tile in product_tiles(matrix)]
    if fits_fragments(problem.product, target.info):
        found += [NormedFragments(tile) for tile in FRAGMENT_TILES[matrix]]
    return [kernel for kernel in found if kernel.tile.fits(target.info)]


def _shared_kernels(problem: NormedProblem, target: Target, emulated: bool) -> list[NormedShared]:
    """Return the shared-memory kernels; none if the rows are a result, which they cannot store."""
    if problem.keeps or not (target.gpu or emulated):
        return []
    room = room_of(target.info)
    listed = listed_shared(problem.product.k, room, narrow=False)
    return [NormedShared(kernel.tile) for kernel in listed if kernel.parts == 1]


def candidates_of(
    problem: NormedProblem, target: Target, encoder: VulkanEncoder
) -> list[Candidate]:
    """Return the fused and separate candidates by predicted time; empty if only one exists."""

    def find() -> list[Candidate]:
        kernels = normed_kernels(problem, target, emulated=encoder.offers_all)
        if not kernels:
            return []
        us = kernels[0].predict(problem, target).cost.total
        # Since the matrices' rounding affects results, fusion must be faster by a margin.
        us *= MARGIN if isinstance(kernels[0], NormedCoop) else 1.0
        faster = target.gpu and us < _apart_us(problem, target, encoder)
        return [*spread(kernels), Apart()] if faster else [Apart(), *kernels]

    return encoder.once(("normed", problem, target), find)


def _apart_us(problem: NormedProblem, target: Target, encoder: VulkanEncoder) -> float:
    """Return the predicted time of the separate normalisation and product, with the gap between."""
    product = problem.product
    rows = pass_cost(2 * target.element_bytes * product.m * product.k, target.info, product.m)
    expected = kernels_for(product, target, encoder)[0].predict(product, target)
    alone = expected.cost.total if expected else 0.0
    return rows.total + class_of(target.info).gap_us + alone
