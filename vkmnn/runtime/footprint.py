"""Device requirements of a SPIR-V module, read from the module itself.

Only the part before the first function is read: types, constants and global variables.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Mapping
from dataclasses import field

from vkmnn.base.records import dataclass

# Numbers of the SPIR-V specification: "Instructions", "Decoration", "Storage Class", and others.
_CAPABILITY, _EXECUTION_MODE, _EXECUTION_MODE_ID = 17, 16, 331
_SAMPLED = 1  # the operand Sampled of OpTypeImage
_BOOL, _INT, _FLOAT, _VECTOR, _MATRIX, _IMAGE = 20, 21, 22, 23, 24, 25
_ARRAY, _RUNTIME_ARRAY, _STRUCT, _POINTER, _COOPERATIVE_MATRIX = 28, 29, 30, 32, 4456
_TRUE, _FALSE, _CONSTANT, _COMPOSITE = 41, 42, 43, 44
_SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_COMPOSITE, _SPEC_OP = 48, 49, 50, 51, 52
_FUNCTION, _VARIABLE, _DECORATE, _MEMBER_DECORATE = 54, 59, 71, 72
_SPEC_ID, _BLOCK, _BUILT_IN, _BINDING, _OFFSET, _STRIDE = 1, 2, 11, 33, 35, 6
_LOCAL_SIZE, _LOCAL_SIZE_ID, _WORKGROUP_SIZE = 17, 38, 25
_UNIFORM_CONSTANT, _UNIFORM, _WORKGROUP, _PUSH, _STORAGE = 0, 2, 4, 9, 12
_HEADER_WORDS = 5

_OPERATIONS: Mapping[int, Callable[[int, int], int]] = {
    128: operator.add,
    130: operator.sub,
    132: operator.mul,
    134: operator.floordiv,
    135: operator.floordiv,
    137: operator.mod,
    164: operator.eq,
    165: operator.ne,
    166: lambda a, b: int(bool(a or b)),
    167: lambda a, b: int(bool(a and b)),
    170: operator.eq,
    171: operator.ne,
    172: operator.gt,
    173: operator.gt,
    174: operator.ge,
    175: operator.ge,
    176: operator.lt,
    177: operator.lt,
    178: operator.le,
    179: operator.le,
    194: operator.rshift,
    196: operator.lshift,
    197: operator.or_,
    198: operator.xor,
    199: operator.and_,
}
"""Opcode of OpSpecConstantOp -> its integer operation; other opcodes do not affect sizes."""
_EXTRACT, _SELECT, _NOT = 81, 169, 168


@dataclass(frozen=True, slots=True)
class MatrixType:
    """A cooperative-matrix type; `use` is 0 for A, 1 for B, 2 for accumulators."""

    component: str
    rows: int
    columns: int
    use: int


@dataclass(slots=True)
class Footprint:
    """Requirements of a module; sizes in bytes, `version` is its SPIR-V version."""

    version: tuple[int, int]
    capabilities: set[int] = field(default_factory=set)
    local_size: tuple[int, int, int] = (1, 1, 1)
    shared_memory: int = 0
    push_constants: int = 0
    storage_bindings: int = 0
    texel_bindings: int = 0
    sampled_images: int = 0
    matrices: set[MatrixType] = field(default_factory=set)


def footprint(code: bytes, spec: Mapping[int, int]) -> Footprint:
    """Read a module.

    Args:
        code: a valid SPIR-V module in the byte order of the machine.
        spec: integer and boolean specialization constants by their `constant_id`.
    """
    return _Reader(array("I", code), spec).result


class _Reader:
    def __init__(self, words: array[int], spec: Mapping[int, int]) -> None:
        self._types: dict[int, tuple[int, list[int]]] = {}
        self._constants: dict[int, int] = {}
        self._composites: dict[int, list[int]] = {}
        self._spec_ids: dict[int, int] = {}
        self._blocks: set[int] = set()
        self._bindings: dict[int, int] = {}
        self._seen: set[int] = set()
        self._strides: dict[int, int] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        self._spec = spec
        shared: list[tuple[int, bool]] = []
        workgroup_size = 0
        self.result = Footprint((words[1] >> 16, words[1] >> 8 & 0xFF))
        at = _HEADER_WORDS
        while at < len(words):
            opcode, length = words[at] & 0xFFFF, words[at] >> 16
            operands = words[at + 1 : at + length].tolist()
            at += length
            if opcode == _FUNCTION:
                break
            if opcode == _CAPABILITY:
                self.result.capabilities.add(operands[0])
            elif opcode == _EXECUTION_MODE and operands[1] == _LOCAL_SIZE:
                self.result.local_size = operands[2], operands[3], operands[4]
            elif opcode == _EXECUTION_MODE_ID and operands[1] == _LOCAL_SIZE_ID:
                self._composites[0] = operands[2:]
            elif opcode == _DECORATE:
                if operands[1:] == [_BUILT_IN, _WORKGROUP_SIZE]:
                    workgroup_size = operands[0]
                self._decorate(operands)
            elif opcode == _MEMBER_DECORATE and operands[2] == _OFFSET:
                self._offsets[operands[0], operands[1]] = operands[3]
            elif opcode == _VARIABLE:
                pointee = self._types[operands[0]][1][1]
                if operands[2] == _WORKGROUP:
                    shared.append((self._size(pointee), pointee in self._blocks))
                else:
                    self._note_variable(operands[1], operands[2], pointee)
            else:
                self._define(opcode, operands)
        # Blocks share their memory, other variables do not.
        self.result.shared_memory = sum(size for size, is_block in shared if not is_block)
        self.result.shared_memory += max((size for size, is_block in shared if is_block), default=0)
        x, y, z = self._composites.get(workgroup_size, self._composites.get(0, [0, 0, 0]))
        if x:
            self.result.local_size = tuple(self._constants[item] for item in (x, y, z))  # type: ignore[assignment]

    def _decorate(self, operands: list[int]) -> None:
        if operands[1] == _SPEC_ID:
            self._spec_ids[operands[0]] = operands[2]
        elif operands[1] == _BLOCK:
            self._blocks.add(operands[0])
        elif operands[1] == _STRIDE:
            self._strides[operands[0]] = operands[2]
        elif operands[1] == _BINDING:
            self._bindings[operands[0]] = operands[2]

    def _note_variable(self, variable: int, storage_class: int, pointee: int) -> None:
        binding = self._bindings.get(variable)
        if storage_class == _PUSH:
            self.result.push_constants = self._size(pointee)
        elif binding in self._seen:  # another view of the same buffer
            return
        elif storage_class in (_STORAGE, _UNIFORM):
            self.result.storage_bindings += 1
        elif storage_class == _UNIFORM_CONSTANT:
            sampled = self._types[pointee][1][5] == _SAMPLED
            self.result.texel_bindings += not sampled
            self.result.sampled_images += sampled
        if binding is not None:
            self._seen.add(binding)

    def _define(self, opcode: int, operands: list[int]) -> None:
        if opcode in (_TRUE, _FALSE, _SPEC_TRUE, _SPEC_FALSE):
            self._set(operands[1], int(opcode in (_TRUE, _SPEC_TRUE)))
        elif opcode in (_CONSTANT, _SPEC_CONSTANT):
            self._set(operands[1], operands[2])
        elif opcode in (_COMPOSITE, _SPEC_COMPOSITE):
            self._composites[operands[1]] = operands[2:]
        elif opcode == _SPEC_OP:
            self._compute(operands[1], operands[2], operands[3:])
        elif opcode in (_BOOL, _INT, _FLOAT, _VECTOR, _MATRIX, _IMAGE, _POINTER) or opcode in (
            *(_ARRAY, _RUNTIME_ARRAY, _STRUCT),
        ):
            self._types[operands[0]] = opcode, operands[1:]
        elif opcode == _COOPERATIVE_MATRIX:
            self._note_matrix(operands)

    def _set(self, constant: int, default: int) -> None:
        self._constants[constant] = self._spec.get(self._spec_ids.get(constant, -1), default)

    def _compute(self, result: int, opcode: int, operands: list[int]) -> None:
        if opcode == _EXTRACT:  # the local size along one axis
            composite, index = operands
            operands = [self._composites[composite][index]]
        values = [self._constants.get(item) for item in operands]
        if opcode == _EXTRACT and values[0] is not None:
            self._constants[result] = values[0]
        elif opcode == _SELECT and values[0] is not None:
            chosen = values[1] if values[0] else values[2]
            if chosen is not None:
                self._constants[result] = chosen
        elif opcode == _NOT and values[0] is not None:
            self._constants[result] = int(not values[0])
        elif opcode in _OPERATIONS and None not in values and len(values) == 2:
            a, b = (value or 0 for value in values)
            if b or opcode not in (134, 135, 137):
                self._constants[result] = int(_OPERATIONS[opcode](a, b)) & 0xFFFF_FFFF

    def _note_matrix(self, operands: list[int]) -> None:
        _result, component, _scope, rows, columns, use = operands
        kind, (width, *rest) = self._types[component]
        if kind == _FLOAT:
            name = "bf16" if width == 16 and rest == [0] else f"f{width}"
        else:
            name = f"{'i' if rest[0] else 'u'}{width}"
        sizes = self._constants
        self.result.matrices.add(MatrixType(name, sizes[rows], sizes[columns], sizes[use]))

    def _size(self, type_id: int) -> int:
        return self._layout(type_id)[0]

    def _layout(self, type_id: int) -> tuple[int, int]:
        """Return (bytes, alignment), by the rules of std430 unless a decoration says otherwise."""
        kind, operands = self._types[type_id]
        if kind in (_INT, _FLOAT):
            return operands[0] // 8, operands[0] // 8
        if kind == _BOOL:
            return 4, 4
        if kind in (_VECTOR, _MATRIX):
            size, alignment = self._layout(operands[0])
            count = operands[1]
            if kind == _MATRIX:
                return size * count, alignment
            return size * count, alignment * (4 if count > 2 else count)
        if kind == _ARRAY:
            size, alignment = self._layout(operands[0])
            stride = self._strides.get(type_id, -(-size // alignment) * alignment)
            return stride * self._constants[operands[1]], alignment
        if kind == _RUNTIME_ARRAY:
            return 0, 1
        end, widest = 0, 1
        for number, member in enumerate(operands):
            size, alignment = self._layout(member)
            offset = self._offsets.get((type_id, number), -(-end // alignment) * alignment)
            end, widest = max(end, offset + size), max(widest, alignment)
        return end, widest
