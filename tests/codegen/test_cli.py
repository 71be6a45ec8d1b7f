from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.codegen.conftest import SCALE, SCALE_ENTRY, Project
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
    assert "+++ built/manifest.json" in done.output
    assert "stale" in done.output
    assert "3 changed" in run(project, "--only", "scale.comp.j2").output
    assert run(project, "--check").exit_code == 0


def test_errors_end_with_status_one(project: Project) -> None:
    project.write("a.comp.j2", "{{ nothing }}")
    done = run(project)
    assert done.exit_code == 1
    assert "a.comp.j2:1: the template has no entry" in done.output
    assert 'add "a.comp.j2"' in done.output
    project.macro({"scale.comp.j2": {**SCALE_ENTRY, "requires": []}, "a.comp.j2": {}})
    done = run(project)
    assert done.exit_code == 1
    assert "a.comp.j2:1: 'nothing' is undefined" in done.output
    assert "does not list 'storage16'" in done.output
    assert "2 errors, nothing was written" in done.output
    assert not (project.root / "manifest.json").exists()


def test_list(project: Project) -> None:
    output = run(project, "list").output
    assert "scale" in output
    assert "dtype (2)" in output
    names = ["scale_f16_ssbo", "scale_f32_ssbo", "scale_f32_texel"]
    assert run(project, "list", "scale").output.split() == names
    assert run(project, "list", "scala").exit_code == 1


def test_show(project: Project) -> None:
    glsl = run(project, "show", "scale_f16_ssbo").output
    assert glsl.startswith("#version 450\n#extension GL_EXT_shader_16bit_storage : require\n")
    entry = json.loads(run(project, "show", "scale_f16_ssbo", "--manifest").output)
    assert entry["requires"] == ["storage16"]
    assert "OpEntryPoint GLCompute" in run(project, "show", "scale_f16_ssbo", "--spirv").output
    done = run(project, "show", "scale_f61_ssbo")
    assert done.exit_code == 1
    assert "did you mean 'scale_f16_ssbo'?" in done.output


def test_cache_options(project: Project) -> None:
    assert "3 compiled" in run(project).output
    assert "0 compiled" in run(project).output
    assert "3 compiled" in run(project, "--no-cache").output
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    assert "pruned 4" in run(project, "--prune").output
    done = run(project, "--prune", "--only", "scale")
    assert (done.exit_code, "leave --only out" in done.output) == (1, True)


def test_a_missing_compiler_is_an_error(project: Project) -> None:
    done = run(project, "--glslang", "/nowhere/glslang")
    assert done.exit_code == 1
    assert "no glslang at '/nowhere/glslang'" in done.output


@pytest.mark.parametrize("name", ["jinja2", "rich"])
def test_a_missing_extra_says_what_to_install(tmp_path: Path, name: str) -> None:
    # An import hook stands for an environment without the package.
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
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == 1
    assert f"needs {name}" in done.stderr
    assert "pip install 'vkmnn[codegen]'" in done.stderr


def test_the_generator_starts_without_its_own_output() -> None:
    """A stale kernels.py must not keep anybody from building a new one."""
    code = (
        "import sys, vkmnn.codegen.cli\n"
        "print([m for m in sys.modules if m.startswith(('vkmnn.shaders', 'vkmnn.vulkan'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
