"""Grouped convolutions as dense ones, with zero weights between groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.ir import Array
from vkmnn.vulkan.device_rules import cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.cpu_tiles import min_nanoseconds
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.weights import Weights

# Nanoseconds on one core per result of four channels, and per tap and term, for gathered single
# channels, measured on lavapipe.
RESULT_NS = 30.0
TAP_NS = 4.0
TERM_NS = 2.2


def choose_dense(problem: ConvProblem, weights: Weights, encoder: VulkanEncoder) -> bool:
    """Return whether to compute a grouped convolution as a dense one.

    A dense kernel computes more products but is many times faster on CPU devices if groups do not
    align with channel blocks, or leave tiles empty.
    """
    if problem.group == 1 or problem.grouping == "depthwise" or weights.tensor.value is None:
        return False
    if 0 in (*problem.in_size, problem.pixels, problem.channels):
        return False
    lanes, rotations = cpu_lanes(encoder.info), rotate_lanes(encoder.info)
    if problem.grouping == "blocks":
        grouped = min_nanoseconds(problem, lanes, rotations)
    else:
        results = problem.pixels * ceil_div(problem.channels, 4)
        each = RESULT_NS + problem.taps * (TAP_NS + TERM_NS * problem.inputs)
        grouped = results * each
    dense = min_nanoseconds(dense_problem(problem), lanes, rotations)
    pays = not is_gpu(encoder.info) and dense < grouped
    return encoder.choose("dense", problem, (pays, not pays))


def dense_problem(problem: ConvProblem) -> ConvProblem:
    """Return the convolution without groups."""
    channels = problem.group * problem.inputs
    return replace(problem, group=1, inputs=channels, outputs=problem.channels)


def dense_weights(w: Array, group: int) -> Array:
    """Return weights [O, C / group, taps …] as [O, C, taps …], zeros between groups."""
    outputs, inputs = w.shape[0] // group, w.shape[1]
    dense = np.zeros((group, outputs, group, inputs, *w.shape[2:]), w.dtype)
    each = np.arange(group)
    dense[each, :, each] = w.reshape(group, outputs, *w.shape[1:])
    return dense.reshape(group * outputs, group * inputs, *w.shape[2:])


def as_dense(job: ConvJob, encoder: VulkanEncoder) -> ConvJob:
    """Return the convolution without groups, if that is chosen."""
    problem, weights = job.problem, job.weights
    if not choose_dense(problem, weights, encoder):
        return job
    dense = weights.seen_as("dense", lambda w: dense_weights(w, problem.group))
    return replace(job, problem=dense_problem(problem), weights=dense)
