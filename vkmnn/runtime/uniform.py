"""Finds values that are equal in all invocations of a workgroup, in the beginning of a module."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from vkmnn.runtime import spirv
from vkmnn.runtime.spirv import ModuleEditor

# Numbers of the SPIR-V specification, "Instructions", "Storage Class" and "Built-In".
_FIRST_CONSTANT, _SPEC_OPERATION = 41, 52
_COMPUTED = frozenset((*range(79, 84), *range(109, 206)))
"""Composites, conversions, arithmetic, bits and comparisons."""
_LITERALS_FROM = {79: 5, 81: 4}
"""OpVectorShuffle, OpCompositeExtract: the place of their first literal."""
_PUSH_CONSTANT = 9
_WORKGROUP_COUNT, _WORKGROUP_ID = 24, 26


class UniformValues:
    """Values that follow from constants, push constants and the number of the workgroup.

    Args:
        module: its declarations count from the start; code is added in its order, by `pass_code`.
    """

    def __init__(self, module: ModuleEditor) -> None:
        self._words = words = module.words
        built_ins = {
            words[at + 1]
            for at in module.declared
            if words[at] & 0xFFFF == spirv.DECORATE
            and words[at + 2] == spirv.BUILT_IN
            and words[at + 3] in (_WORKGROUP_COUNT, _WORKGROUP_ID)
        }
        self._values: set[int] = set()
        self._own: set[int] = set()  # variables of the function
        self._inside: dict[int, int] = {}  # pointers into them -> the variables
        for at in module.declared:
            number = words[at] & 0xFFFF
            if number == spirv.VARIABLE:
                if words[at + 3] == _PUSH_CONSTANT or words[at + 2] in built_ins:
                    self._values.add(words[at + 2])
            elif _FIRST_CONSTANT <= number <= _SPEC_OPERATION:
                self._values.add(words[at + 2])

    def copy(self) -> UniformValues:
        """Return an equal object, for code that only some workgroups run."""
        made = copy(self)
        made._values, made._own, made._inside = {*self._values}, {*self._own}, {**self._inside}
        return made

    def __contains__(self, value: int) -> bool:
        return value in self._values

    def pass_code(self, places: Iterable[int]) -> None:
        """Add straight code, by the places of its instructions; all invocations run it."""
        words, values = self._words, self._values
        for at in places:
            number, length = words[at] & 0xFFFF, words[at] >> 16
            if number == spirv.VARIABLE:
                self._own.add(words[at + 2])
            elif number == spirv.STORE and words[at + 1] in self._own and words[at + 2] in values:
                values.add(words[at + 1])
            elif number in (spirv.STORE, spirv.FUNCTION_CALL):
                self._forget(at, length)
            elif number == spirv.ACCESS_CHAIN and words[at + 3] in self._own:
                self._inside[words[at + 2]] = words[at + 3]
            elif number in (spirv.LOAD, spirv.ACCESS_CHAIN) or number in _COMPUTED:
                first = at + 3
                last = at + (4 if number == spirv.LOAD else _LITERALS_FROM.get(number, length))
                if all(word in values for word in words[first:last]):
                    values.add(words[at + 2])

    def pass_branches(self, places: Iterable[int]) -> None:
        """Add code that some invocations may not run: what it stores is not known."""
        words = self._words
        for at in places:
            number, length = words[at] & 0xFFFF, words[at] >> 16
            if number == spirv.ACCESS_CHAIN and words[at + 3] in self._own:
                self._inside[words[at + 2]] = words[at + 3]
            elif number in (spirv.STORE, spirv.FUNCTION_CALL):
                self._forget(at, length)

    def _forget(self, at: int, length: int) -> None:
        """Forget the values of variables that an instruction may write."""
        for word in self._words[at + 1 : at + length]:
            variable = self._inside.get(word, word)
            if variable in self._own:
                self._values.discard(variable)
