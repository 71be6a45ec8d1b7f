"""Makes kernels wait for each other by counters in memory instead of barriers.

The driver gets a module whose workgroups wait, before they touch what other dispatches write, until
the counter of the level before is full, and count themselves in at their end. The committed modules
know nothing of it. Why this is right, and what bounds the wait: docs/decisions/flags.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vkmnn.runtime import spirv
from vkmnn.runtime.flag_code import FlagFunctions
from vkmnn.runtime.spirv import ModuleEditor, op
from vkmnn.runtime.uniform import UniformValues

# Numbers of the SPIR-V specification, "Instructions", "Decoration" and "Memory Operands".
_RETURNS = frozenset((252, 253, 254, 255, 4416))
"""OpKill, OpReturn and others that end a function."""
_SWITCH, _COOPERATIVE_LOAD, _COOPERATIVE_STORE = 251, 4457, 4458
_CHAINS = frozenset((65, 66, 67, 70, 83))
"""OpAccessChain and its kin, OpCopyObject."""
_RESTRICT, _COHERENT, _NON_WRITABLE = 19, 23, 24
_NON_PRIVATE = 0x20


def wait_by_flags(code: bytes, binding: int, constants: frozenset[int]) -> bytes:
    """Return a module that waits for the level before, and signals its own.

    Args:
        code: a valid SPIR-V module in the byte order of the machine.
        binding: the number, in set 0, of the buffer with a level's record and the counters; the
            next number is that of the word that reports a wait without success. Both must be
            unused.
        constants: the bindings whose content no dispatch writes: they may be read before the wait.
    """
    return _Module(array("I", code), constants).flagged(binding).tobytes()


class _Block(NamedTuple):
    """A basic block of `main`: the places of its first and last instructions, and its exits."""

    start: int
    end: int
    merge: int
    is_loop: bool
    targets: tuple[int, ...]


class _Path(NamedTuple):
    """Places where to wait, whether all that reach the end have, and the last place before it."""

    places: list[int]
    waits: bool
    end: int = 0


class _Module(ModuleEditor):
    def __init__(self, words: array[int], constants: frozenset[int]) -> None:
        super().__init__(words)
        self._constants = constants

    def flagged(self, binding: int) -> array[int]:
        """Return the module that waits and signals."""
        shared = self._shared_variables()
        self._open_accesses(shared)
        body, main = self._main_places()
        functions = FlagFunctions(self, binding)
        void, inner = self.words[main + 1], self.next_id()
        wait = functions.wait()
        for place in self._wait_places(body, shared):
            self.insert(place, op(spirv.FUNCTION_CALL, void, self.next_id(), wait))
        self.replace(main, *op(spirv.FUNCTION, void, inner, *self.words[main + 3 : main + 5]))
        functions.wrap(inner)
        return self.edited()

    # --- what other dispatches write -------------------------------------------------------------

    def _shared_variables(self) -> set[int]:
        """Return the variables of bindings that are no constants."""
        words = self.words
        return {
            words[at + 1]
            for at in self.declared
            if words[at] & 0xFFFF == spirv.DECORATE
            and words[at + 2] == spirv.BINDING
            and words[at + 3] not in self._constants
        }

    def _open_accesses(self, shared: set[int]) -> None:
        """Let accesses of variables take part in what barriers order between workgroups."""
        words = self.words
        blocks = self._blocks_of(shared)
        for at in self.declared:
            number = words[at] & 0xFFFF
            place = {spirv.DECORATE: at + 2, spirv.MEMBER_DECORATE: at + 3}.get(number)
            if place is None or words[at + 1] not in shared | blocks:
                continue
            # A load of what nobody writes may be moved to before the wait, or use another cache.
            if words[place] in (_RESTRICT, _COHERENT, _NON_WRITABLE):
                self.replace(at)
        if self.vulkan_model:
            self._open_vulkan(shared)
        else:
            for variable in sorted(shared):
                self.mark(variable, _COHERENT)

    def _blocks_of(self, variables: set[int]) -> set[int]:
        """Return the types of variables of blocks."""
        words = self.words
        pointees = {found: key[2] for key, found in self.types.items() if key[0] == spirv.POINTER}
        return {
            pointees[words[at + 1]]
            for at in self.declared
            if words[at] & 0xFFFF == spirv.VARIABLE and words[at + 2] in variables
        }

    def _open_vulkan(self, shared: set[int]) -> None:
        words = self.words
        pointers = set(shared)
        for at in self._body(self.first_function):
            number, length = words[at] & 0xFFFF, words[at] >> 16
            if number in _CHAINS and words[at + 3] in pointers:
                pointers.add(words[at + 2])
            # Where the mask of an access is, and its pointer.
            mask, pointer = {
                spirv.LOAD: (4, 3),
                spirv.STORE: (3, 1),
                _COOPERATIVE_LOAD: (6, 3),
                _COOPERATIVE_STORE: (5, 1),
            }.get(number, (0, 0))
            if not mask or words[at + pointer] not in pointers:
                continue
            new = words[at : at + length].tolist()
            if length > mask:
                new[mask] |= _NON_PRIVATE
            else:
                assert length == mask, "an access without its stride"
                new.append(_NON_PRIVATE)
            self.replace(at, len(new) << 16 | number, *new[1:])

    def _body(self, at: int) -> Iterator[int]:
        """Yield the places of the instructions from a place on."""
        words = self.words
        while at < len(words):
            yield at
            at += words[at] >> 16

    # --- where to wait ---------------------------------------------------------------------------

    def _main_places(self) -> tuple[list[int], int]:
        """Return the places of the instructions in `main`, and of its beginning."""
        words = self.words
        begin = next(
            at
            for at in self._body(self.first_function)
            if words[at] & 0xFFFF == spirv.FUNCTION and words[at + 2] == self.main
        )
        places = []
        for at in self._body(begin):
            if words[at] & 0xFFFF == spirv.FUNCTION_END:
                break
            places.append(at)
        return places[1:], begin

    def _wait_places(self, body: Sequence[int], shared: set[int]) -> list[int]:
        """Return the last places that all invocations reach before they touch what others write.

        One of them is on every path to the end. None is in a loop, or in a branch that invocations
        of a workgroup may take differently.
        """
        self._touching, self._blocks = self._users(shared), self._blocks_in(body)
        label = self.words[body[0] + 1]
        path = self._path(label, 0, UniformValues(self))
        assert path is not None
        assert path.waits, "a path without an end"
        first = self._first_place(self._blocks[label])
        return [max(place, first) for place in path.places]

    def _path(self, label: int, stop: int, uniform: UniformValues) -> _Path | None:
        """Return where to wait between two blocks; None if nowhere between them.

        Args:
            label: the first block.
            stop: the block after the last, which is not reached if all invocations return.
            uniform: the values that are equal in all invocations; changed.
        """
        places: list[int] = []
        before: _Block | None = None
        while label != stop:
            block = self._blocks[label]
            inside = self._reached(label, block.merge) if block.merge else {label}
            branches = inside if block.is_loop else inside - {label}
            at = None if block.is_loop else self._touch(block)
            if at is not None:
                return _Path([*places, at], waits=True)
            if not block.is_loop:
                uniform.pass_code(self._within(block))
            if any(self._touch(self._blocks[one]) is not None for one in branches):
                arms = self._arms(block, uniform)
                if arms is None:
                    place = self._place_before(block, before)
                    return None if place is None else _Path([*places, place], waits=True)
                places += arms.places
                if arms.waits:
                    return _Path(places, waits=True)
            for one in branches:
                uniform.pass_branches(self._within(self._blocks[one]))
            if not block.merge and len(block.targets) != 1:
                return _Path([*places, block.end], waits=True)
            before, label = block, block.merge or block.targets[0]
        return _Path(places, waits=False, end=before.end if before is not None else 0)

    def _arms(self, block: _Block, uniform: UniformValues) -> _Path | None:
        """Return where to wait in the arms of a selection, if a workgroup takes one as a whole."""
        words = self.words
        others = [one for one in block.targets if one != block.merge]
        takes_one = words[block.end] & 0xFFFF == spirv.BRANCH_IF and words[block.end + 1] in uniform
        if block.is_loop or not takes_one:
            return None
        places: list[int] = []
        goes_on = False
        for one in others:
            path = self._path(one, block.merge, uniform.copy())
            reached = self._reached(one, block.merge)
            if path is None:
                return None
            places += path.places
            if any(block.merge in self._blocks[each].targets for each in reached):
                goes_on = True
                places += [] if path.waits else [path.end]
        if len(others) == 1 and goes_on:
            return None  # no place on the way around the arm
        return _Path(places, waits=len(others) > 1)

    def _place_before(self, block: _Block, before: _Block | None) -> int | None:
        """Return the place before a construct, which no block within it repeats."""
        if not block.is_loop:
            return self._merge_place(block)
        if before is None:
            return None
        return self._merge_place(before) if before.merge else before.end

    def _touch(self, block: _Block) -> int | None:
        """Return the first place of a block that uses variables or functions, or returns."""
        words = self.words
        for at in self._within(block):
            operands = words[at + 1 : at + (words[at] >> 16)]
            if words[at] & 0xFFFF in _RETURNS or not self._touching.isdisjoint(operands):
                return at
        return None

    def _within(self, block: _Block) -> Iterator[int]:
        """Yield the places of a block's instructions."""
        for at in self._body(block.start):
            yield at
            if at >= block.end:
                return

    def _first_place(self, entry: _Block) -> int:
        """Return the place after the variables of `main`."""
        for at in self._body(entry.start):
            if self.words[at] & 0xFFFF != spirv.VARIABLE:
                return at
        raise AssertionError("a block has an end")

    def _merge_place(self, block: _Block) -> int:
        """Return the place of a block's merge instruction, which has to be the last but one."""
        *_, place, _end = self._within(block)
        return place

    def _users(self, shared: set[int]) -> set[int]:
        """Return variables, and the functions that use them."""
        words, found = self.words, set(shared)
        uses: dict[int, set[int]] = {}
        inside = 0
        for at in self._body(self.first_function):
            if words[at] & 0xFFFF == spirv.FUNCTION:
                inside = words[at + 2]
                uses[inside] = set()
            else:
                uses[inside].update(words[at + 1 : at + (words[at] >> 16)])
        while True:
            more = {one for one, used in uses.items() if not found.isdisjoint(used)} - found
            if not more:
                return found
            found |= more

    def _blocks_in(self, body: Sequence[int]) -> dict[int, _Block]:
        words = self.words
        blocks: dict[int, _Block] = {}
        label = start = merge = 0
        is_loop = False
        for at in body:
            number, length = words[at] & 0xFFFF, words[at] >> 16
            if number == spirv.LABEL:
                label, start, merge, is_loop = words[at + 1], at + length, 0, False
            elif number in (spirv.SELECTION_MERGE, spirv.LOOP_MERGE):
                merge, is_loop = words[at + 1], number == spirv.LOOP_MERGE
            elif number in _RETURNS or number in (spirv.BRANCH, spirv.BRANCH_IF, _SWITCH):
                targets = _targets(number, words[at + 1 : at + length].tolist())
                blocks[label] = _Block(start, at, merge, is_loop, targets)
        return blocks

    def _reached(self, label: int, merge: int) -> set[int]:
        """Return the blocks from one to its merge block, which is not among them."""
        found: set[int] = set()
        waiting = [label]
        while waiting:
            one = waiting.pop()
            if one not in found and one != merge:
                found.add(one)
                waiting += self._blocks[one].targets
        return found


def _targets(number: int, operands: Sequence[int]) -> tuple[int, ...]:
    """Return the labels to which the last instruction of a block branches."""
    if number == spirv.BRANCH:
        return (operands[0],)
    if number == spirv.BRANCH_IF:
        return tuple(operands[1:3])
    return (operands[1], *operands[3::2]) if number == _SWITCH else ()
