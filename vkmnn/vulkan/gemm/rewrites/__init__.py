"""Convolutions that are faster as other ones: each rewrite asks the encoder whether to be made."""

from __future__ import annotations

from vkmnn.ir import Activation
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.dynamic import Dynamic
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.gemm.rewrites.dense import as_dense
from vkmnn.vulkan.gemm.rewrites.fold import fold_taps
from vkmnn.vulkan.gemm.rewrites.winograd import by_winograd
from vkmnn.vulkan.gemm.rewrites.winograd_codes import by_whole_winograd

EXACT_REWRITES = (as_dense, fold_taps)
"""They only move elements: sums of codes stay exact."""

REWRITES = (*EXACT_REWRITES, by_winograd)
"""In this order; each returns the convolution that remains, None where it has recorded all."""

CODE_REWRITES = (*EXACT_REWRITES, by_whole_winograd)
"""The same for codes."""

STEPS = {Activation: REWRITES, Requantize: CODE_REWRITES, Dynamic: EXACT_REWRITES}
"""By how sums end."""


def rewrite(job: ConvJob, encoder: VulkanEncoder) -> ConvJob | None:
    """Record what rewrites need, and return the convolution that remains, if one does."""
    rest: ConvJob | None = job
    for step in STEPS[type(job.epilogue.ending)]:
        rest = step(rest, encoder) if rest else None
    return rest
