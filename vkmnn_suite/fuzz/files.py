"""Damaged `.vkmnn`, `.mnn` and `.caffemodel` files: valid ones with one to four bytes changed.

The first two are FlatBuffers: tables of numbers, offsets and vectors at multiples of their size.
Changes overwrite numbers that readers may trip over, or move, repeat and truncate bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

_COUNTS = (1, 1, 1, 2, 2, 3, 4)
_HEAD_SHARE = 0.9
"""How many changes affect the tables; the weights, at the end of files, are arbitrary numbers."""

_HEAD_BYTES = 1 << 16
_NUMBERS = (0, 1, 2, 3, 4, 7, 16, 127, 128, 255, -1, -2, -128)
_LIMITS = tuple(2**bits + more for bits in (15, 16, 31, 32, 48, 62, 63) for more in (-1, 0))


def make_damaged(
    seed: int, number: int, starts: Sequence[Path], without: Collection[int] = ()
) -> tuple[bytes, str, list[str]]:
    """Return the bytes of the file of this number, its suffix, and a description of the changes.

    Args:
        seed: the seed of the run; the same arguments result in the same file.
        number: the number of the file.
        starts: the valid files to start from.
        without: changes to leave out, by position; the others remain the same.
    """
    rng = random.Random(f"files/{seed}/{number}")
    start = rng.choice(starts)
    data, done = bytearray(start.read_bytes()), [start.name]
    for place in range(rng.choice(_COUNTS)):
        own = random.Random(f"files/{seed}/{number}/{place}")
        if place not in without:
            done.append(own.choice(_CHANGES)(data, own))
    return bytes(data), start.suffix, done


def _place(data: bytearray, rng: random.Random, width: int) -> int:
    end = len(data)
    if rng.random() < _HEAD_SHARE:
        end = min(end, _HEAD_BYTES)
    return rng.randrange(max(end // width, 1)) * width


def _number(data: bytearray, rng: random.Random) -> str:
    width = rng.choice((1, 2, 4, 4, 4, 8))
    value = rng.choice(_NUMBERS if rng.random() < 0.7 else _LIMITS)
    at = _place(data, rng, width)
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    return f"{value} in {width} bytes at {at}"


def _nudge(data: bytearray, rng: random.Random) -> str:
    """Change a number a little: offsets, sizes and types are small ones."""
    at, by = _place(data, rng, 4), rng.choice((-4, -1, 1, 4, 8))
    value = int.from_bytes(data[at : at + 4], "little") + by
    data[at : at + 4] = (value % (1 << 32)).to_bytes(4, "little")
    return f"{by:+} at {at}"


def _bit(data: bytearray, rng: random.Random) -> str:
    at, bit = _place(data, rng, 1), rng.randrange(8)
    if at < len(data):
        data[at] ^= 1 << bit
    return f"bit {bit} at {at}"


def _copy(data: bytearray, rng: random.Random) -> str:
    width = rng.choice((4, 8, 16, 64))
    source, at = _place(data, rng, 4), _place(data, rng, 4)
    part = data[source : source + width]
    data[at : at + len(part)] = part
    return f"{width} bytes from {source} to {at}"


def _cut(data: bytearray, rng: random.Random) -> str:
    at = _place(data, rng, 1)
    if rng.random() < 0.5:
        del data[at:]
        return f"cut off at {at}"
    length = rng.choice((1, 4, 16))
    del data[at : at + length]
    return f"{length} bytes left out at {at}"


_CHANGES: Sequence[Callable[[bytearray, random.Random], str]] = (
    *(_number, _number, _number, _nudge, _nudge, _bit, _copy, _cut),
)
