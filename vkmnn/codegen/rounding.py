"""Makes SPIR-V round float16 to nearest when it is stored.

Without that, a device may round towards zero, which shifts every result by half a unit. The
decoration is part of SPIR-V for 16-bit storage, and needs no feature: it is allowed if the value is
only stored into a buffer (SPIR-V specification, "FP Rounding Mode").
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_HEADER_WORDS = 5
# Numbers of the SPIR-V specification, "Instructions", "Decoration" and "Storage Class".
_OP_TYPE_FLOAT, _OP_TYPE_VECTOR, _OP_TYPE_POINTER = 22, 23, 32
_OP_STORE, _OP_ACCESS_CHAIN, _OP_DECORATE, _OP_F_CONVERT = 62, 65, 71, 115
_ANNOTATIONS = range(71, 76)
_FP_ROUNDING_MODE, _TO_NEAREST_EVEN = 39, 0
_BUFFERS = frozenset({2, 12})  # Uniform, StorageBuffer


def rounds_to_nearest(code: bytes) -> bytes:
    """Return a module whose stored float16 are rounded to the nearest, ties to even.

    Args:
        code: a valid SPIR-V module in the byte order of the machine.
    """
    words = array("I", code)
    marks = array("I")
    for number in sorted(_stored_conversions(words)):
        marks.extend((4 << 16 | _OP_DECORATE, number, _FP_ROUNDING_MODE, _TO_NEAREST_EVEN))
    end = max(
        (
            at + len(instruction)
            for at, number, instruction in _instructions(words)
            if number in _ANNOTATIONS
        ),
        default=_HEADER_WORDS,
    )
    return (words[:end] + marks + words[end:]).tobytes() if marks else code


def _instructions(words: array[int]) -> Iterator[tuple[int, int, array[int]]]:
    """Yield the offset of each instruction, its number and its words."""
    at = _HEADER_WORDS
    while at < len(words):
        length = words[at] >> 16
        yield at, words[at] & 0xFFFF, words[at : at + length]
        at += length


def _stored_conversions(words: array[int]) -> set[int]:
    """Return the conversions to float16 whose results are only stored into buffers."""
    narrow: set[int] = set()
    pointers: set[int] = set()
    places: set[int] = set()
    found: set[int] = set()
    stored: set[int] = set()
    used: set[int] = set()
    for _, number, instruction in _instructions(words):
        of_narrow = number == _OP_TYPE_VECTOR and instruction[2] in narrow
        if of_narrow or (number == _OP_TYPE_FLOAT and instruction[2] == 16):
            narrow.add(instruction[1])
        elif number == _OP_TYPE_POINTER and instruction[2] in _BUFFERS:
            pointers.add(instruction[1])
        elif number == _OP_ACCESS_CHAIN and instruction[1] in pointers:
            places.add(instruction[2])
        elif number == _OP_F_CONVERT and instruction[1] in narrow:
            found.add(instruction[2])
        elif number == _OP_STORE and instruction[1] in places:
            stored.add(instruction[2])
        elif found:
            # A literal may look like one of them: it is left unchanged.
            used.update(instruction[1:])
    return found & stored - used
