"""float32 products by cooperative matrices, as three float16 products: `precision="fast"`.

Every number is the sum of two float16 numbers times a power of two, which `matmul_coop` and
`conv_coop` make while they stage operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.coop_tiles import limb_tiles, timed_coop
from vkmnn.vulkan.gemm.families.coop import ConvCoop, MatMulCoop, packing_us
from vkmnn.vulkan.gemm.family import Bid, ConvKernel, MatMulKernel, Place, kernel_family
from vkmnn.vulkan.gemm.job import MatMulJob
from vkmnn.vulkan.gemm.operands import Operand
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait

# Vec4s of eight numbers.
_VEC4S = 2


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulLimbs(MatMulCoop):
    """Products of float32 matrices."""

    family = "limbs"
    requires = Trait.LIMBS
    dtypes = frozenset({"f32"})

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Rank by `coop_tiles`, plus the time to pack an operand."""
        place = Place.TIMED if target.gpu else Place.EMULATED
        packing = 0.0 if problem.by_rows else packing_us(problem, target)
        info, total = target.info, target.weight_bytes
        for cost, kernel in timed_coop(problem.gemm, info, total, tiles=limb_tiles):
            yield Bid(cls(kernel.tile, kernel.parts), place, cost + packing)

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return both operands as rows along k."""
        left, right = (
            replace(operand, row=_VEC4S * operand.row, batch=_VEC4S * operand.batch)
            for operand in MatMulCoop.pack(self, job, encoder)
        )
        return left, right


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvLimbs(ConvCoop):
    """Convolutions of float32 tensors."""

    family = "limbs"
    requires = Trait.LIMBS
    dtypes = frozenset({"f32"})

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by `coop_tiles`, if the tap table can represent the window."""
        return cls.ranked(problem, target, limb_tiles)
