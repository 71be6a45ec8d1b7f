"""Records products and convolutions: rank over all families, let the encoder choose, record."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from math import inf

from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm import families
from vkmnn.vulkan.gemm.family import (
    CONV_FAMILIES,
    MATMUL_FAMILIES,
    ConvKernel,
    F,
    MatMulKernel,
    Target,
    rank_convolution,
    rank_matmul,
    spread,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem

_log = logging.getLogger(__name__)

families.load_all()


def encode_convolution(job: ConvJob, encoder: VulkanEncoder, *, whole: bool = False) -> None:
    """Record a convolution as it stands; with `whole`, sums are whole numbers of 32 bits.

    With a kernel that must cut the window into parts, the residual joins before the activation.
    """
    problem = job.problem
    if 0 in (problem.pixels, problem.channels):
        return
    target = convolution_target(job, encoder)
    candidates = convolution_kernels(problem, target, encoder)
    named = _named(problem, target)
    if whole:
        candidates = [kernel for kernel in candidates if kernel.whole]
        named = "whole", problem
    kernel = encoder.choose("convolution", named, candidates)
    before = len(encoder.recording.dispatches)
    _log.debug("%s: %r, of %d kernels", encoder.label, kernel, len(candidates))
    kernel.record(job, encoder)
    if len(encoder.recording.dispatches) > before:
        encoder.expect(lambda: kernel.predict(problem, target))


def convolution_target(job: ConvJob, encoder: VulkanEncoder) -> Target:
    """Return what kernels for a job are ranked by."""
    constant = job.weights.tensor.value is not None
    return Target.of(encoder, narrow=job.narrow, dots=job.dots, ends=job.ends, half=constant)


def convolution_kernels(
    problem: ConvProblem, target: Target, encoder: VulkanEncoder
) -> list[ConvKernel]:
    """Return the kernels that can solve a problem, in the order in which they are offered."""
    return encoder.once(
        ("convolutions", len(CONV_FAMILIES), problem, target.key),
        lambda: _ordered(rank_convolution(problem, target), target),
    )


def encode_matmul(job: MatMulJob, encoder: VulkanEncoder) -> None:
    """Record a matrix product."""
    signed = job.shift == 0
    target = Target.of(
        encoder,
        narrow=job.narrow,
        dots=job.dots,
        ends=job.plain_y,
        signed=signed,
        half=job.problem.constant,
        coded=job.left is not None,
    )
    problem = job.problem
    candidates = matmul_kernels(problem, target, encoder)
    kernel = encoder.choose("matmul", _named(problem, target), candidates)
    before = len(encoder.recording.dispatches)
    _log.debug("%s: %r, of %d kernels", encoder.label, kernel, len(candidates))
    kernel.record(job, encoder)
    if len(encoder.recording.dispatches) > before:
        encoder.expect(lambda: kernel.predict(problem, target))


def matmul_kernels(
    problem: MatMulProblem, target: Target, encoder: VulkanEncoder
) -> list[MatMulKernel]:
    """Return the kernels that can solve a problem, in the order in which they are offered."""
    return encoder.once(
        ("products", len(MATMUL_FAMILIES), problem, target.key),
        lambda: _ordered(rank_matmul(problem, target), target),
    )


def plain_end_us(problem: ConvProblem | MatMulProblem, encoder: VulkanEncoder) -> float | None:
    """Return how much longer the best kernel takes that reads or stores plain float32.

    None: no kernel does. On CPU devices that never pays: their best kernels do not.
    """
    times = []
    for ends in (True, False):
        target = Target.of(encoder, ends=ends)
        kernels: Sequence[ConvKernel | MatMulKernel]
        if isinstance(problem, ConvProblem):
            kernels = convolution_kernels(problem, target, encoder)
            expected = kernels[0].predict(problem, target) if kernels else None
        else:
            kernels = matmul_kernels(problem, target, encoder)
            expected = kernels[0].predict(problem, target) if kernels else None
        if expected is None:
            return None
        if not is_gpu(encoder.info):
            return inf
        times.append(expected.cost.total)
    return times[0] - times[1]


def _named(problem: ConvProblem | MatMulProblem, target: Target) -> Hashable:
    """Return what the tuner calls a problem: other weights and other ends are other kernels."""
    facts = ("dots", target.dots), ("narrow", target.narrow), ("ends", target.ends)
    for name, is_so in (("coded", target.coded), *facts, ("half", target.half)):
        if is_so:
            return name, problem
    return problem


def _ordered(ranked: list[F], target: Target) -> list[F]:
    """Return the kernels in the order in which they are offered."""
    return spread(ranked) if target.gpu else ranked
