"""A package that ships SPIR-V, used where neither jinja2 nor a compiler is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.conftest import Project
from vkmnn.errors import DeviceNotFoundError
from vkmnn.runtime.device import open_device
from vkmnn.shaders import kernels

ROOT = Path(__file__).resolve().parents[2]

TEMPLATE = """\
{# y = 2 x. #}
{{ local_size(64) }}
{{ tensor_in("x", dtype) }}
{{ tensor_out("y", dtype) }}
{{ params("n:uint") }}
{% include "include/common.glsl.j2" %}
void main()
{
    uint i = global_index();
    if (i < pc.n)
        y_store(i, 2 * x_load(i));
}
"""
USER = """
import sys

for name in ("jinja2", "slangpy", "typer", "rich", "vkmnn.codegen"):
    sys.modules[name] = None

import numpy as np
from vkmnn.runtime.device import open_device
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.shaders import ShaderLibrary
from vkmnn.shaders import kernels as builtin
from doubling.shaders import kernels

shader = kernels.double(dtype="i32")
assert shader.name == "double_i32"
assert shader is kernels.double(dtype="i32")
assert ShaderLibrary(kernels.__file__.removesuffix("kernels.py")).load("double_i32") == shader
assert builtin.unary(form="map", element="f32", load="buffer").name == "unary_map_f32_buffer"

device = open_device()
x = np.arange(7, dtype=np.int32)
with device.allocate(28, MemoryKind.DEVICE) as a, device.allocate(28, MemoryKind.DEVICE) as b:
    a.write(0, x)
    recorder = device.recorder()
    ranges = [BufferRange(a, 0, 28), BufferRange(b, 0, 28)]
    recorder.dispatch(device.pipeline(shader), ranges, kernels.DoubleParams(n=7).pack(), (1, 1, 1))
    with recorder.finish() as commands:
        commands.run()
    print(b.read(0, 28).view(np.int32).tolist())
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package `doubling`, as its wheel would install it."""
    kernels.unary(form="map", element="f32", load="buffer").spirv()  # USER can compile none
    made = Project(tmp_path / "source" / "shaders")
    made.write("double.comp.j2", TEMPLATE)
    made.macro({"double.comp.j2": {"axes": {"dtype": ["f32", "i32"]}}})
    command = [sys.executable, "-m", "vkmnn.codegen", "--shaders", str(made.root)]
    for step in (command, [*command, "pack"]):
        subprocess.run(step, cwd=ROOT, check=True, capture_output=True, timeout=1800)
    package = tmp_path / "site" / "doubling"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copytree(made.root, package / "shaders", ignore=shutil.ignore_patterns("glsl"))
    return package.parent


@pytest.mark.usefixtures("compiler")
def test_it_runs_without_a_compiler(site: Path) -> None:
    try:
        open_device()
    except DeviceNotFoundError as error:
        pytest.skip(error.message)
    files = sorted(path.name for path in (site / "doubling" / "shaders").iterdir())
    assert files == ["kernels.py", "kernels.pyi", "manifest.json", "shaders.lock", "spirv.zip"]
    done = subprocess.run(
        [sys.executable, "-c", USER],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=site,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}", "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == str([0, 2, 4, 6, 8, 10, 12])


@pytest.mark.usefixtures("compiler")
def test_its_types_are_exact(site: Path) -> None:
    pytest.importorskip("mypy")
    (site / "user.py").write_text(
        "from doubling.shaders import kernels\n"
        'kernels.double(dtype="i32")\n'
        'kernels.double(dtype="i64")\n'
        "kernels.DoubleParams()\n"
        "data: bytes = kernels.DoubleParams(n=1).pack()\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "user.py"]
    done = subprocess.run(
        [*command, "--follow-imports=silent", "--namespace-packages"],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=site,
        env={"MYPYPATH": str(ROOT), "PATH": "", "HOME": str(site)},
        check=False,
    )
    assert [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line] == [
        "3",
        "4",
    ]
