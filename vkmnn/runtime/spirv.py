"""Edits of SPIR-V modules on their way to the driver."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

HEADER_WORDS = 5
# Numbers of the SPIR-V specification, "Instructions", "Storage Class" and "Decoration".
EXT_IMPORT, EXT_INST, MEMORY_MODEL, ENTRY_POINT = 11, 12, 14, 15
VOID, BOOL, INT, FLOAT, VECTOR, IMAGE, STRUCT, POINTER = 19, 20, 21, 22, 23, 25, 30, 32
FUNCTION_TYPE, RUNTIME_ARRAY = 33, 29
CONSTANT_FALSE, CONSTANT, CONSTANT_COMPOSITE = 42, 43, 44
FUNCTION, FUNCTION_END, FUNCTION_CALL, VARIABLE = 54, 56, 57, 59
LOAD, STORE, ACCESS_CHAIN = 61, 62, 65
DECORATE, MEMBER_DECORATE = 71, 72
SELECTION_MERGE, LOOP_MERGE, LABEL, BRANCH, BRANCH_IF, RETURN = 247, 246, 248, 249, 250, 253
BLOCK, ARRAY_STRIDE, BUILT_IN, BINDING, DESCRIPTOR_SET, OFFSET = 2, 6, 11, 33, 34, 35
INPUT, PRIVATE, STORAGE_BUFFER = 1, 6, 12
_ANNOTATIONS = range(71, 76)
_VULKAN_MODEL, _DEVICE_SCOPE, _QUEUE_FAMILY_SCOPE = 3, 1, 5
_VERSION_1_4 = 0x1_04_00
"""From this version, entry points list all variables that they use."""

_TYPES = frozenset((VOID, BOOL, INT, FLOAT, VECTOR, POINTER, FUNCTION_TYPE))
"""Types that may be declared once only."""


def op(number: int, *operands: int) -> tuple[int, ...]:
    """Return an instruction."""
    return ((len(operands) + 1) << 16 | number, *operands)


class ModuleEditor:
    """Declarations of a module with one entry point, and edits of it.

    Args:
        words: a valid module in the byte order of the machine.

    Attributes:
        words: the module.
        types: ids of types by instruction and operands.
        entry: the place of the entry point's instruction.
        main: the id of its function.
        vulkan_model: whether accesses follow Vulkan's memory model, not that of GLSL.
        scope: the scope at which invocations of all dispatches of a queue see each other's writes.
        declared: the places of the instructions before the first function.
        first_function: the place of the first function.
    """

    def __init__(self, words: array[int]) -> None:
        self.words = words
        self.types: dict[tuple[int, ...], int] = {}
        self.entry = self.main = 0
        self.vulkan_model = False
        self.declared: list[int] = []
        self._bound = words[3]
        self._added: list[tuple[int, ...]] = []
        self._marks: list[tuple[int, ...]] = []
        self._interface: list[int] = []
        self._edits: list[tuple[int, int, Iterable[int]]] = []
        after_annotations = at = HEADER_WORDS
        while at < len(words):
            word = words[at]
            number, length = word & 0xFFFF, word >> 16
            if number == FUNCTION:
                break
            self.declared.append(at)
            if number in _TYPES:
                key = (number, *words[at + 2 : at + length])
                self.types[key] = words[at + 1]
            elif number in _ANNOTATIONS:
                after_annotations = at + length
            elif number == MEMORY_MODEL:
                self.vulkan_model = words[at + 2] == _VULKAN_MODEL
            elif number == ENTRY_POINT:
                self.entry, self.main = at, words[at + 2]
            at += length
        self.scope = _QUEUE_FAMILY_SCOPE if self.vulkan_model else _DEVICE_SCOPE
        self.first_function = at
        self._after_annotations = after_annotations

    # --- additions -------------------------------------------------------------------------------

    def next_id(self) -> int:
        """Return an unused id."""
        self._bound += 1
        return self._bound - 1

    def new(self, number: int, type_: int | None, *operands: int) -> int:
        """Declare something of a type, or a type."""
        made = self.next_id()
        typed = () if type_ is None else (type_,)
        self._added.append(op(number, *typed, made, *operands))
        return made

    def type(self, *key: int) -> int:
        """Return a type, which may be declared once only."""
        found = self.types.get(key)
        if found is None:
            found = self.types[key] = self.new(key[0], None, *key[1:])
        return found

    def pointer(self, storage_class: int, pointee: int) -> int:
        """Return a type of pointers."""
        return self.type(POINTER, storage_class, pointee)

    def constant(self, type_: int, value: int) -> int:
        """Return a new constant."""
        return self.new(CONSTANT, type_, value)

    def mark(self, *operands: int) -> None:
        """Add a decoration."""
        self._marks.append(op(DECORATE, *operands))

    def buffer(self, binding: int, *members: int) -> int:
        """Return a new storage buffer of set 0, a block with these members at multiples of 4."""
        block = self.new(STRUCT, None, *members)
        self.mark(block, BLOCK)
        for number in range(len(members)):
            self._marks.append(op(MEMBER_DECORATE, block, number, OFFSET, 4 * number))
        made = self.new(VARIABLE, self.pointer(STORAGE_BUFFER, block), STORAGE_BUFFER)
        self.mark(made, DESCRIPTOR_SET, 0)
        self.mark(made, BINDING, binding)
        self.use(made)
        return made

    def use(self, variable: int, always: bool = False) -> None:
        """List a variable in the interface, where the version wants it or its class `always`."""
        if always or self.words[1] >= _VERSION_1_4:
            self._interface.append(variable)

    def insert(self, at: int, *instructions: Sequence[int]) -> None:
        """Insert instructions before the one at a place."""
        self._edits.append((at, 0, chain(*instructions)))

    def replace(self, at: int, *words: int) -> None:
        """Put other words, or none, in the place of an instruction."""
        self._edits.append((at, self.words[at] >> 16, words))

    def edited(self) -> array[int]:
        """Return the module with all edits."""
        words, interface = self.words, self._interface
        self.insert(self._after_annotations, *self._marks)
        self.insert(self.first_function, *self._added)
        if interface:
            self.insert(self.entry + (words[self.entry] >> 16), interface)
        out, copied = array("I"), 0
        for at, length, new in sorted(self._edits, key=lambda edit: edit[:2]):
            out += words[copied:at]
            out.extend(new)
            copied = at + length
        out += words[copied:]
        out[3] = self._bound
        out[self.entry] += len(interface) << 16
        return out
