"""Makes kernels report finite numbers that overflow when stored as float16.

The driver gets a module that tests every number on its way to float16, in three integer operations,
and sets a word in a separate buffer if a finite number becomes infinite. Numbers that were infinite
before, as in masks, do not count: they are infinite in float32 too. The committed modules have no
tests, and pipelines of float32 are unchanged.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from vkmnn.runtime import spirv
from vkmnn.runtime.spirv import ModuleEditor, op

# Numbers of the SPIR-V specification, "Instructions" and "Image Format".
_IMAGE_WRITE, _F_CONVERT, _BITCAST, _SUBTRACT, _ANY, _OR = 99, 115, 124, 130, 154, 166
_LESS, _BIT_AND, _ATOMIC_OR = 176, 199, 241
_PACK_HALF, _RGBA16F, _R16F = 58, 2, 9

_SIGN = 0x7FFF_FFFF
_FIRST = 0x477F_F000
"""The bits of 65520, the smallest number that rounds to infinity."""
_COUNT = 0x7F80_0000 - _FIRST
"""Number of float32 values in that interval."""


def watch_overflow(code: bytes, binding: int) -> bytes:
    """Return a module that sets a word if a finite float32 becomes an infinite float16.

    Args:
        code: a valid SPIR-V module in the byte order of the machine.
        binding: the number, in set 0, of the buffer that holds the word; which must be unused.
    """
    module = _Module(array("I", code))
    return module.watched(binding).tobytes() if module.narrowed else code


class _Module(ModuleEditor):
    """A module and its conversions to float16.

    Attributes:
        narrowed: for each insertion point, the number to test and its lanes.
    """

    def __init__(self, words: array[int]) -> None:
        super().__init__(words)
        self._returns: list[int] = []
        self.narrowed: list[tuple[int, int, int]] = []
        self._find()

    def _find(self) -> None:
        words, types = self.words, self.types
        floats = (key for key in types if key[0] == spirv.FLOAT and key[1] == 16)
        half = {types[key]: 1 for key in floats}  # types of float16 -> their lanes
        for key, found in types.items():
            if key[0] == spirv.VECTOR and key[1] in half:
                half[found] = key[2]
        images = {
            words[at + 1]
            for at in self.declared
            if words[at] & 0xFFFF == spirv.IMAGE and words[at + 8] in (_RGBA16F, _R16F)
        }
        imports = [at for at in self.declared if words[at] & 0xFFFF == spirv.EXT_IMPORT]
        library = words[imports[-1] + 1] if imports else 0
        texels: dict[int, int] = {}  # loaded images -> lanes that they keep
        inside = 0
        widened: set[int] = set()  # numbers that were float16
        at, end = self.first_function, len(words)
        while at < end:
            word = words[at]
            number = word & 0xFFFF
            if number == _F_CONVERT:
                lanes = half.get(words[at + 1])
                if lanes is None:
                    widened.add(words[at + 2])
                elif words[at + 3] not in widened:
                    self.narrowed.append((at, words[at + 3], lanes))
            elif number == spirv.RETURN:
                if inside == self.main:
                    self._returns.append(at)
            elif number == spirv.EXT_INST:
                if words[at + 4] == _PACK_HALF and words[at + 3] == library:
                    self.narrowed.append((at, words[at + 5], 2))
            elif number == spirv.LOAD:
                if words[at + 1] in images:
                    texels[words[at + 2]] = 4
            elif number == _IMAGE_WRITE:
                if words[at + 1] in texels:
                    self.narrowed.append((at, words[at + 3], 4))
            elif number == spirv.FUNCTION:
                inside = words[at + 2]
            at += word >> 16

    # --- additions -------------------------------------------------------------------------------

    def watched(self, binding: int) -> array[int]:
        """Return the module with its tests."""
        boolean, unsigned = self.type(spirv.BOOL), self.type(spirv.INT, 32, 0)
        zero, one, scope = (self.constant(unsigned, n) for n in (0, 1, self.scope))
        false = self.new(spirv.CONSTANT_FALSE, boolean)
        private = self.pointer(spirv.PRIVATE, boolean)
        seen = self.new(spirv.VARIABLE, private, spirv.PRIVATE, false)
        self.use(seen)
        word_pointer = self.pointer(spirv.STORAGE_BUFFER, unsigned)
        status = self.buffer(binding, unsigned)
        tests = {lanes: self._test(lanes) for lanes in {lanes for _, _, lanes in self.narrowed}}
        for at, value, lanes in self.narrowed:
            self.insert(at, *self._tested(value, tests[lanes], seen))
        for at in self._returns:
            flag, reports, merge, place, before = (self.next_id() for _ in range(5))
            self.insert(
                at,
                op(spirv.LOAD, boolean, flag, seen),
                op(spirv.SELECTION_MERGE, merge, 0),
                op(spirv.BRANCH_IF, flag, reports, merge),
                op(spirv.LABEL, reports),
                op(spirv.ACCESS_CHAIN, word_pointer, place, status, zero),
                op(_ATOMIC_OR, unsigned, before, place, scope, zero, one),
                op(spirv.BRANCH, merge),
                op(spirv.LABEL, merge),
            )
        return self.edited()

    def _test(self, lanes: int) -> tuple[int, ...]:
        """Return the types and constants for a test of `lanes` numbers."""
        boolean, unsigned = self.type(spirv.BOOL), self.type(spirv.INT, 32, 0)
        numbers = [self.constant(unsigned, number) for number in (_SIGN, _FIRST, _COUNT)]
        if lanes == 1:
            return lanes, unsigned, boolean, *numbers
        wide = self.type(spirv.VECTOR, unsigned, lanes)
        full = [self.new(spirv.CONSTANT_COMPOSITE, wide, *[number] * lanes) for number in numbers]
        return lanes, wide, self.type(spirv.VECTOR, boolean, lanes), *full

    def _tested(self, value: int, test: Sequence[int], seen: int) -> list[tuple[int, ...]]:
        """Return the instructions that record an overflow of `value` in the variable `seen`."""
        lanes, wide, wide_bool, sign, first, count = test
        boolean = self.type(spirv.BOOL)
        bits, size, past, far, before, after = (self.next_id() for _ in range(6))
        steps = [
            op(_BITCAST, wide, bits, value),
            op(_BIT_AND, wide, size, bits, sign),
            op(_SUBTRACT, wide, past, size, first),
            op(_LESS, wide_bool, far, past, count),
        ]
        if lanes > 1:
            one = self.next_id()
            steps.append(op(_ANY, boolean, one, far))
            far = one
        steps += [
            op(spirv.LOAD, boolean, before, seen),
            op(_OR, boolean, after, before, far),
            op(spirv.STORE, seen, after),
        ]
        return steps
