"""Exact Winograd minimal filtering of quantised values in integers.

Transformed values and weights are integers: G is used without its divisors, which the last
transform undoes by shifts. Products and their sums are exact in float32 up to 2^24: if the sum over
all input channels might exceed that, the channels are split into parts, whose sums are added in 32
bits.

F(2, 3) uses the points 0, 1 and -1. F(4, 3) adds i and -i, since 2 and -2 would produce numbers too
large for exact sums: 46 real products yield 16 results (Meng and Brothers, "Efficient Winograd
Convolution via Integer Arithmetic", 2019).
"""

from __future__ import annotations

from math import inf, isfinite, prod
from weakref import ReferenceType, ref

import numpy as np

from vkmnn.ir import Array
from vkmnn.vulkan.device_rules import CpuLanes, cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.cpu_tiles import min_nanoseconds
from vkmnn.vulkan.gemm.encode import encode
from vkmnn.vulkan.gemm.families.row import ConvRow, in_rows
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.rewrites.whole_numbers import (
    FORMS,
    Bounds,
    fewest_parts,
    transform_whole,
)
from vkmnn.vulkan.gemm.rewrites.winograd import (
    DISPATCH_NS,
    has_filters,
    product_problem,
    tile_grid,
    transform_input,
    transform_output,
)
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.quantized.byte_codes import code_spec

# Nanoseconds on one core per tile and channel block, (input, output), measured on lavapipe, by
# concurrent invocations; and the output cost of each further part of the sums.
TRANSFORM_NS = {
    8: {2: (95.0, 51.0), 4: (261.0, 205.0)},
    16: {2: (320.0, 95.0), 4: (820.0, 500.0)},
}
PART = 1.0
# Transformed weights take at least seven times the memory, which only a clear gain justifies.
MIN_GAIN = 1.1
# Output channels whose weights are examined first.
FEW = 8


def by_whole_winograd(job: ConvJob, encoder: VulkanEncoder) -> ConvJob | None:
    """Record the three dispatches if that is chosen, else return the convolution."""
    ranked = rank_whole(job, encoder)
    m = encoder.choose("winograd", ("codes", job.problem), ranked) if ranked else 0
    parts = count_parts(job, m, encoder, job.problem.outputs) if m else 0
    if not parts:
        return job
    problem, epilogue, requantize = job.problem, job.epilogue, job.epilogue.requantize
    assert requantize is not None
    product = _product(problem, m, parts)
    tiles = product.pixels
    before = encoder.scratch(len(FORMS[m].data) * problem.in_blocks * tiles * 4, full=True)
    after = encoder.scratch(product.group * product.outputs * tiles, full=True)
    center = Bounds(*requantize.taken).center
    transform_input(job, m, before, encoder, center)
    weights = job.weights.as_floats(
        f"whole{m}x{parts}", lambda w: transform_whole(w, FORMS[m], parts)
    )
    with encoder.in_full():
        encode(ConvJob(product, weights, before, after), encoder)
    ending = requantize.call_with(
        {
            **epilogue.spec,
            **code_spec(residual=epilogue.residual, y=job.y),
            "PARTS": parts,
        }
    )
    missing = f"{weights.tensor.name}:{center}", center * _sums(job)
    bias = requantize.pack(epilogue.bias, problem.channels, encoder, missing)
    transform_output(job, m, (after, bias), ending, "c8", encoder)
    return None


def _sums(job: ConvJob) -> Array:
    """Return the sum of each output channel's weights."""
    value = job.weights.tensor.value
    assert value is not None
    w = job.weights.view(value)
    sums: Array = w.reshape(len(w), -1).sum(1, dtype=np.int64)
    return sums


def _product(problem: ConvProblem, m: int, parts: int) -> ConvProblem:
    groups = len(FORMS[m].data) * parts
    return product_problem(problem, m, groups, problem.in_blocks // parts)


def rank_whole(job: ConvJob, encoder: VulkanEncoder) -> list[int]:
    """Return the m of F(m, 3), and 0 for direct convolution, fastest prediction first.

    Winograd needs the memory that quantisation is meant to save, so the user must have allowed for
    it. GPUs have dot products, and only devices with rotation kernels were measured: elsewhere,
    direct convolution comes first.
    """
    info, problem = encoder.info, job.problem
    if not encoder.spacious:
        return []
    lanes = cpu_lanes(info)
    requantize = job.epilogue.requantize
    taken = requantize.taken if requantize else (-inf, inf)
    if not has_filters(problem, job.weights) or not all(map(isfinite, taken)):
        return []
    if is_gpu(info) or encoder.load != "texel" or lanes not in rotate_lanes(info):
        return [0, *FORMS]
    costs = {0: _direct_nanoseconds(job, lanes) / MIN_GAIN}
    costs |= {m: _nanoseconds(problem, m, 1, lanes) for m in FORMS}
    # Counting parts reads all weights: only if it matters, after a few have given a lower bound.
    steps = {m: [FEW, problem.outputs] for m in FORMS}
    while left := steps.get(first := min(costs, key=costs.__getitem__)):
        parts = count_parts(job, first, encoder, left.pop(0))
        room = info.limits.max_storage_buffer_range
        fits = parts and _largest(problem, first, parts) <= room
        costs[first] = _nanoseconds(problem, first, parts, lanes) if fits else inf
    return sorted(costs, key=costs.__getitem__)


def count_parts(job: ConvJob, m: int, encoder: VulkanEncoder, outputs: int) -> int:
    """Return the number of parts of the input channels; 0 if none makes sums exact.

    Only the first `outputs` output channels are examined.
    """
    requantize = job.epilogue.requantize
    assert requantize is not None
    weights, taken = job.weights, requantize.taken
    value = weights.tensor.value
    assert value is not None
    least = count_parts(job, m, encoder, FEW) if outputs > FEW else 1

    def find() -> tuple[ReferenceType[Array], int]:
        w = weights.view(value)[:outputs]
        return ref(value), fewest_parts(w, FORMS[m], Bounds(*taken), least) if least else 0

    # Names are not enough: weights may depend on shapes, and differ in the next plan.
    key = ("winograd", weights.key, job.problem.inputs, id(value), m, taken, outputs)
    counted, parts = encoder.once(key, find)
    return parts if counted() is value else find()[1]


def _largest(problem: ConvProblem, m: int, parts: int) -> int:
    """Return the bytes of the larger of the two transformed tensors."""
    product = _product(problem, m, parts)
    return product.group * product.pixels * max(product.inputs, product.outputs) * 4


def _direct_nanoseconds(job: ConvJob, lanes: CpuLanes) -> float:
    """Return the nanoseconds of a direct convolution on one core."""
    tiles = min_nanoseconds(job.problem, lanes, (lanes,))
    if lanes != 8 or Trait.INT8_DOT not in job.allows or not in_rows(job.problem):
        return tiles
    return min(tiles, sum(ConvRow(lanes).nanoseconds(job.problem)))


def _nanoseconds(problem: ConvProblem, m: int, parts: int, lanes: CpuLanes) -> float:
    """Return the nanoseconds of F(m, 3) on one core."""
    before, after = TRANSFORM_NS[lanes][m]
    tiles = problem.batch * prod(tile_grid(problem, m))
    blocks = problem.in_blocks, ceil_div(problem.outputs, 4)
    after *= 1 + PART * (parts - 1)
    transforms = tiles * (before * blocks[0] + after * blocks[1])
    product = min_nanoseconds(_product(problem, m, parts), lanes, (lanes,))
    return product + transforms + DISPATCH_NS
