"""Removes branches from SPIR-V that specialization constants exclude.

Drivers process a whole module, and inline a function at each of its calls, before they fold
constants: a switch over all activations, inlined at every result of an unrolled kernel, kept Mesa's
busy for half a second.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vkmnn.runtime.overflow import watch_overflow
from vkmnn.runtime.shader import checked_spirv

if TYPE_CHECKING:
    from vkmnn.runtime.shader import Shader

_HEADER_WORDS = 5
# Numbers of the SPIR-V specification, "Instructions" and "Decoration".
_OP_PHI, _OP_SELECTION, _OP_BRANCH, _OP_SWITCH, _SPEC_ID = 245, 247, 249, 251, 1
_VERSION_1_6 = 0x1_06_00
"""Conditions remain from this SPIR-V version on: no driver that accepts it has been tested."""

_OPERATIONS: Mapping[int, Callable[..., int]] = {
    166: operator.or_,
    167: operator.and_,
    168: operator.not_,
    170: operator.eq,
    171: operator.ne,
    172: operator.gt,
    174: operator.ge,
    176: operator.lt,
    178: operator.le,
}
"""OpLogicalOr, And and Not; OpIEqual and OpINotEqual, and comparisons of unsigned integers."""


def specialized_spirv(shader: Shader, spec: Mapping[str, int | float | bool]) -> bytes:
    """Return the driver's module: the shader's, without the branches that `spec` excludes.

    It checks overflow if the shader is `watched`, and waits by flags if it is `flagged`.

    Raises:
        ShaderError: as `checked_spirv`.
    """
    code = checked_spirv(shader)
    numbers = {
        constant.id: int(spec[constant.name])
        for constant in shader.spec_constants
        if constant.type != "float" and not constant.name.startswith("local_size_")
    }
    if numbers:
        code = prune_branches(code, numbers)
    if shader.watched:
        code = watch_overflow(code, shader.index_of("overflow"))
    if shader.flagged is not None:
        from vkmnn.runtime.flags import wait_by_flags  # few sessions use it

        code = wait_by_flags(code, shader.index_of("flags"), shader.flagged)
    return code


def prune_branches(code: bytes, values: Mapping[int, int]) -> bytes:
    """Return a module in which branches over specialization constants have one target each.

    Branches on conditions become unconditional. The blocks of the other cases stay, but nothing
    branches to them.

    Args:
        code: a valid SPIR-V module in the byte order of the machine.
        values: booleans and 32-bit integers by their `constant_id`.
    """
    words = array("I", code)
    pruner = _Pruner(values, words[1] < _VERSION_1_6)
    out = words[:_HEADER_WORDS]
    copied = at = before = _HEADER_WORDS
    while at < len(words):
        length = words[at] >> 16
        look = _LOOKS.get(words[at] & 0xFFFF)
        new = look(pruner, words[at : at + length]) if look else None
        if new is not None:
            # An unconditional branch has no selection merge.
            merges = new[0] & 0xFFFF == _OP_BRANCH and words[before] & 0xFFFF == _OP_SELECTION
            out += words[copied : before if merges else at]
            out += array("I", new)
            copied = at + length
        before = at
        at += length
    return (out + words[copied:]).tobytes()


class _Pruner:
    """Visits a module's instructions in order; may return replacements."""

    def __init__(self, values: Mapping[int, int], conditional: bool) -> None:
        self._values = values
        self._conditional = conditional
        self._named: dict[int, int] = {}  # ids of specialization constants -> their values
        self._known: dict[int, int] = {}  # ids of all constants whose value is known
        self._block = 0
        self._passed: set[int] = set()
        self._cut: dict[int, set[int]] = {}  # a block -> those that no longer branch to it

    def decoration(self, words: Sequence[int]) -> None:
        if words[2] == _SPEC_ID and words[3] in self._values:
            self._named[words[1]] = self._values[words[3]] & 0xFFFF_FFFF

    def specialization(self, words: Sequence[int]) -> None:
        if words[2] in self._named:
            self._known[words[2]] = self._named[words[2]]

    def constant(self, words: Sequence[int]) -> None:
        if len(words) == 4:
            self._known[words[2]] = words[3]

    def operation(self, words: Sequence[int]) -> None:
        compute = _OPERATIONS.get(words[3])
        operands = [self._known.get(word) for word in words[4:]]
        if compute is not None and None not in operands:
            self._known[words[2]] = compute(*operands)

    def label(self, words: Sequence[int]) -> None:
        self._block = words[1]
        self._passed.add(self._block)

    def phi(self, words: Sequence[int]) -> Sequence[int] | None:
        cut = self._cut.get(self._block)
        if cut is None:
            return None
        sources = zip(words[3::2], words[4::2], strict=True)
        kept = [word for source in sources if source[1] not in cut for word in source]
        return (3 + len(kept)) << 16 | _OP_PHI, words[1], words[2], *kept

    def branch(self, words: Sequence[int]) -> Sequence[int] | None:
        condition = self._known.get(words[1]) if self._conditional else None
        if condition is None:
            return None
        target, other = (words[2], words[3]) if condition else (words[3], words[2])
        # Not a condition with one target twice: Mesa 22 mishandles such blocks with loops in them.
        return (2 << 16 | _OP_BRANCH, target) if self._leave(target, [other]) else None

    def switch(self, words: Sequence[int]) -> Sequence[int] | None:
        if words[1] not in self._known:
            return None
        cases = dict(zip(words[3::2], words[4::2], strict=True))
        target = cases.get(self._known[words[1]], words[2])
        left = self._leave(target, [words[2], *cases.values()])
        return (3 << 16 | _OP_SWITCH, words[1], target) if left else None

    def _leave(self, target: int, targets: Sequence[int]) -> bool:
        """Record that a block has one target left; False if a loop would lose its back edge."""
        others = set(targets) - {target}
        if not others.isdisjoint(self._passed):
            return False
        for other in others:
            self._cut.setdefault(other, set()).add(self._block)
        return True


_LOOKS: Mapping[int, Callable[[_Pruner, Sequence[int]], Sequence[int] | None]] = {
    43: _Pruner.constant,
    48: _Pruner.specialization,
    49: _Pruner.specialization,
    50: _Pruner.specialization,
    52: _Pruner.operation,
    71: _Pruner.decoration,
    _OP_PHI: _Pruner.phi,
    248: _Pruner.label,
    250: _Pruner.branch,
    _OP_SWITCH: _Pruner.switch,
}
"""OpConstant, OpSpecConstantTrue, False, OpSpecConstant and …Op, OpDecorate, OpLabel, branches."""
