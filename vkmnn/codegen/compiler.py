"""The interface of GLSL compilers to the generator: source in, SPIR-V or messages out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from vkmnn.codegen.features import Target

SOURCE_NAME = "shader.comp"

_MESSAGE = re.compile(r"(ERROR|WARNING): (?:[^:\n]*):(\d+): (.*)")
_NOISE = ("compilation terminated", "compilation errors")


@dataclass(frozen=True, slots=True)
class Message:
    """One line of the compiler's log: `line` counts lines of the rendered GLSL from 1."""

    severity: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """SPIR-V and how it was compiled; `optimized` names the optimisation that was used."""

    spirv: bytes
    optimized: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A module as shipped to devices, without names; `capabilities` are those that it declares."""

    spirv: bytes
    optimized: str
    note: str
    capabilities: tuple[str, ...]


class CompileError(Exception):
    """The compiler refused a shader: its messages with GLSL lines, or the raw log."""

    def __init__(self, messages: list[Message], log_text: str) -> None:
        self.messages = messages
        self.log_text = log_text
        super().__init__(log_text)


class Compiler(Protocol):
    """A glslang of some kind."""

    @property
    def identity(self) -> str:
        """Name and version: part of the cache key and of the manifest."""

    def compile(self, glsl: str, target: Target, optimize: str) -> Compiled:
        """Compile one compute shader; raises `CompileError`."""

    def warnings(self, glsl: str, target: Target) -> list[Message]:
        """Return the warnings about a shader that compiles."""

    def disassemble(self, spirv: bytes) -> str:
        """Return the SPIR-V as text."""


def parse_log(text: str) -> list[Message]:
    """Return the compiler's messages that name a line."""
    found = []
    for line in text.splitlines():
        match = _MESSAGE.match(line)
        if match and not any(noise in match.group(3) for noise in _NOISE):
            message = re.sub(r"\s+", " ", match.group(3)).strip()
            found.append(Message(match.group(1).lower(), int(match.group(2)), message))
    return found


def refuse_warnings(compiler: Compiler, glsl: str, target: Target) -> None:
    """Refuse a shader that compiles, but not without warnings.

    Raises:
        CompileError: with the warnings as its errors.
    """
    found = compiler.warnings(glsl, target)
    if found:
        errors = [Message("error", one.line, f"warning: {one.text}") for one in found]
        raise CompileError(errors, "\n".join(one.text for one in found))


def warnings_beside_an_error(compiler: Compiler, glsl: str, target: Target) -> list[Message]:
    """Return the warnings of a glslang that shows them only together with an error."""
    try:
        compiler.compile(f"{glsl.rstrip()}\n#error the end\n", target, "none")
    except CompileError as error:
        return [one for one in error.messages if one.severity == "warning"]
    return []
