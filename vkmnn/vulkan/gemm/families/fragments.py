"""Products by cooperative matrices with a constant that is stored matrix by matrix.

Subgroups load its matrices from memory, without shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.device_rules import loads_matrices
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.coop_tiles import FRAGMENT_TILES, timed_coop
from vkmnn.vulkan.gemm.families.coop import BLOCK, MatMulCoop, packing_us
from vkmnn.vulkan.gemm.family import Bid, MatMulKernel, Place, kernel_family
from vkmnn.vulkan.gemm.job import MatMulJob
from vkmnn.vulkan.gemm.operands import Operand, fragments_of, rows_of
from vkmnn.vulkan.gemm.problem import MatMulProblem
from vkmnn.vulkan.gemm.target import Target


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulFragments(MatMulCoop):
    """Products with a constant right operand."""

    family: ClassVar[str] = "fragments"

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Rank by `coop_tiles`, plus the time to pack the left operand."""
        if not fits_fragments(problem, target.info):
            return
        place = Place.TIMED if target.gpu else Place.EMULATED
        packing = 0.0 if problem.by_rows else packing_us(problem, target)
        sizes = problem.gemm, target.info, target.weight_bytes
        for cost, kernel in timed_coop(*sizes, tiles=FRAGMENT_TILES.__getitem__):
            yield Bid(cls(kernel.tile, kernel.parts), place, cost + packing)

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return the left operand as rows along k, and the right one matrix by matrix."""
        problem = job.problem
        m, k, matrices = problem.m, problem.k, problem.matrices[0]
        left = rows_of(job.a, m, k, job.transposed_a, matrices, encoder)
        return left, fragments_of(job, self.tile, encoder)


def fits_fragments(problem: MatMulProblem, info: DeviceInfo) -> bool:
    """Return whether kernels exist: for a constant with whole vec4s of columns."""
    return problem.constant and problem.n % BLOCK == 0 and loads_matrices(info)
