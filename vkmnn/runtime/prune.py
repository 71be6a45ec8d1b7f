"""Takes branches out of SPIR-V that specialization constants exclude, before a driver sees them.

Drivers inline a function at each of its calls before they fold constants: a switch over all
activations, inlined at every result of an unrolled kernel, kept Mesa's busy for half a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vkmnn.runtime.shader import checked_spirv

if TYPE_CHECKING:
    from vkmnn.runtime.shader import Shader

_HEADER_WORDS = 5
# Numbers of the SPIR-V specification, "Instructions" and "Decoration".
_OP_DECORATE, _OP_SWITCH, _SPEC_ID = 71, 251, 1


def specialized_spirv(shader: Shader, spec: Mapping[str, int | float | bool]) -> bytes:
    """Return the module that a driver gets: the shader's, without the switch cases `spec` excludes.

    Raises:
        ShaderError: as `checked_spirv`.
    """
    code = checked_spirv(shader)
    numbers = {
        constant.id: int(spec[constant.name])
        for constant in shader.spec_constants
        if constant.type in ("uint", "int") and not constant.name.startswith("local_size_")
    }
    return prune_switches(code, numbers) if numbers else code


def prune_switches(code: bytes, values: Mapping[int, int]) -> bytes:
    """Return a module whose switches over specialization constants have one target each.

    The blocks of the other cases stay, and nothing branches to them.

    Args:
        code: a valid SPIR-V module in the byte order of the machine.
        values: 32-bit integer constants by their `constant_id`.
    """
    words = array("I", code)
    chosen: dict[int, int] = {}  # id of a constant -> its value
    out = words[:_HEADER_WORDS]
    copied = at = _HEADER_WORDS
    while at < len(words):
        opcode, length = words[at] & 0xFFFF, words[at] >> 16
        if opcode == _OP_DECORATE and words[at + 2] == _SPEC_ID and words[at + 3] in values:
            chosen[words[at + 1]] = values[words[at + 3]] & 0xFFFF_FFFF
        elif opcode == _OP_SWITCH and words[at + 1] in chosen:
            cases = dict(
                zip(words[at + 3 : at + length : 2], words[at + 4 : at + length : 2], strict=True)
            )
            target = cases.get(chosen[words[at + 1]], words[at + 2])
            out += words[copied:at]
            out += array("I", (3 << 16 | _OP_SWITCH, words[at + 1], target))
            copied = at + length
        at += length
    return (out + words[copied:]).tobytes()
