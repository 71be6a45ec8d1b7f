"""Products with quantised weights by cooperative matrices, in one dispatch.

Weights become float16 on their way to shared memory (`include/coded.glsl.j2`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.binding import bind_matmul
from vkmnn.vulkan.gemm.codes import CodeForm, PackedCodes
from vkmnn.vulkan.gemm.coop_tiles import (
    VECTOR,
    CoopKernel,
    coop_cost,
    matrix_of,
    product_tiles,
    timed_coop,
)
from vkmnn.vulkan.gemm.encode import best_us
from vkmnn.vulkan.gemm.job import MatMulJob, RowNorms
from vkmnn.vulkan.gemm.operands import Operand, rows_of
from vkmnn.vulkan.gemm.problem import Gemm, MatMulProblem
from vkmnn.vulkan.gemm.rowwise import encode_norm
from vkmnn.vulkan.gemm.split import dispatch_tiles
from vkmnn.vulkan.storage import FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class CodesProblem:
    """A product with quantised weights; `normed` rows, `gated` columns."""

    rows: int
    form: CodeForm
    normed: bool = False
    gated: bool = False

    @property
    def gemm(self) -> Gemm:
        """The sizes only."""
        return Gemm(self.rows, self.form.columns, self.form.depth)


@dataclass(frozen=True, slots=True)
class CodedCoop(CoopKernel):
    """A tile of matrices whose right operand is quantised.

    `normalises`: normalised rows take no dispatch of their own; K is not split.
    """

    normalises: bool = False

    def cost(self, problem: CodesProblem, weight_bits: float, encoder: VulkanEncoder) -> Cost:
        """Return the predicted time of the product's own dispatch."""
        return coop_cost(
            self,
            problem.gemm,
            encoder.info,
            encoder.weight_bytes,
            normed=self.normalises,
            weight_bits=weight_bits,
        )

    def predict(
        self, problem: CodesProblem, weight_bits: float, encoder: VulkanEncoder
    ) -> Expected:
        """Return the prediction for the product's dispatch."""
        gemm = problem.gemm
        cost = self.cost(problem, weight_bits, encoder)
        return Expected(cost, gemm.work, self.tile.done(gemm))

    def record(
        self, problem: CodesProblem, job: MatMulJob, packed: PackedCodes, encoder: VulkanEncoder
    ) -> None:
        """Record the product, and before it the normalisation of rows, unless it does that itself.

        Args:
            problem: its sizes.
            job: the product; its right operand is `packed.codes`.
            packed: the weights.
            encoder: records the dispatches.
        """
        norms, gain, form = job.norms, None, problem.form
        if norms is not None and not self.normalises:
            job, norms = encode_norm(job, encoder, norms.gain), None
        job = replace(job, norms=None)
        if norms is not None:
            gain = _whole_vectors(norms, form.depth, encoder)
        left = rows_of(job.a, problem.rows, form.depth, False, 1, encoder)
        bound = bind_matmul(job, (left, Operand(packed.codes, 0, 0)), encoder)
        x, _, bias, residual, y = bound.tensors
        shader = kernels.matmul_coop(
            tile=self.tile.name,
            step=self.tile.step,
            split=self.split,
            bits=4 if form.bits == 4 else 8,
            aligned=4,
        )
        walk = self.walk(problem.gemm)
        k8 = ceil_div(form.depth, VECTOR)
        sizes = bound.sizes | walk | {"k4": k8 * VECTOR // 4}
        spec = {**bound.spec, **packed.spec, "TAIL": k8 * VECTOR % self.tile.step != 0}
        spec["GATED"] = job.gated
        if not self.split:
            spec["NORMED"] = norms is not None
        tensors = [x, packed.codes, packed.scales, packed.zeros, bias, residual, y]
        dispatch_tiles(
            shader,
            tensors if self.split else [*tensors, gain or x],
            kernels.MatmulCoopParams(
                **sizes,
                blocks=form.blocks,
                chunks=form.chunks,
                epsilon=norms.epsilon if norms else 0.0,
                mean=1.0 / form.depth,
            ),
            spec,
            encoder,
            tiles=walk["tiles"],
            parts=self.parts,
            part_elements=self.tile.part_elements,
        )


def _whole_vectors(norms: RowNorms, depth: int, encoder: VulkanEncoder) -> Tensor:
    """Return the factors of normalised rows in whole uvec4s of float16."""
    assert norms.gain is not None
    if depth % VECTOR == 0:
        return norms.gain
    return encoder.constant(norms.gain, "gain8", lambda array: np.pad(array, (0, -depth % VECTOR)))


def coded_kernels(
    problem: CodesProblem, weight_bits: float, encoder: VulkanEncoder
) -> list[tuple[float, CodedCoop]]:
    """Return the kernels with predicted microseconds, fastest first.

    Args:
        problem: the product.
        weight_bits: bits per weight, with scales and zero points.
        encoder: describes the device and the network.
    """
    info, form = encoder.info, problem.form
    if encoder.element != "f16" or form.columns % 4 or matrix_of(info) is None:
        return []

    def find() -> list[tuple[float, CodedCoop]]:
        norm_us = _norm_us(problem, encoder)
        timed = []
        offered = timed_coop(
            problem.gemm,
            info,
            encoder.weight_bytes,
            weight_bits=weight_bits,
            tiles=product_tiles,
        )
        for us, kernel in offered:
            plain = CodedCoop(kernel.tile, kernel.parts)
            timed.append((us + norm_us, plain))
            if problem.normed and not kernel.split:
                whole = CodedCoop(kernel.tile, normalises=True)
                times = [one.cost(problem, weight_bits, encoder).total for one in (whole, plain)]
                timed.append((us + times[0] - times[1], whole))
        return sorted(timed, key=lambda pair: pair[0])

    return encoder.once(
        ("coded", problem, weight_bits, encoder.weight_bytes > class_of(info).cache_bytes), find
    )


def unpacked_us(
    problem: CodesProblem, product: MatMulProblem, weight_bits: float, encoder: VulkanEncoder
) -> float:
    """Return the predicted time to unpack the weights first, with all further dispatches."""
    info = encoder.info
    unpacking = unpacking_cost(problem.form, weight_bits, encoder).total + class_of(info).gap_us
    gates = 3 * problem.rows * problem.form.columns  # float16, read, and half as many written
    gating = _pass_us(gates, encoder) if problem.gated else 0.0
    return unpacking + best_us(product, encoder) + _norm_us(problem, encoder) + gating


def unpacking_cost(form: CodeForm, weight_bits: float, encoder: VulkanEncoder) -> Cost:
    """Return the predicted time of the dispatch that unpacks weights to floats in memory."""
    nbytes = weight_bits / 8 + FLOAT_BYTES[encoder.element]
    return pass_cost(form.depth * form.columns * nbytes, encoder.info)


def _norm_us(problem: CodesProblem, encoder: VulkanEncoder) -> float:
    moved = 4 * problem.rows * problem.form.depth  # float16, read and written
    return _pass_us(moved, encoder) if problem.normed else 0.0


def _pass_us(nbytes: float, encoder: VulkanEncoder) -> float:
    return pass_cost(nbytes, encoder.info).total + class_of(encoder.info).gap_us
