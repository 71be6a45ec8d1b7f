"""Quantised convolutions whose sums may exceed the 24 bits of float32."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from vkmnn.ir.codes import HALF, in_parts
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.encode import encode, kernels_for
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.gemm.rewrites.winograd_codes import by_whole_winograd
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import Weights


def encode_wide(job: ConvJob, encoder: VulkanEncoder) -> None:
    """Record one convolution with integer sums if it ranks first, else two with split weights."""
    rest = by_whole_winograd(job, encoder)
    if rest is None or 0 in (job.problem.pixels, job.problem.channels):
        return
    target = Target.of(encoder, job.needs, job.allows)
    kernels = kernels_for(job.problem, target, encoder)
    one = bool(kernels) and Trait.INT32_SUM in kernels[0].supports
    if encoder.choose("wide", job.problem, (1, 2) if one else (2,)) == 1:
        encode(rest, encoder, Trait.INT32_SUM)
        return
    problem, high = job.problem, encoder.literal("high", np.full(job.problem.channels, HALF, "f4"))
    texels = ceil_div(problem.channels, 4) * problem.out_block
    first = replace(
        job,
        weights=_part(job.weights, 0),
        y=encoder.scratch(4 * texels, full=True),
        epilogue=replace(job.epilogue, bias=None, ending=Requantize(high, -inf, inf)),
    )
    encode(first, encoder)
    last = replace(job.epilogue, residual=first.y, mode="ADD_BEFORE")
    encode(replace(job, weights=_part(job.weights, 1), epilogue=last), encoder)


def _part(weights: Weights, number: int) -> Weights:
    """Return the multiples of HALF, or the remainder."""
    seen = weights.seen_as(f"part{number}", lambda values: in_parts(values)[number])
    return replace(seen, shift=0)
