"""Quantisation with error feedback: each row's rounding error is made up for by later rows."""

from __future__ import annotations

import numpy as np

from vkmnn.quantization.blocks import Array, packed, round_to, scale_and_zero, tempered

_DAMPING = 0.01
"""Share of the mean diagonal that is added to the moments."""


def pack_with_feedback(
    matrix: Array, bits: int, block: int, symmetric: bool, moments: Array
) -> tuple[Array, Array, Array]:
    """Quantise a matrix [K, N] in blocks along K, so that its product with inputs changes least.

    Rows are rounded one after the other, and their errors, weighted by how the inputs go together,
    are subtracted from the rows that follow (GPTQ).

    Args:
        matrix: the weights, float32.
        bits: 4 or 8.
        block: weights along K that share a scale.
        symmetric: no zero points.
        moments: second moments of the inputs [K, K].

    Returns:
        As `blocks.pack`.
    """
    depth, columns = matrix.shape
    blocks = -(-depth // block)
    upper = _inverse_factor(moments)
    rest = np.zeros((blocks * block, columns), np.float32)
    rest[:depth] = matrix
    codes = np.empty((columns, blocks, block), np.uint8)
    scales = np.empty((columns, blocks), np.float32)
    zeros = np.empty((columns, blocks), np.uint8)
    importance = np.zeros(blocks * block, np.float32)
    importance[:depth] = np.diagonal(moments)
    importance = tempered(importance.reshape(blocks, block))
    for number in range(blocks):
        start = number * block
        size = min(block, depth - start)
        part = rest[start : start + block].copy()
        weights = np.broadcast_to(importance[number], (columns, block))
        scale, zero = scale_and_zero(np.ascontiguousarray(part.T), bits, symmetric, weights)
        scales[:, number], zeros[:, number] = scale, zero
        errors = np.zeros((size, columns), np.float32)
        codes[:, number] = zero[:, None]
        for row in range(size):
            value = round_to(part[row][:, None], scale, zero, bits)[:, 0]
            codes[:, number, row] = value
            back = (value.astype(np.float32) - zero) * scale
            place = start + row
            errors[row] = (part[row] - back) / upper[place, place]
            inside = upper[place, place + 1 : start + size]
            part[row + 1 : size] -= np.outer(inside, errors[row])
        rest[start + size : depth] -= upper[start : start + size, start + size :].T @ errors
    return packed(codes.reshape(-1, block), scales.reshape(-1), zeros.reshape(-1), columns, bits)


def _inverse_factor(moments: Array) -> Array:
    """Return the upper Cholesky factor of the inverse of damped moments, float32 [K, K]."""
    damped = moments.astype(np.float64)
    mean = float(np.diagonal(damped).mean()) or 1.0
    share = _DAMPING
    while True:
        try:
            inverse = np.linalg.inv(damped + share * mean * np.eye(len(damped)))
            lower = np.linalg.cholesky((inverse + inverse.T) / 2)
        except np.linalg.LinAlgError:
            share *= 10
            continue
        return np.ascontiguousarray(lower.T.astype(np.float32))
