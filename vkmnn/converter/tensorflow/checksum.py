"""CRC-32C (Castagnoli), masked as LevelDB and TensorFlow store it; of large data, vectorised."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8
_LANES = 1 << 12
"""Pieces of large data that are summed side by side."""


@functools.cache
def _table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


def masked_crc(*parts: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Return the masked CRC-32C of consecutive bytes."""
    crc = 0xFFFFFFFF
    for part in parts:
        crc = _continued(crc, np.frombuffer(part, np.uint8))
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _continued(crc: int, data: npt.NDArray[np.uint8]) -> int:
    each = data.size // _LANES
    if each:
        lanes = np.zeros(_LANES, np.uint32)
        table = _table()
        for column in np.ascontiguousarray(data[: each * _LANES].reshape(_LANES, each).T):
            lanes = table[(lanes ^ column) & 0xFF] ^ (lanes >> 8)
        # Sums are linear: that of two pieces is the first one's, moved on by zeros, and the second.
        moved = _zeros(each)
        for lane in lanes.tolist():
            crc = _applied(moved, crc) ^ lane
    table_ = _table().tolist()
    for byte in data[each * _LANES :].tolist():
        crc = table_[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def _applied(matrix: list[list[int]], crc: int) -> int:
    """Return the product of a matrix over bits, as tables by byte, and a sum."""
    a, b, c, d = matrix
    return a[crc & 0xFF] ^ b[crc >> 8 & 0xFF] ^ c[crc >> 16 & 0xFF] ^ d[crc >> 24]


@functools.lru_cache(8)
def _zeros(count: int) -> list[list[int]]:
    """Return what so many bytes of zeros do to a sum."""
    found = np.uint32(1) << np.arange(32, dtype=np.uint32)
    step = _table()[found & 0xFF] ^ (found >> np.uint32(8))
    while count:
        if count & 1:
            found = _bits_applied(step, found)
        step = _bits_applied(step, step)
        count >>= 1
    bytes_ = np.arange(256, dtype=np.uint32)
    return [_bits_applied(found, bytes_ << np.uint32(8 * n)).tolist() for n in range(4)]


def _bits_applied(columns: Words, values: Words) -> Words:
    result = np.zeros_like(values)
    for bit in range(32):
        result ^= np.where(values >> np.uint32(bit) & 1, columns[bit], np.uint32(0))
    return result
