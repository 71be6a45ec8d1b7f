"""Constants for float16 arithmetic, scaled by powers of two so that no step's sum overflows.

In every column (an output channel, over all its phases), the largest magnitude is scaled below 1 /
(2 · depth), with `depth` products per step: partial sums never exceed half of the largest number of
the left operand, which float16 can represent. Sums are multiplied by the same power afterwards.
Scaling is exact except for weights that fall below 2^-14, the smallest normal float16: these are
less than 2^-8 of the largest weight of their column.
"""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.base.elements import FLOATS
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import PANEL, Operand, pack_right, right_matrices
from vkmnn.vulkan.gemm.weights import Weights

_LARGEST = FLOATS["f16"].largest
# Exponent range of a column's largest number: smaller columns count as zero.
MIN_EXPONENT, MAX_EXPONENT = -60, 16


def exponents_of(columns: Array, depth: int) -> Array:
    """Return the exponents of the powers of two that columns are divided by.

    Infinities and NaNs are ignored: scaling does not change their results.

    Args:
        columns: floats [columns, anything].
        depth: number of products summed in float16.

    Returns:
        int32 [columns].
    """
    sizes = np.where(np.isfinite(columns), np.abs(columns), 0.0)
    largest = np.minimum(sizes.max(axis=1, initial=0.0), _LARGEST)
    # largest < 2^exponent and depth ≤ 2^bits
    exponents = np.frexp(largest)[1].clip(MIN_EXPONENT, MAX_EXPONENT)
    made: Array = (exponents + (depth - 1).bit_length() + 1).astype(np.int32)
    return made


def divided(columns: Array, exponents: Array) -> Array:
    """Return columns [columns, anything] divided by powers of two, clamped to float16's range."""
    inside = np.where(np.isfinite(columns), np.clip(columns, -_LARGEST, _LARGEST), columns)
    made: Array = np.ldexp(inside.astype(np.float32), np.negative(exponents)[:, None])
    return made


def half_weights(job: ConvJob, depth: int) -> tuple[Weights, Weights]:
    """Return a convolution's constant weights divided by powers of two, and the powers, as views.

    There is one power per output channel, the same for all phases, in float32.
    """
    problem, before = job.problem, job.weights.view
    groups, phases = problem.group, len(problem.phases) or 1

    def channels(w: Array) -> Array:
        """Return weights as [output channels, all other axes]."""
        apart = w.reshape(groups, phases, problem.outputs, prod(w.shape[1:]))
        together: Array = apart.swapaxes(1, 2).reshape(groups * problem.outputs, -1)
        return together

    def view(plain: Array) -> Array:
        seen = before(plain)
        w = channels(seen)
        made = divided(w, exponents_of(w, depth))
        apart = made.reshape(groups, problem.outputs, phases, prod(seen.shape[1:]))
        back: Array = apart.swapaxes(1, 2).reshape(seen.shape)
        return back

    def powers(plain: Array) -> Array:
        made = np.ldexp(np.float32(1.0), exponents_of(channels(before(plain)), depth))
        return np.pad(made, (0, -len(made) % 4))

    key, weights = f"half:{depth}:{phases}", job.weights
    scaled = Weights(weights.tensor, f"{weights.key}:{key}", view)
    return scaled, Weights(weights.tensor, f"{weights.key}:{key}:powers", powers)


def half_right(job: MatMulJob, depth: int, encoder: VulkanEncoder) -> tuple[Operand, Tensor]:
    """Return a constant right operand as panels divided by powers of two, and the powers.

    There is one power per column, the same for all matrices, padded with zeros to whole vec4s.
    """
    problem, transposed = job.problem, job.transposed_b
    stride = ceil_div(problem.k, 4) * 4 * PANEL
    batch = ceil_div(problem.n, 4 * PANEL) * stride

    def columns(array: Array) -> Array:
        matrices = right_matrices(array, transposed)
        made: Array = matrices.transpose(2, 0, 1).reshape(problem.n, -1)
        return made

    def panels(array: Array) -> Array:
        w = columns(array)
        made = divided(w, exponents_of(w, depth))
        matrices = made.reshape(problem.n, -1, problem.k).transpose(1, 2, 0)
        return pack_right(matrices, False, 4 * PANEL)

    def powers(array: Array) -> Array:
        made = np.ldexp(np.float32(1.0), exponents_of(columns(array), depth))
        return np.pad(made, (0, -len(made) % 4))

    key = f"matmul_half:{transposed}:{depth}"
    words = problem.matrices[1] * batch * 4
    packed = encoder.constant(job.b, key, panels, words=words)
    factors = encoder.constant(job.b, f"{key}:powers", powers, full=True)
    return Operand(packed, PANEL, batch, panel=stride), factors
