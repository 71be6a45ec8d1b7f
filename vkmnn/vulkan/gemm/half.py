"""Weights for float16 arithmetic: multiplied by a power of two, so that no sum of a step overflows.

Partial sums of `depth` products a · w, with |w| at most 0.5 / depth, never exceed half of the
largest |a|, which float16 holds. A power of two changes no digit of a weight, unless it makes it
smaller than the smallest normal float16, 2^-14: next to the largest weight of its tensor, such a
one counts less than 2^-9.
"""

from __future__ import annotations

from math import frexp

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.weights import Weights

# Powers of two whose reciprocals are normal float32, too.
_MAX_EXPONENT = 126


def scale_of(weights: Array, depth: int) -> float:
    """Return the power of two for weights of which `depth` products are added up in float16.

    Infinities and NaNs are left out: what they make is infinite, or none, with any scale.
    """
    sizes = np.abs(weights, dtype=np.float32)
    largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    if largest == 0.0:
        return 1.0
    # largest < 2^exponent, and depth ≤ 2^(bits of depth - 1)
    exponent = frexp(largest)[1] + (depth - 1).bit_length() + 1
    return float(2.0 ** max(-_MAX_EXPONENT, min(-exponent, _MAX_EXPONENT)))


def scaled(weights: Array, depth: int) -> Array:
    """Return weights, in any order and padded with zeros, times their scale."""
    made: Array = np.multiply(weights, np.float32(scale_of(weights, depth)), dtype=np.float32)
    return made


def unscale_of(weights: Tensor | Weights, depth: int, encoder: VulkanEncoder) -> Tensor:
    """Return one number: the reciprocal of the scale of a constant, as it is seen."""
    tensor, key = (
        (weights.tensor, weights.key) if isinstance(weights, Weights) else (weights, "plain")
    )

    def reciprocal(plain: Array) -> Array:
        seen = weights.view(plain) if isinstance(weights, Weights) else plain
        return np.array([1.0 / scale_of(seen, depth)], np.float32)

    return encoder.constant(tensor, f"unscale:{key}:{depth}", reciprocal, full=True)
