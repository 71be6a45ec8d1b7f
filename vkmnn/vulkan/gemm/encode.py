"""Records products and convolutions: rank over all families, let the encoder choose, record."""

from __future__ import annotations

import logging

from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm import families
from vkmnn.vulkan.gemm.family import Target, rank_convolution, rank_matmul, spread
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob

_log = logging.getLogger(__name__)

families.load_all()


def encode_convolution(job: ConvJob, encoder: VulkanEncoder) -> None:
    """Record a convolution as it stands.

    With a kernel that must cut the window into parts, the residual joins before the activation.
    """
    problem = job.problem
    if 0 in (problem.pixels, problem.channels):
        return
    target = Target.of(encoder)
    candidates = rank_convolution(problem, target)
    if target.gpu:
        candidates = spread(candidates)
    kernel = encoder.choose("convolution", problem, candidates)
    before = len(encoder.recording.dispatches)
    _log.debug("%s: %r, of %d kernels", encoder.label, kernel, len(candidates))
    kernel.record(job, encoder)
    if len(encoder.recording.dispatches) > before:
        encoder.expect(kernel.predict(problem, target))


def encode_matmul(job: MatMulJob, encoder: VulkanEncoder) -> None:
    """Record a matrix product."""
    target = Target.of(encoder)
    candidates = rank_matmul(job.problem, target)
    if target.gpu:
        candidates = spread(candidates)
    kernel = encoder.choose("matmul", job.problem, candidates)
    before = len(encoder.recording.dispatches)
    _log.debug("%s: %r, of %d kernels", encoder.label, kernel, len(candidates))
    kernel.record(job, encoder)
    if len(encoder.recording.dispatches) > before:
        encoder.expect(kernel.predict(job.problem, target))
