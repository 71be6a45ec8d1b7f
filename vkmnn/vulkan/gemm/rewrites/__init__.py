"""Rewrites of convolutions into faster ones; each asks the encoder whether to apply."""

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
"""Rewrites that only move elements: integer sums stay exact."""

REWRITES = (*EXACT_REWRITES, by_winograd)
"""In order; each returns the remaining convolution, or None if it has recorded everything."""

CODE_REWRITES = (*EXACT_REWRITES, by_whole_winograd)
"""Rewrites for quantised values."""

STEPS = {Activation: REWRITES, Requantize: CODE_REWRITES, Dynamic: EXACT_REWRITES}
"""Rewrites by the ending of sums."""


def rewrite(job: ConvJob, encoder: VulkanEncoder) -> ConvJob | None:
    """Record the rewrites' dispatches, and return the remaining convolution, if there is one."""
    rest: ConvJob | None = job
    for step in STEPS[type(job.epilogue.ending)]:
        rest = step(rest, encoder) if rest else None
    return rest
