"""Storage of weights: floats, and GGUF's blocks of few bits.

docs/language-models.md lists the types and how they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.ir import Array
from vkmnn.ir.codes import unpack_codes

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]

_LARGEST_ZERO = 32000.0
"""Beyond it, steps of float16 are wider than a whole block, which is as good as constant."""


@dataclass(frozen=True, slots=True)
class Split:
    """Blocks as (quantised value - zero point) · scale.

    Attributes:
        codes: uint8 [.., weights of a block], or two weights in a byte, the first in the low bits.
        scales: float32, or float16 as in the file, [.., scales of a block].
        zeros: float32 in the shape of `scales`, or None where the type says what they are.
    """

    codes: Bytes
    scales: Floats | Halves
    zeros: Floats | None = None
    packed: bool = False


@dataclass(frozen=True, slots=True)
class BlockType:
    """Storage of a tensor's weights.

    Attributes:
        name: its name in files and tools.
        count: weights of a block.
        nbytes: bytes of a block.
        decode: converts blocks, uint8 [.., nbytes], to floats [.., count]; None if packed.
        splitter: separates quantised values from scales; None for floats.
        bits: bits of a stored quantised value: 4 or 8; 0 for floats.
        block: weights that share a scale.
        zeroed: whether every block has a float zero point; otherwise it is the middle.
    """

    name: str
    count: int
    nbytes: int
    decode: Callable[[Bytes], Array] | None = None
    splitter: Callable[[Bytes], Split] | None = None
    bits: int = 0
    block: int = 0
    zeroed: bool = False

    @property
    def is_coded(self) -> bool:
        """Whether it holds quantised values."""
        return self.splitter is not None

    def split(self, blocks: Bytes) -> Split:
        """Return quantised values and scales of blocks."""
        assert self.splitter is not None
        return self.splitter(blocks)

    def floats(self, blocks: Bytes) -> Array:
        """Return the dequantised blocks, in float32."""
        if self.decode is not None:
            return self.decode(blocks)
        found = self.split(blocks)
        shape = (*found.scales.shape, self.block)
        codes = unpack_codes(found.codes, 4) if found.packed else found.codes
        plain = codes.reshape(shape).astype(np.float32)
        middle: Any = np.float32(1 << self.bits - 1)
        plain -= middle if found.zeros is None else found.zeros[..., None]
        plain *= found.scales[..., None]
        return plain.reshape(*blocks.shape[:-1], self.count)


def _words(dtype: str) -> Callable[[Bytes], Array]:
    def decode(blocks: Bytes) -> Array:
        values = np.ascontiguousarray(blocks).view(np.dtype(dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(values, np.float32)

    return decode


def _brain(blocks: Bytes) -> Array:
    """Bfloat16: the upper half of float32."""
    words = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return np.asarray((words << np.uint32(16)).view(np.float32))


def _taken(blocks: Bytes, at: int, width: int) -> Bytes:
    """Return some bytes of every block side by side, [.., width]."""
    whole = np.ascontiguousarray(blocks)
    nbytes = whole.shape[-1]
    unit, kind = next((n, kind) for n, kind in _UNITS if width % n == 0)
    shape, strides = (whole.size // nbytes, width // unit), (nbytes, unit)
    view = np.ndarray(shape, kind, whole.reshape(-1).data, at, strides)
    return np.asarray(view.copy().view(np.uint8).reshape(*blocks.shape[:-1], width))


_UNITS = ((16, "<c16"), (4, "<u4"), (2, "<u2"))
"""What copies move at a time, by their width in bytes: rows of a few single bytes take longest."""


def _half(blocks: Bytes, at: int) -> Halves:
    """Return the float16 at a byte of every block, [.., 1]."""
    return _taken(blocks, at, 2).view("<f2")


def _wide(blocks: Bytes, at: int) -> Floats:
    """Return the same as float32."""
    return _half(blocks, at).astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """Return low halves of all bytes, then high halves."""
    return np.concatenate([data & np.uint8(15), data >> np.uint8(4)], axis=-1)


_EVEN, _ODD = np.uint64(0x000F000F000F000F), np.uint64(0x00F000F000F000F0)


def _neighbours(data: Bytes) -> Bytes:
    """Return bytes of neighbouring low halves, then of neighbouring high ones.

    Args:
        data: as many bytes on the last axis as are taken together, 16 or 32.
    """
    half = data.shape[-1] // 2
    words = np.ascontiguousarray(data).reshape(-1).view("<u8")  # four pairs at a time
    made = np.empty((words.size * 8 // data.shape[-1], 2, half), np.uint8)
    moved = words >> np.uint64(4)
    low = words & _EVEN
    low |= moved & _ODD
    made[:, 0].reshape(-1, half)[...] = low.view("<u2").astype(np.uint8).reshape(-1, half)
    np.bitwise_and(moved, _EVEN, out=low)
    np.right_shift(moved, np.uint64(4), out=moved)
    moved &= _ODD
    low |= moved
    made[:, 1].reshape(-1, half)[...] = low.view("<u2").astype(np.uint8).reshape(-1, half)
    return made.reshape(data.shape)


def _bits(data: Bytes) -> Bytes:
    """Return single bits, the lowest of the first byte first."""
    return np.unpackbits(np.ascontiguousarray(data), axis=-1, bitorder="little")


def _with_offsets(
    codes: Bytes, scales: Floats, offsets: Floats, up: int = 0, packed: bool = False
) -> Split:
    """Return q · scale - offset as (q - zero) · scale.

    `up` is added to values of fewer bits than are stored, so that zero points are near the middle.
    If an offset is out of all proportion to the scale, the block is constant: one step below its
    zero point.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        zeros = offsets / scales
    constant = ~(np.abs(zeros) <= _LARGEST_ZERO)
    if constant.any():
        flat = codes.reshape(*scales.shape, -1).copy()
        flat[constant] = 0
        codes = flat.reshape(codes.shape)
        scales = np.where(constant, np.abs(offsets), scales)
        zeros = np.where(constant, np.sign(offsets), zeros)
    codes = codes + np.uint8(up) if up else codes
    return Split(codes, scales, zeros + np.float32(up), packed)


# --- blocks of 32 --------------------------------------------------------------------------------


def _q8_0(blocks: Bytes) -> Split:
    codes = _taken(blocks, 2, 32)
    codes ^= np.uint8(128)
    return Split(codes, _half(blocks, 0))


def _q4_0(blocks: Bytes) -> Split:
    return Split(_neighbours(_taken(blocks, 2, 16)), _half(blocks, 0), None, True)


def _q4_1(blocks: Bytes) -> Split:
    codes = _neighbours(_taken(blocks, 4, 16))
    return _with_offsets(codes, _wide(blocks, 0), -_wide(blocks, 2), packed=True)


def _fifth(blocks: Bytes, at: int) -> Bytes:
    """Return values of five bits: four bytes of the fifth ones, then nibbles."""
    high = _bits(blocks[..., at : at + 4]) << np.uint8(4)
    return np.asarray(_nibbles(blocks[..., at + 4 :]) | high, np.uint8)


def _q5_0(blocks: Bytes) -> Split:
    return Split(_fifth(blocks, 2) + np.uint8(112), _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Split:
    return _with_offsets(_fifth(blocks, 4), _wide(blocks, 0), -_wide(blocks, 2), 112)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4_CODES = (np.array(_IQ4) + 128).astype(np.uint8)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_FP4_CODES = (np.array(_FP4) + 128).astype(np.uint8)
"""Twice the numbers of four bits that MXFP4 has, moved up by half the range of a byte."""


def _iq4_nl(blocks: Bytes) -> Split:
    return Split(_IQ4_CODES[_nibbles(blocks[..., 2:])], _half(blocks, 0))


def _mxfp4(blocks: Bytes) -> Split:
    exponents = blocks[..., :1].astype(np.int32) - 128
    scales = np.ldexp(np.float32(1), exponents).astype(np.float32)
    return Split(_FP4_CODES[_nibbles(blocks[..., 1:])], scales)


# --- blocks of 256 -------------------------------------------------------------------------------


def _six_bits(data: Bytes) -> tuple[Bytes, Bytes]:
    """Return eight scales and eight minima of 6 bits out of 12 bytes, four bytes at a time."""
    low, middle, mixed = np.moveaxis(np.ascontiguousarray(data).view("<u4"), -1, 0)
    six, four, upper = (np.uint32(n * 0x01010101) for n in (63, 15, 48))
    two = np.uint32(2)
    scales = [low & six, mixed & four | low >> two & upper]
    minima = [middle & six, mixed >> np.uint32(4) & four | middle >> two & upper]
    first, second = (np.stack(one, -1).view(np.uint8) for one in (scales, minima))
    return first, second


def _pairs(data: Bytes) -> Bytes:
    """Return nibbles of 128 bytes: of every 32, the low ones, then the high ones."""
    return _nibbles(data.reshape(*data.shape[:-1], 4, 32)).reshape(*data.shape[:-1], 256)


def _scaled_pair(blocks: Bytes, packed: Bytes) -> tuple[Floats, Floats]:
    scales, minima = _six_bits(packed)
    return _wide(blocks, 0) * scales, _wide(blocks, 2) * minima


def _q4_k(blocks: Bytes) -> Split:
    codes = _neighbours(_taken(blocks, 16, 128).reshape(*blocks.shape[:-1], 4, 32))
    numbers = _scaled_pair(blocks, _taken(blocks, 4, 12))
    return _with_offsets(codes.reshape(*blocks.shape[:-1], 128), *numbers, packed=True)


def _q5_k(blocks: Bytes) -> Split:
    high = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    high = high.reshape(*blocks.shape[:-1], 256)
    codes = _pairs(blocks[..., 48:]) | high << np.uint8(4)
    return _with_offsets(codes, *_scaled_pair(blocks, _taken(blocks, 4, 12)), 112)


def _twos(data: Bytes) -> Bytes:
    """Return 256 values of two bits out of 64 bytes: of every 32, four planes of 32."""
    split = data.reshape(*data.shape[:-1], 2, 1, 32)
    planes = split >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    return np.asarray(planes.reshape(*data.shape[:-1], 256))


def _q2_k(blocks: Bytes) -> Split:
    packed = blocks[..., :16]
    scales = _wide(blocks, 80) * (packed & 15)
    offsets = _wide(blocks, 82) * (packed >> 4)
    return _with_offsets(_twos(blocks[..., 16:80]), scales, offsets, 6)


def _q3_k(blocks: Bytes) -> Split:
    high = blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    high = high.reshape(*blocks.shape[:-1], 256)
    codes = _twos(blocks[..., 32:96]) | high << np.uint8(2)
    packed = blocks[..., 96:108]
    low = _nibbles(packed[..., :8])
    upper = packed[..., None, 8:12] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    upper = upper.reshape(*blocks.shape[:-1], 16)
    scales = (low | upper << np.uint8(4)).astype(np.int8) - np.int8(32)
    # The middle of four bits is 8, that of these three is 4.
    return Split(codes + np.uint8(4), _wide(blocks, 108) * scales)


def _q6_k(blocks: Bytes) -> Split:
    nibbles = _taken(blocks, 0, 128).reshape(-1).view("<u8")
    pairs = _taken(blocks, 128, 64).reshape(-1).view("<u8")
    codes = np.empty((pairs.size // 8, 2, 2, 64), np.uint8)
    codes[:, :, 0] = (nibbles & _LOW_HALVES).view(np.uint8).reshape(-1, 2, 64)
    codes[:, :, 1] = (nibbles >> np.uint64(4) & _LOW_HALVES).view(np.uint8).reshape(-1, 2, 64)
    planes = np.empty((pairs.size // 8, 2, 4, 32), np.uint8)
    for plane in range(4):
        moved = pairs << np.uint64(4 - 2 * plane) if plane < 2 else (
            pairs >> np.uint64(2 * plane - 4))  # fmt: skip
        moved &= _UPPER_PAIRS
        planes[:, :, plane] = moved.view(np.uint8).reshape(-1, 2, 32)
    words = codes.reshape(-1).view("<u8")
    words |= planes.reshape(-1).view("<u8")
    words += _MOVED_UP  # no byte is beyond 63
    scales = _taken(blocks, 192, 16).view(np.int8)
    return Split(codes.reshape(*blocks.shape[:-1], 256), _wide(blocks, 208) * scales)


_LOW_HALVES, _UPPER_PAIRS, _MOVED_UP = (
    np.uint64(0x0101010101010101 * byte) for byte in (0x0F, 0x30, 96)
)


def _iq4_xs(blocks: Bytes) -> Split:
    high = np.ascontiguousarray(blocks[..., 2:4]).view("<u2")
    low = blocks[..., 4:8]
    nibbles = np.stack([low & 15, low >> 4], -1).reshape(*blocks.shape[:-1], 8)
    upper = (high >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)).astype(np.uint8)
    scales = (nibbles | upper << np.uint8(4)).astype(np.int8) - np.int8(32)
    data = blocks[..., 8:].reshape(*blocks.shape[:-1], 8, 16)
    codes = _IQ4_CODES[_nibbles(data)].reshape(*blocks.shape[:-1], 256)
    return Split(codes, _wide(blocks, 0) * scales)


F32 = BlockType("F32", 1, 4, _words("<f4"))
F16 = BlockType("F16", 1, 2, _words("<f2"))
BF16 = BlockType("BF16", 1, 2, _brain)
F64 = BlockType("F64", 1, 8, _words("<f8"))
U8 = BlockType("U8", 1, 1)
"""Bytes, which mean something only together with other tensors."""
MXFP4 = BlockType("MXFP4", 32, 17, None, _mxfp4, 8, 32)

GGUF_TYPES: dict[int, BlockType] = {
    0: F32,
    1: F16,
    2: BlockType("Q4_0", 32, 18, None, _q4_0, 4, 32),
    3: BlockType("Q4_1", 32, 20, None, _q4_1, 4, 32, True),
    6: BlockType("Q5_0", 32, 22, None, _q5_0, 8, 32),
    7: BlockType("Q5_1", 32, 24, None, _q5_1, 8, 32, True),
    8: BlockType("Q8_0", 32, 34, None, _q8_0, 8, 32),
    10: BlockType("Q2_K", 256, 84, None, _q2_k, 4, 16, True),
    11: BlockType("Q3_K", 256, 110, None, _q3_k, 4, 16),
    12: BlockType("Q4_K", 256, 144, None, _q4_k, 4, 32, True),
    13: BlockType("Q5_K", 256, 176, None, _q5_k, 8, 32, True),
    14: BlockType("Q6_K", 256, 210, None, _q6_k, 8, 16),
    20: BlockType("IQ4_NL", 32, 18, None, _iq4_nl, 8, 32),
    23: BlockType("IQ4_XS", 256, 136, None, _iq4_xs, 8, 32),
    28: F64,
    30: BF16,
    39: MXFP4,
}
"""By the numbers that GGUF files have for them."""

OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip
"""Unsupported types, by number."""
