from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.codegen.conftest import SCALE, SCALE_ENTRY, Project
from vkmnn.codegen.cache import cache_folder
from vkmnn.codegen.cli import app


def run(project: Project, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--shaders", str(project.root), *arguments])


def test_build_check_and_stale(project: Project) -> None:
    assert "3 added" in run(project).output
    done = run(project, "--check")
    assert (done.exit_code, "up to date" in done.output) == (0, True)
    project.write("scale.comp.j2", SCALE.replace("i >= pc.n4", "i > pc.n4"))
    done = run(project, "--check")
    assert done.exit_code == 1
    assert "+++ built/shaders.lock" in done.output
    assert "stale" in done.output
    assert "3 changed" in run(project, "--only", "scale.comp.j2").output
    assert run(project, "--check").exit_code == 0


def test_errors_end_with_status_one(project: Project) -> None:
    project.write("a.comp.j2", "{{ nothing }}")
    done = run(project)
    assert done.exit_code == 1
    assert "a.comp.j2:1: the template has no entry" in done.output
    assert 'add "a.comp.j2"' in done.output
    project.macro({"scale.comp.j2": {**SCALE_ENTRY, "requires": ["storage61"]}, "a.comp.j2": {}})
    done = run(project)
    assert done.exit_code == 1
    assert "a.comp.j2:1: 'nothing' is undefined" in done.output
    assert "unknown feature 'storage61'" in done.output
    assert "2 errors, nothing was written" in done.output
    assert not (project.root / "shaders.lock").exists()


def test_warnings_are_errors_on_demand(project: Project) -> None:
    """Those of what is cached already, too."""
    assert run(project, "--strict").exit_code == 0
    line = "    const float two__words = 1.0;"
    first = "    uint i = global_index();"
    project.write("scale.comp.j2", SCALE.replace(first, f"{first}\n{line}"))
    done = run(project)
    assert done.exit_code == 0, done.output
    for arguments in (("--strict",), ("--strict", "--check"), ("--strict", "--no-cache")):
        done = run(project, *arguments)
        assert done.exit_code == 1
        assert "are reserved" in done.output
        number = project.glsl.joinpath("scale.comp.j2").read_text().splitlines().index(line) + 1
        assert f"scale.comp.j2:{number}: warning:" in done.output
    assert run(project).exit_code == 0


def test_nothing_is_compiled_for_a_check(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("vkmnn.codegen.compilers._PACKAGES", {})
    monkeypatch.setattr("vkmnn.codegen.compilers.bundled_glslang", lambda: None)
    monkeypatch.setattr("vkmnn.codegen.compilers._bundled_slang", lambda: None)
    assert "no GLSL compiler was found" in run(project).output
    for cache in ((), ("--no-cache",)):
        done = run(project, *cache, "--check")
        assert (done.exit_code, done.output) == (0, "up to date: 3 variants\n")


def test_compile_changes_the_cache_alone(project: Project, tmp_path: Path) -> None:
    assert run(project, "compile").exit_code == 1  # there is no lock
    run(project)
    shutil.rmtree(cache_folder())
    before = {path: path.stat().st_mtime_ns for path in project.root.rglob("*")}
    assert "3 variants, 3 compiled" in run(project, "compile").output
    assert "3 variants, 0 compiled" in run(project, "compile").output
    project.write("scale.comp.j2", SCALE.replace("i >= pc.n4", "i > pc.n4"))
    done = run(project, "compile")
    assert (done.exit_code, "stale" in done.output) == (1, True)
    project.write("scale.comp.j2", SCALE)
    after = {path: path.stat().st_mtime_ns for path in project.root.rglob("*")}
    assert {path for path in after if after[path] != before.get(path)} <= {
        project.glsl / "scale.comp.j2"
    }


def test_pack(project: Project, tmp_path: Path) -> None:
    run(project)
    assert "3 variants packed" in run(project, "pack").output
    assert {"manifest.json", "spirv.zip"} <= {path.name for path in project.root.iterdir()}
    project.write("scale.comp.j2", SCALE.replace("i >= pc.n4", "i > pc.n4"))
    done = run(project, "pack")
    assert (done.exit_code, "is out of date" in done.output) == (1, True)
    copy = tmp_path / "copy"
    copy.mkdir()
    run(project)
    shutil.copy(project.root / "shaders.lock", copy)
    assert run(project, "pack", str(copy)).exit_code == 0
    assert sorted(path.name for path in copy.iterdir()) == [
        "manifest.json",
        "shaders.lock",
        "spirv.zip",
    ]


def test_the_full_report(project: Project) -> None:
    output = run(project, "report", "--full").output
    assert re.search(r"3 variants of 1 templates, \d+ bytes of SPIR-V, compiled by glslang", output)
    assert "| scale | dtype (2) × load (2) | 3 |" in output
    assert re.search(r"\| scale_f32_texel \| \d+ \| -O \| [0-9a-f]{12} \|", output)


def test_report_against_a_revision(project: Project) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")

    def commit() -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
            subprocess.run([git, *command], cwd=project.root, check=True)

    assert "build first" in run(project, "report").output
    run(project)
    assert "name a commit, branch or tag" in run(project, "report").output
    commit()
    done = run(project, "report")
    assert (done.exit_code, "no variant changed" in done.output) == (0, True)
    project.write("scale.comp.j2", SCALE.replace("range(2)", 'range(9 if dtype == "f32" else 2)'))
    project.macro({"scale.comp.j2": {**SCALE_ENTRY, "exclude": []}})
    run(project)
    output = run(project, "report").output
    rows = {line.split(" | ")[0].strip("| "): line for line in output.splitlines() if "|" in line}
    assert "added" in rows["scale_f16_texel"]
    assert re.search(r"changed \| \d+ \| \d+ \| \+\d+, \+\S+ %", rows["scale_f32_buffer"])
    assert "scale_f16_buffer" not in rows
    assert re.search(r"1 added, 2 changed \(\+\d+ bytes of SPIR-V\)", output)
    commit()
    assert "1 added, 2 changed" in run(project, "report", "--against", "HEAD~1").output
    assert "no variant changed" in run(project, "report").output


def test_list_filters(project: Project) -> None:
    def names(*words: str) -> list[str]:
        return run(project, "list", *words, "--variants").output.split()

    assert names("texel") == ["scale_f32_texel"]
    assert names("*_f32_*") == ["scale_f32_buffer", "scale_f32_texel"]
    assert names("f32", "buffer") == ["scale_f32_buffer"]
    assert names("--requires", "storage16") == ["scale_f16_buffer"]
    output = run(project, "list", "f16").output
    assert "| scale | Scale | dtype (2) × load (2) | 1 | storage16 (1) |" in output
    assert "1 variant of 1 template\n" in output
    assert "did you mean 'storage16'?" in run(project, "list", "--requires", "storage61").output
    done = run(project, "list", "scal", "f64")
    assert done.exit_code == 1
    assert "no variant matches 'scal f64'" in done.output
    assert "did you mean 'scale'?" in done.output


def test_cache(project: Project) -> None:
    run(project)
    output = run(project, "cache").output
    assert str(cache_folder()) in output
    assert "entries   5, " in output
    assert "unused    0, 0 bytes" in output
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    output = run(project, "cache").output
    assert "unused    4, " in output  # the lock is that of the old template
    assert "--prune" in output


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        (["show", "scale_f32_buffer"], "#version 450"),
        (["show", "scale_f32_buffer", "--manifest"], '"template": "scale"'),
        (["list"], "scale"),
    ],
)
def test_colours_on_a_terminal_only(project: Project, arguments: list[str], plain: str) -> None:
    import pty

    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "vkmnn.codegen", "--shaders", str(project.root), *arguments]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    env.pop("NO_COLOR", None)
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdout=follower, cwd=root, env=env)
    os.close(follower)
    shown = b""
    try:
        while data := os.read(leader, 65536):
            shown += data
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(leader)
    assert process.wait(60) == 0
    assert b"\x1b[" in shown
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert plain in text
    assert "\x1b" not in run(project, *arguments).output


def test_list(project: Project) -> None:
    output = run(project, "list").output
    assert "scale" in output
    assert "dtype (2)" in output
    names = ["scale_f16_buffer", "scale_f32_buffer", "scale_f32_texel"]
    assert run(project, "list", "scale").output.split() == names
    assert run(project, "list", "scala").exit_code == 1


def test_show(project: Project) -> None:
    glsl = run(project, "show", "scale_f16_buffer").output
    assert glsl.startswith("#version 450\n#extension GL_EXT_shader_16bit_storage : require\n")
    entry = json.loads(run(project, "show", "scale_f16_buffer", "--manifest").output)
    assert entry["requires"] == ["storage16"]
    assert "OpEntryPoint GLCompute" in run(project, "show", "scale_f16_buffer", "--spirv").output
    done = run(project, "show", "scale_f61_buffer")
    assert done.exit_code == 1
    assert "did you mean 'scale_f16_buffer'?" in done.output


def test_cache_options(project: Project) -> None:
    assert "3 compiled" in run(project).output
    assert "0 compiled" in run(project).output
    assert "3 compiled" in run(project, "--no-cache").output
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    assert "pruned 5" in run(project, "--prune").output
    done = run(project, "--prune", "--only", "scale")
    assert (done.exit_code, "leave --only out" in done.output) == (1, True)


def test_a_missing_compiler_is_an_error(project: Project) -> None:
    done = run(project, "--glslang", "/nowhere/glslang")
    assert done.exit_code == 1
    assert "no glslang at '/nowhere/glslang'" in done.output


@pytest.mark.parametrize("name", ["jinja2", "rich"])
def test_a_missing_extra_says_what_to_install(tmp_path: Path, name: str) -> None:
    # An import hook simulates an environment without the package.
    hook = (
        "import importlib.util as u, runpy, sys\n"
        "real = u.find_spec\n"
        f"u.find_spec = lambda n, *a: None if n == {name!r} else real(n, *a)\n"
        "runpy.run_module('vkmnn.codegen', run_name='__main__')\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", hook],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == 1
    assert f"needs {name}" in done.stderr
    assert "pip install 'vkmnn[codegen]'" in done.stderr


def test_the_generator_starts_without_its_own_output() -> None:
    """A stale kernels.py must not prevent building a new one."""
    code = (
        "import sys, vkmnn.codegen.cli\n"
        "print([m for m in sys.modules if m.startswith(('vkmnn.shaders', 'vkmnn.vulkan'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
