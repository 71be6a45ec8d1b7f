"""Values stored as float16 are rounded to nearest, whatever the device's default is."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator

from vkmnn.codegen.rounding import rounds_to_nearest
from vkmnn.shaders.library import BUILTIN

FLOAT, VECTOR, CONVERT, DECORATE = 22, 23, 115, 71
FP_ROUNDING_MODE, TO_NEAREST = 39, 0


def instructions(code: bytes) -> Iterator[list[int]]:
    """Yield the words of each instruction, the first without its length."""
    words, at = array("I", code), 5
    while at < len(words):
        length = words[at] >> 16
        yield [words[at] & 0xFFFF, *words[at + 1 : at + length]]
        at += length


def conversions(code: bytes) -> tuple[set[int], set[int]]:
    """Return the conversions to float16, and those with explicit rounding."""
    narrow: set[int] = set()
    found: set[int] = set()
    marked: set[int] = set()
    for number, *operands in instructions(code):
        of_narrow = number == VECTOR and operands[1] in narrow
        if of_narrow or (number == FLOAT and operands[1] == 16):
            narrow.add(operands[0])
        elif number == CONVERT and operands[0] in narrow:
            found.add(operands[1])
        elif number == DECORATE and operands[1:] == [FP_ROUNDING_MODE, TO_NEAREST]:
            marked.add(operands[0])
    return found, marked


def test_all_committed_modules_say_how_they_round() -> None:
    count = 0
    for shader in BUILTIN.all():
        if "storage16" in shader.requires:
            found, marked = conversions(shader.spirv())
            # The values that these stage in shared memory are float16 already and convert exactly,
            # or become factors of quantised weights, which a device may round in its own way.
            if "_half_" in shader.name or re.search(r"^matmul_coop_.*_[48]_4$", shader.name):
                assert marked, shader.name
                assert marked < found, shader.name
            else:
                assert found == marked, shader.name
            count += len(marked)
    assert count > 1000


def test_nothing_else_changes() -> None:
    wide = BUILTIN.load("convert_width_f16_f32_buffer").spirv()
    assert rounds_to_nearest(wide) == wide
    code = BUILTIN.load("convert_width_f32_f16_buffer").spirv()
    words, plain, at = array("I", code), array("I", code[:20]), 5
    for number, *operands in instructions(code):
        if number != DECORATE or operands[1] != FP_ROUNDING_MODE:
            plain += words[at : at + 1 + len(operands)]
        at += 1 + len(operands)
    assert len(plain) == len(words) - 4
    assert rounds_to_nearest(plain.tobytes()) == code
