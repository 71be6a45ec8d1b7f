"""glslang, found in this order: an explicit path, the library in the slangpy wheel, PATH.

The in-process route calls `glslang_compile_1_2` of slang-glslang (the interface is declared in the
Slang repository, source/slang-glslang/slang-glslang.h). glslang keeps its state per thread, so
threads compile at the same time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from vkmnn.codegen.features import Target
from vkmnn.errors import ShaderError

ENVIRONMENT_VARIABLE = "VKMNN_GLSLANG"
SOURCE_NAME = "shader.comp"

log = logging.getLogger(__name__)

_LIBRARY = re.compile(r"(?:lib)?slang-glslang(?:-([\d.]+?))?\.(?:so|dll|dylib)$")
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
    """SPIR-V and how it was made; `optimized` names the policy that was really applied."""

    spirv: bytes
    optimized: str
    note: str = ""


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

    glslang shows warnings only together with an error, so it gets one after the last line.

    Raises:
        CompileError: with the warnings as its errors.
    """
    try:
        compiler.compile(f"{glsl.rstrip()}\n#error the end\n", target, "none")
    except CompileError as error:
        found = [
            Message("error", one.line, f"warning: {one.text}")
            for one in error.messages
            if one.severity == "warning"
        ]
        if found:
            raise CompileError(found, error.log_text) from None


# --- in process -------------------------------------------------------------------------

_Output = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_STAGE_COMPUTE = 6
_ACTION_COMPILE, _ACTION_DISASSEMBLE = 0, 1


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class _Request(ctypes.Structure):
    _fields_ = (
        ("size_in_bytes", ctypes.c_size_t),
        ("source_path", ctypes.c_char_p),
        ("input_begin", ctypes.c_void_p),
        ("input_end", ctypes.c_void_p),
        ("diagnostic_func", _Output),
        ("diagnostic_user_data", ctypes.c_void_p),
        ("output_func", _Output),
        ("output_user_data", ctypes.c_void_p),
        ("slang_stage", ctypes.c_int),
        ("action", ctypes.c_uint),
        ("optimization_level", ctypes.c_uint),
        ("debug_info_type", ctypes.c_uint),
        ("spirv_target_name", ctypes.c_char_p),
        ("spirv_version", _Version),
        ("entry_point_name", ctypes.c_char_p),
    )


class SlangGlslang:
    """The slang-glslang library: glslang and the SPIRV-Tools optimiser and validator."""

    # "-O" is the pass list that spirv-opt runs for -O; there is none for size, so "-Os" is "-O".
    _LEVELS: ClassVar = {"none": (0, "none"), "-O": (2, "-O"), "-Os": (2, "-O")}

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
            self._compile = self._library.glslang_compile_1_2
            self._validate = self._library.glslang_validateSPIRV
        except (OSError, AttributeError) as error:
            raise ShaderError(
                f"{path} is not a usable slang-glslang library: {error}",
                hint="install slangpy 0.40 or newer: pip install 'vkmnn[codegen]'",
            ) from None
        self._compile.argtypes = [ctypes.POINTER(_Request)]
        self._compile.restype = ctypes.c_int
        self._validate.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._validate.restype = ctypes.c_bool
        match = _LIBRARY.search(path.name)
        version = match.group(1) if match and match.group(1) else "unknown"
        self._identity = f"slang-glslang {version}"

    @property
    def identity(self) -> str:
        """Name and version of the library."""
        return self._identity

    def _call(
        self, data: bytes, action: int, level: int, version: tuple[int, int]
    ) -> tuple[int, bytes, str]:
        output: list[bytes] = []
        diagnostics: list[bytes] = []

        def on_output(pointer: int, size: int, _: object) -> None:
            output.append(ctypes.string_at(pointer, size))

        def on_diagnostic(pointer: int, size: int, _: object) -> None:
            diagnostics.append(ctypes.string_at(pointer, size))

        buffer = ctypes.create_string_buffer(data, len(data))
        begin = ctypes.addressof(buffer)
        request = _Request(
            size_in_bytes=ctypes.sizeof(_Request),
            source_path=SOURCE_NAME.encode(),
            input_begin=begin,
            input_end=begin + len(data),
            diagnostic_func=_Output(on_diagnostic),
            output_func=_Output(on_output),
            slang_stage=_STAGE_COMPUTE,
            action=action,
            optimization_level=level,
            spirv_target_name=b"vk1.1" if version == (1, 3) else None,
            spirv_version=_Version(*version, 0),
            entry_point_name=b"main",
        )
        code = self._compile(ctypes.byref(request))
        return code, b"".join(output), b"".join(diagnostics).decode("utf-8", "replace")

    def _is_valid(self, spirv: bytes) -> bool:
        buffer = ctypes.create_string_buffer(spirv, len(spirv))
        return bool(self._validate(ctypes.addressof(buffer), len(spirv) // 4))

    def compile(self, glsl: str, target: Target, optimize: str) -> Compiled:
        """Compile in this process; a module that only the optimiser spoils is kept unoptimised."""
        level, applied = self._LEVELS[optimize]
        code, spirv, text = self._call(glsl.encode(), _ACTION_COMPILE, level, target.spirv)
        if code != 0 or not spirv:
            raise CompileError(parse_log(text), text)
        if self._is_valid(spirv):
            return Compiled(spirv, applied, text.strip())
        if level:
            _, spirv, _ = self._call(glsl.encode(), _ACTION_COMPILE, 0, target.spirv)
            if self._is_valid(spirv):
                return Compiled(spirv, "none", f"the optimiser ({optimize}) made invalid SPIR-V")
        raise CompileError([], "glslang produced invalid SPIR-V (its validator's message is above)")

    def disassemble(self, spirv: bytes) -> str:
        """Return the SPIR-V as text."""
        code, output, text = self._call(spirv, _ACTION_DISASSEMBLE, 0, (1, 3))
        if code != 0:
            raise ShaderError(f"disassembly failed: {text}")
        return output.decode("utf-8", "replace").rstrip("\0")


# --- external program -------------------------------------------------------------------


class ExternalGlslang:
    """`glslang` or `glslangValidator` as a program, with `spirv-opt` when PATH has one."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._optimizer = shutil.which("spirv-opt")
        version = self._run([str(program), "--version"]).stdout
        match = re.search(r"Glslang Version: (\S+)", version)
        if not match:
            raise ShaderError(f"{program} does not answer --version like glslang")
        self._identity = f"glslang {match.group(1)}"
        if self._optimizer:
            answer = self._run([self._optimizer, "--version"])
            tools = re.search(r"v(\d+\.\d+\S*)", answer.stdout + answer.stderr)
            self._identity += f" + spirv-opt {tools.group(1) if tools else 'unknown'}"

    @staticmethod
    def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except OSError as error:
            raise ShaderError(f"cannot run {command[0]}: {error}") from None

    @property
    def identity(self) -> str:
        """Version of the program and of the optimiser."""
        return self._identity

    def compile(self, glsl: str, target: Target, optimize: str) -> Compiled:
        """Compile in a child process; without a working spirv-opt the result stays unoptimised."""
        with tempfile.TemporaryDirectory(prefix="vkmnn-codegen-") as folder:
            source = Path(folder, SOURCE_NAME)
            raw = Path(folder, "raw.spv")
            source.write_text(glsl, encoding="utf-8", newline="\n")
            vulkan = "vulkan{}.{}".format(*target.vulkan)
            spirv = "spirv{}.{}".format(*target.spirv)
            command = [str(self._program), "--target-env", vulkan, "--target-env", spirv]
            done = self._run([*command, "-V", "-o", str(raw), str(source)])
            if done.returncode != 0 or not raw.is_file():
                text = done.stdout + done.stderr
                raise CompileError(parse_log(text), text)
            if optimize == "none":
                return Compiled(raw.read_bytes(), "none")
            if self._optimizer is None:
                return Compiled(raw.read_bytes(), "none", "spirv-opt is not on PATH")
            better = Path(folder, "better.spv")
            done = self._run(
                [self._optimizer, optimize, f"--target-env={vulkan}", str(raw), "-o", str(better)]
            )
            if done.returncode != 0 or not better.is_file():
                note = f"spirv-opt {optimize} failed: {done.stderr.strip()}"
                return Compiled(raw.read_bytes(), "none", note)
            return Compiled(better.read_bytes(), optimize)

    def disassemble(self, spirv: bytes) -> str:
        """Return the SPIR-V as text, by spirv-dis."""
        program = shutil.which("spirv-dis")
        if program is None:
            raise ShaderError("spirv-dis is not on PATH", hint="install spirv-tools or slangpy")
        with tempfile.TemporaryDirectory(prefix="vkmnn-codegen-") as folder:
            path = Path(folder, "shader.spv")
            path.write_bytes(spirv)
            return self._run([program, "--no-color", str(path)]).stdout


def _bundled() -> Path | None:
    """The library in the slangpy wheel; the package is located, not imported."""
    spec = importlib.util.find_spec("slangpy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(path for path in Path(folder).iterdir() if _LIBRARY.search(path.name))
        if found:
            return found[-1]
    return None


def find_compiler(explicit: str | Path | None = None) -> Compiler:
    """Return the compiler to use.

    Args:
        explicit: path of a glslang program or of a slang-glslang library; overrides the rest.

    Raises:
        ShaderError: nothing usable was found.
    """
    chosen = explicit or os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        path = Path(chosen)
        if not path.is_file():
            resolved = shutil.which(str(chosen))
            if resolved is None:
                raise ShaderError(f"no glslang at '{chosen}'", hint="a path to a file is wanted")
            path = Path(resolved)
        return SlangGlslang(path) if _LIBRARY.search(path.name) else ExternalGlslang(path)
    bundled = _bundled()
    if bundled:
        return SlangGlslang(bundled)
    for name in ("glslang", "glslangValidator"):
        program = shutil.which(name)
        if program:
            log.info("using %s: slangpy is not installed", program)
            return ExternalGlslang(Path(program))
    raise ShaderError(
        "no GLSL compiler was found",
        hint="pip install 'vkmnn[codegen]' brings one; or set "
        f"{ENVIRONMENT_VARIABLE} or --glslang to a glslang program",
    )
