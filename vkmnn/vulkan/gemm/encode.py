"""Recording of products and convolutions: rank all families, let the encoder choose, record."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from math import inf
from typing import Any, overload

from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm import families
from vkmnn.vulkan.gemm.family import FAMILIES, ConvKernel, F, MatMulKernel, rank, spread
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait

_log = logging.getLogger(__name__)

families.load_all()


def encode(job: ConvJob | MatMulJob, encoder: VulkanEncoder, more: Trait = Trait.NONE) -> None:
    """Record a product or a convolution; kernels must also support `more`.

    If the kernel must split the window, the residual is added before the activation.
    """
    problem: Any = job.problem
    if problem.is_empty:
        return
    target = Target.of(encoder, job.needs | more if more else job.needs, job.allows)
    candidates: list[Any] = kernels_for(problem, target, encoder)
    kernel = encoder.choose(problem.what, _named(problem, target), candidates)
    before = len(encoder.recording.dispatches)
    _log.debug("%s: %r, of %d kernels", encoder.label, kernel, len(candidates))
    kernel.record(job, encoder)
    if len(encoder.recording.dispatches) > before:
        encoder.expect(lambda: kernel.predict(problem, target))


@overload
def kernels_for(
    problem: ConvProblem, target: Target, encoder: VulkanEncoder
) -> list[ConvKernel]: ...
@overload
def kernels_for(
    problem: MatMulProblem, target: Target, encoder: VulkanEncoder
) -> list[MatMulKernel]: ...
def kernels_for(problem: Any, target: Target, encoder: VulkanEncoder) -> list[Any]:
    """Return the kernels that can solve a problem, in the order offered to the encoder."""
    return encoder.once(
        ("kernels", len(FAMILIES), problem, target),
        lambda: _ordered(rank(problem, target), target),
    )


def reads_rows(job: MatMulJob, encoder: VulkanEncoder) -> bool:
    """Return whether the best kernel for a product reads its right operand as rows along k."""
    target = Target.of(encoder, job.needs, job.allows)
    found = [] if job.problem.is_empty else kernels_for(job.problem, target, encoder)
    return bool(found) and found[0].reads_rows


def best_us(problem: MatMulProblem, encoder: VulkanEncoder) -> float:
    """Return the predicted time of a product by its best kernel; infinite if unknown."""
    target = Target.of(encoder)
    found = [] if problem.is_empty else kernels_for(problem, target, encoder)
    expected = found[0].predict(problem, target) if found else None
    return expected.cost.total if expected else inf


def plain_end_us(problem: ConvProblem | MatMulProblem, encoder: VulkanEncoder) -> float | None:
    """Return the additional time of the best kernel that reads or stores plain float32.

    None if no kernel does. This never pays on CPU devices: their best kernels do not support it.
    """
    times = []
    any_problem: Any = problem
    for needs in (Trait.PLAIN_IO, Trait.NONE):
        target = Target.of(encoder, needs)
        kernels: list[Any] = kernels_for(any_problem, target, encoder)
        expected = kernels[0].predict(problem, target) if kernels else None
        if expected is None:
            return None
        if not is_gpu(encoder.info):
            return inf
        times.append(expected.cost.total)
    return float(times[0] - times[1])


def _named(problem: Hashable, target: Target) -> Hashable:
    """Return the tuner's name for a problem, including traits."""
    return (target.traits, problem) if target.traits else problem


def _ordered(ranked: list[F], target: Target) -> list[F]:
    """Return the kernels in the order offered to the encoder."""
    return spread(ranked) if target.gpu else ranked
