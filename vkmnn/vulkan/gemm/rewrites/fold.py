"""Convolutions with one input channel: four taps of a row become four channels.

A texel of a single-channel tensor holds one value and three zeros. A pass that stores four
neighbours in each texel reduces the taps to a quarter: a 5 x 5 window becomes 5 x 2 with four
channels.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from vkmnn.ir import Array
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.cpu_tiles import min_nanoseconds
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem

# Nanoseconds on one core per pixel of the pass, and per dispatch, measured on lavapipe.
FOLD_NS = 10.0
DISPATCH_NS = 25_000.0


def choose_fold(problem: ConvProblem, encoder: VulkanEncoder) -> bool:
    """Return whether to fold the taps of a convolution: if that saves time on a CPU device."""
    columns = problem.kernel[2]
    fits = problem.inputs == problem.group == 1 and problem.outputs > 1 and columns > 1
    if not fits or 0 in (*problem.in_size, problem.pixels):
        return False
    lanes = cpu_lanes(encoder.info)
    rotations = rotate_lanes(encoder.info)
    folded = folded_problem(problem)
    before = min_nanoseconds(problem, lanes, rotations)
    after = min_nanoseconds(folded, lanes, rotations)
    after += FOLD_NS * problem.batch * prod(folded.in_size) + DISPATCH_NS
    pays = not is_gpu(encoder.info) and after < before
    return encoder.choose("fold", problem, (pays, not pays))


def folded_problem(problem: ConvProblem) -> ConvProblem:
    """Return the convolution of four channels; rows include their padding at both ends."""
    depth, height, columns = problem.kernel
    taps = ceil_div(columns, 4)
    step = 4 * problem.dilation[2]
    width = (problem.out_size[2] - 1) * problem.stride[2] + (taps - 1) * step + 1
    return replace(
        problem,
        inputs=4,
        in_size=(*problem.in_size[:2], width),
        kernel=(depth, height, taps),
        dilation=(*problem.dilation[:2], step),
        pad=(*problem.pad[:2], 0),
    )


def fold_weights(w: Array) -> Array:
    """Return weights [O, 1, kd, kh, kw] as [O, 4, kd, kh, kw / 4], padded with zeros."""
    padded = np.pad(w, ((0, 0),) * 4 + ((0, -w.shape[4] % 4),))
    split = padded.reshape(*padded.shape[:4], padded.shape[4] // 4, 4)
    folded: Array = split[:, 0].transpose(0, 4, 1, 2, 3)
    return folded


def fold_taps(job: ConvJob, encoder: VulkanEncoder) -> ConvJob:
    """Record the pass if it is chosen, and return the remaining convolution."""
    problem = job.problem
    if job.x.codes is not None or not choose_fold(problem, encoder):
        return job
    folded = folded_problem(problem)
    count = problem.batch * prod(folded.in_size)
    y = encoder.scratch(count * 4)
    params = kernels.ConvFoldParams(
        count=count,
        width=folded.in_size[2],
        in_width=problem.in_size[2],
        pad=problem.pad[2],
        step=problem.dilation[2],
    )
    shader = kernels.conv_fold(element=encoder.element, load=encoder.load)
    encoder.dispatch_linear(shader, [job.x, y], params, count)
    return replace(job, problem=folded, weights=job.weights.seen_as("fold", fold_weights), x=y)
