"""Weights in blocks of few bits, with the scales that make their error smallest."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_ROWS = 1 << 15
"""Blocks that are quantised at a time."""
_STEPS = 9
"""Scales that are tried on either side of the usual one, for 4 bits."""
_WIDTH = 0.04
"""Distance of two tried scales, as a share."""
_ROUNDS = 3
"""Least-squares fits of scale and minimum, in turns with rounding, for blocks with zero points."""


def pack(
    matrix: Array, bits: int, block: int, symmetric: bool, importance: Array | None = None
) -> tuple[Array, Array, Array]:
    """Quantise a float32 matrix [K, N] in blocks along K, in MatMulNBits's format.

    Several scales are tried for every block of 4 bits; the one with the smallest squared error of
    the weights counts, each weight's error multiplied by the importance of its row.

    Args:
        matrix: the weights.
        bits: 4 or 8.
        block: weights along K that share a scale.
        symmetric: no zero points; values are from -2**(bits - 1) on.
        importance: mean squares of the inputs [K]; None for equal importance.

    Returns:
        Quantised values uint8 [N, blocks, block · bits / 8], scales float32 [N, blocks], and zero
        points uint8 [N, bytes], packed, which are meaningless if `symmetric`.
    """
    depth, columns = matrix.shape
    blocks = -(-depth // block)
    rows = np.zeros((columns, blocks * block), np.float32)
    rows[:, :depth] = matrix.T
    rows = rows.reshape(-1, block)
    weights = None
    if importance is not None:
        padded = np.zeros(blocks * block, np.float32)
        padded[:depth] = importance
        weights = tempered(padded.reshape(blocks, block))
    codes = np.empty(rows.shape, np.uint8)
    scales = np.empty(len(rows), np.float32)
    zeros = np.empty(len(rows), np.uint8)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        x = rows[part]
        w = None if weights is None else weights[np.arange(start, start + len(x)) % blocks]
        scales[part], zeros[part] = scale_and_zero(x, bits, symmetric, w)
        codes[part] = round_to(x, scales[part], zeros[part], bits)
    return packed(codes, scales, zeros, columns, bits)


def plain_pack(
    matrix: Array, bits: int, block: int, symmetric: bool, weight: str
) -> tuple[Array, Array, Array]:
    """Return a matrix as `pack` quantises it if nothing is known of its inputs."""
    del weight
    return pack(matrix, bits, block, symmetric)


def packed(
    codes: Array, scales: Array, zeros: Array, columns: int, bits: int
) -> tuple[Array, Array, Array]:
    """Return quantised blocks in MatMulNBits's format.

    Args:
        codes: quantised values uint8 [columns · blocks, block].
        scales: float32 [columns · blocks].
        zeros: uint8 [columns · blocks].
        columns: N.
        bits: 4 or 8.
    """
    block = codes.shape[1]
    zeros = zeros.reshape(columns, -1)
    if bits == 4:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
        if zeros.shape[1] % 2:
            zeros = np.pad(zeros, ((0, 0), (0, 1)))
        zeros = zeros[:, ::2] | zeros[:, 1::2] << 4
    return (
        codes.reshape(columns, -1, block * bits // 8),
        scales.reshape(columns, -1),
        np.ascontiguousarray(zeros),
    )


def round_to(x: Array, scales: Array, zeros: Array, bits: int) -> Array:
    """Return the nearest quantised values uint8 of blocks [blocks, block]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(scales == 0, 0, 1 / scales).astype(np.float32)
    made = np.rint(x * inverse[:, None]) + zeros[:, None].astype(np.float32)
    return np.asarray(np.clip(np.nan_to_num(made), 0, (1 << bits) - 1).astype(np.uint8))


def scale_and_zero(
    x: Array, bits: int, symmetric: bool, weights: Array | None
) -> tuple[Array, Array]:
    """Return the scales float32 and zero points uint8 of blocks [blocks, block].

    Args:
        x: the numbers.
        bits: 4 or 8.
        symmetric: the middle value is the zero point of all.
        weights: weights of the numbers' squared errors [blocks, block]; None for equal ones.
    """
    if symmetric:
        return _scale(x, bits, weights), np.full(len(x), 1 << bits - 1, np.uint8)
    return _scale_and_zero(x, bits, weights)


def _scale(x: Array, bits: int, weights: Array | None) -> Array:
    """Return the scales of blocks [blocks, block] without zero points, float32 [blocks].

    The value of the largest magnitude usually becomes the lowest one, which is one step further
    from zero than the highest.
    """
    low = -(1 << bits - 1)
    place = np.abs(x).argmax(1)[:, None]
    largest = np.take_along_axis(x, place, 1)[:, 0]
    best = largest / np.float32(low)
    if bits > 4:
        return np.asarray(best.astype(np.float32))
    error = np.full(len(x), np.inf, np.float32)
    start = best
    for step in range(-_STEPS, _STEPS + 1):
        tried = start * np.float32(1 + step * _WIDTH)
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = np.where(tried == 0, 0, 1 / tried).astype(np.float32)
        q = np.clip(np.rint(x * inverse[:, None]), low, -low - 1)
        wq = q if weights is None else q * weights
        up, down = (wq * x).sum(1), (wq * q).sum(1)
        fitted = np.where(down > 0, up / np.where(down > 0, down, 1), tried)
        apart = np.square(x - fitted[:, None] * q)
        lost = (apart if weights is None else apart * weights).sum(1)
        better = lost < error
        best, error = np.where(better, fitted, best), np.where(better, lost, error)
    return np.asarray(best.astype(np.float32))


def _scale_and_zero(x: Array, bits: int, weights: Array | None) -> tuple[Array, Array]:
    """Return the scales and zero points of blocks."""
    top = (1 << bits) - 1
    low, high = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
    best_scale = np.asarray((high - low) / np.float32(top), np.float32)
    best_zero = _zero(low, best_scale, top)
    error = np.full(len(x), np.inf, np.float32)
    for shrink in (1.0, 0.94, 0.88, 0.82) if bits == 4 else (1.0,):
        scale = np.asarray(best_scale if shrink == 1 else (high - low) * shrink / top, np.float32)
        zero = _zero(low * shrink, scale, top)
        for _ in range(_ROUNDS if bits == 4 else 1):
            q = round_to(x, scale, zero, bits).astype(np.float32) - zero[:, None]
            apart = np.square(x - q * scale[:, None])
            lost = (apart if weights is None else apart * weights).sum(1)
            better = lost < error
            error = np.where(better, lost, error)
            best_scale = np.where(better, scale, best_scale).astype(np.float32)
            best_zero = np.where(better, zero, best_zero).astype(np.uint8)
            wq = q if weights is None else q * weights
            down = (wq * q).sum(1)
            scale = np.where(down > 0, (wq * x).sum(1) / np.where(down > 0, down, 1), scale)
            scale = scale.astype(np.float32)
    return best_scale, best_zero


def _zero(low: Array, scale: Array, top: int) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(scale == 0, 0, -low / scale)
    return np.asarray(np.clip(np.rint(found), 0, top).astype(np.uint8))


def tempered(importance: Array) -> Array:
    """Return positive importance with a mean of one in every block."""
    mean = importance.mean(1, keepdims=True)
    made = np.where(mean > 0, importance / np.where(mean > 0, mean, 1), 1)
    return np.asarray((made + 1e-3).astype(np.float32))
