"""Rows of caches packed into 32-bit words: halves, or bytes with a scale for every row.

"f16": two halves a word. "i8": four signed bytes a word, x ≈ byte · scale, then a word with the
float32 scale, the largest magnitude of the row divided by 127. The last word of a row is padded
with zeros. Shaders read and write the same words (`include/packed_rows.glsl.j2`).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

Packing = Literal["", "f16", "i8"]
"""How rows are packed; "" leaves them as they are."""

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

PACKINGS: tuple[Packing, ...] = ("f16", "i8")

LARGEST_HALF = np.float32(65504)
_LEVELS = np.float32(127)


def packed_words(packing: Packing, depth: int) -> int:
    """Return the words of a row of `depth` elements; of "", one for each."""
    return {"": depth, "f16": -(-depth // 2), "i8": -(-depth // 4) + 1}[packing]


def row_elements(packing: Packing, words: int) -> int:
    """Return the most elements that a row of this many words holds; of "", the words."""
    return {"": words, "f16": 2 * words, "i8": 4 * (words - 1)}[packing]


def pack_rows(rows: Array, packing: Packing) -> Array:
    """Return floats [..., depth] as int32 [..., words]; larger numbers become the largest half."""
    depth = rows.shape[-1]
    codes = packed_words(packing, depth) - (packing == "i8")
    per_word = 2 if packing == "f16" else 4
    padded = np.zeros((*rows.shape[:-1], codes * per_word), np.float32)
    padded[..., :depth] = rows
    if packing == "f16":
        halves: Array = np.clip(padded, -LARGEST_HALF, LARGEST_HALF).astype("<f2")
        return halves.view("<i4")
    largest = np.abs(padded).max(-1, keepdims=True, initial=0)
    with np.errstate(divide="ignore"):
        factor = np.where(largest > 0, _LEVELS / largest, np.float32(0)).astype(np.float32)
    words = np.rint(padded * factor).astype(np.int8).view("<i4")
    scales = (largest * (np.float32(1) / _LEVELS)).astype("<f4").view("<i4")
    return np.concatenate([words, scales], axis=-1)


def unpack_rows(words: Array, packing: Packing, depth: int) -> Array:
    """Return the float32 [..., depth] that words of `pack_rows` hold."""
    words = np.ascontiguousarray(words, "<i4")
    if packing == "f16":
        return words.view("<f2")[..., :depth].astype(np.float32)
    codes, scales = np.ascontiguousarray(words[..., :-1]), np.ascontiguousarray(words[..., -1:])
    rows: Array = codes.view(np.int8)[..., :depth].astype(np.float32) * scales.view("<f4")
    return rows
