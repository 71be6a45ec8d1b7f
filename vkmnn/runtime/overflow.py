"""Makes kernels report finite numbers that overflow when stored as float16.

The driver gets a module that tests every number on its way to float16, in three integer operations,
and sets a word in a separate buffer if a finite number becomes infinite. Numbers that were infinite
before, as in masks, do not count: they are infinite in float32 too. The committed modules have no
tests, and pipelines of float32 are unchanged.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

_HEADER_WORDS = 5
# Numbers of the SPIR-V specification, "Instructions", "Storage Class" and "Decoration".
_EXT_IMPORT, _EXT_INST, _MEMORY_MODEL, _ENTRY_POINT = 11, 12, 14, 15
_BOOL, _INT, _FLOAT, _VECTOR, _IMAGE, _STRUCT, _POINTER = 20, 21, 22, 23, 25, 30, 32
_CONSTANT_FALSE, _CONSTANT, _CONSTANT_COMPOSITE = 42, 43, 44
_FUNCTION, _VARIABLE, _LOAD, _STORE, _ACCESS_CHAIN = 54, 59, 61, 62, 65
_ANNOTATIONS, _DECORATE, _MEMBER_DECORATE = range(71, 76), 71, 72
_IMAGE_WRITE, _F_CONVERT, _BITCAST, _SUBTRACT, _ANY, _OR = 99, 115, 124, 130, 154, 166
_LESS, _BIT_AND, _ATOMIC_OR = 176, 199, 241
_SELECTION_MERGE, _LABEL, _BRANCH, _BRANCH_IF, _RETURN = 247, 248, 249, 250, 253
_BLOCK, _BINDING, _DESCRIPTOR_SET, _OFFSET = 2, 33, 34, 35
_PRIVATE, _STORAGE_BUFFER = 6, 12
_PACK_HALF, _RGBA16F, _R16F = 58, 2, 9
_VULKAN_MODEL, _DEVICE_SCOPE, _QUEUE_FAMILY_SCOPE = 3, 1, 5
_VERSION_1_4 = 0x1_04_00
"""From this version, entry points list all variables that they use."""

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
    words = array("I", code)
    module = _Module(words)
    return module.watched(binding).tobytes() if module.narrowed else code


def _op(number: int, *operands: int) -> tuple[int, ...]:
    return ((len(operands) + 1) << 16 | number, *operands)


class _Module:
    """Declarations of a module, and its conversions to float16.

    Attributes:
        narrowed: for each insertion point, the number to test and its lanes.
    """

    def __init__(self, words: array[int]) -> None:
        self._words = words
        self._types: dict[tuple[int, ...], int] = {}
        self._after_annotations = _HEADER_WORDS
        self._entry = 0
        self._main = 0
        self._scope = _DEVICE_SCOPE
        self._first_function = len(words)
        self._returns: list[int] = []
        self.narrowed: list[tuple[int, int, int]] = []
        self._find()

    def _find(self) -> None:
        words = self._words
        half: dict[int, int] = {}  # types of float16 -> their lanes
        images: set[int] = set()
        texels: dict[int, int] = {}  # loaded images -> lanes that they keep
        library = inside = 0
        widened: set[int] = set()  # numbers that were float16
        at = _HEADER_WORDS
        end = len(words)
        while at < end:
            word = words[at]
            number = word & 0xFFFF
            if number == _F_CONVERT:
                lanes = half.get(words[at + 1])
                if lanes is None:
                    widened.add(words[at + 2])
                elif words[at + 3] not in widened:
                    self.narrowed.append((at, words[at + 3], lanes))
            elif number == _RETURN:
                if inside == self._main:
                    self._returns.append(at)
            elif number == _EXT_INST:
                if words[at + 4] == _PACK_HALF and words[at + 3] == library:
                    self.narrowed.append((at, words[at + 5], 2))
            elif number == _LOAD:
                if words[at + 1] in images:
                    texels[words[at + 2]] = 4
            elif number == _IMAGE_WRITE:
                if words[at + 1] in texels:
                    self.narrowed.append((at, words[at + 3], 4))
            elif number == _FUNCTION:
                inside = words[at + 2]
                self._first_function = min(self._first_function, at)
            elif number <= _POINTER:
                operands = words[at + 1 : at + (word >> 16)]
                if number == _EXT_IMPORT:
                    library = operands[0]
                elif number == _MEMORY_MODEL:
                    vulkan = operands[1] == _VULKAN_MODEL
                    self._scope = _QUEUE_FAMILY_SCOPE if vulkan else _DEVICE_SCOPE
                elif number == _ENTRY_POINT:
                    self._entry, self._main = at, operands[1]
                elif number in (_BOOL, _INT, _FLOAT, _VECTOR, _POINTER):
                    key = (number, *operands[1:])
                    self._types[key] = operands[0]
                    if number == _FLOAT and operands[1] == 16:
                        half[operands[0]] = 1
                    elif number == _VECTOR and operands[1] in half:
                        half[operands[0]] = operands[2]
                elif number == _IMAGE and operands[7] in (_RGBA16F, _R16F):
                    images.add(operands[0])
            elif number in _ANNOTATIONS and self._first_function == end:
                self._after_annotations = at + (word >> 16)
            at += word >> 16

    # --- additions -------------------------------------------------------------------------------

    def watched(self, binding: int) -> array[int]:
        """Return the module with its tests."""
        words = self._words
        self._bound = words[3]
        self._added: list[tuple[int, ...]] = []
        boolean, unsigned = self._type(_BOOL), self._type(_INT, 32, 0)
        zero, one, scope = (self._constant(unsigned, n) for n in (0, 1, self._scope))
        seen = self._new(_VARIABLE, self._pointer(_PRIVATE, boolean), _PRIVATE, self._false())
        block = self._new(_STRUCT, None, unsigned)
        word_pointer = self._pointer(_STORAGE_BUFFER, unsigned)
        status = self._new(_VARIABLE, self._pointer(_STORAGE_BUFFER, block), _STORAGE_BUFFER)
        marks = (
            _op(_DECORATE, block, _BLOCK),
            _op(_MEMBER_DECORATE, block, 0, _OFFSET, 0),
            _op(_DECORATE, status, _DESCRIPTOR_SET, 0),
            _op(_DECORATE, status, _BINDING, binding),
        )
        tests = {lanes: self._test(lanes) for lanes in {lanes for _, _, lanes in self.narrowed}}
        inserts: list[tuple[int, Iterable[int]]] = []
        for at, value, lanes in self.narrowed:
            inserts.append((at, self._tested(value, tests[lanes], seen)))
        for at in self._returns:
            flag, reports, merge, place, before = (self._next() for _ in range(5))
            report = (
                _op(_LOAD, boolean, flag, seen),
                _op(_SELECTION_MERGE, merge, 0),
                _op(_BRANCH_IF, flag, reports, merge),
                _op(_LABEL, reports),
                _op(_ACCESS_CHAIN, word_pointer, place, status, zero),
                _op(_ATOMIC_OR, unsigned, before, place, scope, zero, one),
                _op(_BRANCH, merge),
                _op(_LABEL, merge),
            )
            inserts.append((at, chain(*report)))
        inserts.append((self._after_annotations, chain(*marks)))
        inserts.append((self._first_function, chain(*self._added)))
        if words[1] >= _VERSION_1_4:
            end = self._entry + (words[self._entry] >> 16)
            inserts.append((end, (seen, status)))
        out, copied = array("I"), 0
        for at, new in sorted(inserts, key=lambda insert: insert[0]):
            out += words[copied:at]
            out.extend(new)
            copied = at
        out += words[copied:]
        out[3] = self._bound
        if words[1] >= _VERSION_1_4:
            out[self._entry] += 2 << 16
        return out

    def _next(self) -> int:
        self._bound += 1
        return self._bound - 1

    def _new(self, number: int, type_: int | None, *operands: int) -> int:
        """Declare something of a type, or a type."""
        made = self._next()
        typed = () if type_ is None else (type_,)
        self._added.append(_op(number, *typed, made, *operands))
        return made

    def _type(self, *key: int) -> int:
        """Return a type, which may be declared once only."""
        found = self._types.get(key)
        if found is None:
            found = self._types[key] = self._new(key[0], None, *key[1:])
        return found

    def _pointer(self, storage_class: int, pointee: int) -> int:
        return self._type(_POINTER, storage_class, pointee)

    def _constant(self, type_: int, value: int) -> int:
        return self._new(_CONSTANT, type_, value)

    def _false(self) -> int:
        return self._new(_CONSTANT_FALSE, self._type(_BOOL))

    def _test(self, lanes: int) -> tuple[int, ...]:
        """Return the types and constants for a test of `lanes` numbers."""
        boolean, unsigned = self._type(_BOOL), self._type(_INT, 32, 0)
        numbers = [self._constant(unsigned, number) for number in (_SIGN, _FIRST, _COUNT)]
        if lanes == 1:
            return lanes, unsigned, boolean, *numbers
        wide = self._type(_VECTOR, unsigned, lanes)
        full = [self._new(_CONSTANT_COMPOSITE, wide, *[number] * lanes) for number in numbers]
        return lanes, wide, self._type(_VECTOR, boolean, lanes), *full

    def _tested(self, value: int, test: Sequence[int], seen: int) -> Iterable[int]:
        """Return the instructions that record an overflow of `value` in the variable `seen`."""
        lanes, wide, wide_bool, sign, first, count = test
        boolean = self._type(_BOOL)
        bits, size, past, far, before, after = (self._next() for _ in range(6))
        steps = [
            _op(_BITCAST, wide, bits, value),
            _op(_BIT_AND, wide, size, bits, sign),
            _op(_SUBTRACT, wide, past, size, first),
            _op(_LESS, wide_bool, far, past, count),
        ]
        if lanes > 1:
            one = self._next()
            steps.append(_op(_ANY, boolean, one, far))
            far = one
        steps += [
            _op(_LOAD, boolean, before, seen),
            _op(_OR, boolean, after, before, far),
            _op(_STORE, seen, after),
        ]
        return chain(*steps)
