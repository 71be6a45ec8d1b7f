"""Packed weights: bit layout of quantised values, and their dequantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

HALF = 16
"""Weights whose sums may exceed float32 are split into multiples of this and a remainder."""


def in_parts(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Return h and l, both small, with values = h · HALF + l."""
    wide = values.astype(np.int32)
    high = (wide + HALF // 2) // HALF
    return high.astype(np.int8), (wide - high * HALF).astype(np.int8)


def unpack_codes(packed: npt.NDArray[Any], bits: int) -> Bytes:
    """Unpack quantised values along the last axis, low bits first.

    Args:
        packed: uint8 of any shape.
        bits: per value: 2, 4 or 8.
    """
    if bits == 8:
        return np.asarray(packed, np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    width = packed.shape[-1] * len(shifts)
    return np.asarray(codes.reshape(*packed.shape[:-1], width), np.uint8)


def pack_codes(codes: npt.NDArray[Any], bits: int) -> Bytes:
    """Pack 4- or 8-bit values into bytes; the last axis has an even number of values."""
    if bits == 8:
        return np.asarray(codes, np.uint8)
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4, np.uint8)


def decode(
    codes: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    zeros: npt.NDArray[Any] | None,
    bits: int,
    depth: int,
) -> npt.NDArray[np.float32]:
    """Dequantise packed values [rows, blocks, bytes] to floats [rows, depth].

    Args:
        codes: uint8, in the format of `MatMulNBits`.
        scales: [rows, blocks].
        zeros: [rows, blocks], floats minus 2^(bits - 1); None = 2^(bits - 1).
        bits: per value.
        depth: number of valid values per row.
    """
    plain = unpack_codes(codes, bits).astype(np.float32)
    if zeros is None or zeros.dtype.kind == "f":
        plain -= np.float32(1 << bits - 1)
    if zeros is not None:
        plain -= zeros.astype(np.float32)[..., None]
    plain *= scales.astype(np.float32)[..., None]
    return plain.reshape(plain.shape[0], plain.shape[1] * plain.shape[2])[:, :depth]
