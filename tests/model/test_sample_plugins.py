"""The plug-ins under examples/: built, installed in a fresh folder, and run from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
OFFLINE = ("--no-deps", "--no-index", "--quiet")

# Folder, package, and words of `vkmnn ops --plugins`.
SAMPLES = [
    ("plugin", "vkmnn_swiglu", ("vkmnn-swiglu 0.1.0", "op type SwiGLU")),
    ("gradient", "vkmnn_gradient", ()),  # changes models before vkmnn reads them
    ("parse_function", "vkmnn_acme_onnx", ("converter of acme.ai::Swish since opset 2",)),
    (
        "custom_kernel",
        "vkmnn_squared_relu",
        (
            "Custom:acme.SquaredRelu on VULKAN for any type by acme: priority 10",
            "pass acme_fuse_squared_relu",
        ),
    ),
]


def call(*command: str | Path, folder: Path, packages: Path | None = None) -> str:
    """Run a command outside the checkout; its packages come from `packages`."""
    path = os.pathsep.join(str(part) for part in (packages, ROOT) if part)
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    for name in ("VKMNN_PLUGINS", "VKMNN_PLUGIN_PATH"):
        env.pop(name, None)
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# The first has many tests, and tests/new_op/test_example.py tries it as well.
MARKS = {"plugin": [pytest.mark.slow, pytest.mark.soak]}


@pytest.mark.parametrize(
    ("sample", "package", "words"),
    [pytest.param(*one, id=one[0], marks=MARKS.get(one[0], [])) for one in SAMPLES],
)
def test_it_is_built_installed_and_run(
    sample: str, package: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("setuptools", minversion="61")
    skipped = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(EXAMPLES / sample, tmp_path / "source", ignore=skipped)
    wheels, packages, elsewhere = (tmp_path / name for name in ("wheels", "packages", "elsewhere"))
    elsewhere.mkdir()
    source = tmp_path / "source"
    build = ("wheel", "--no-build-isolation", *OFFLINE, "--wheel-dir", wheels, source)
    call(*PIP, *build, folder=elsewhere)
    (wheel,) = wheels.glob("*.whl")
    call(*PIP, "install", *OFFLINE, "--target", packages, wheel, folder=elsewhere)
    assert (packages / package / "__init__.py").is_file()
    shutil.copytree(source / "tests", elsewhere / "tests")
    shown = call(
        *(sys.executable, "-m", "vkmnn", "ops", "--plugins"),
        folder=elsewhere,
        packages=packages,
    )
    for text in words:
        assert text in " ".join(shown.split())
    said = call(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"),
        folder=elsewhere,
        packages=packages,
    )
    assert "passed" in said
    assert "failed" not in said


@pytest.mark.parametrize("sample", ["plugin", "custom_kernel"])
def test_its_shaders_are_up_to_date(sample: str) -> None:
    pytest.importorskip("jinja2", reason="the extra 'codegen' is not installed")
    (folder,) = (path.parent for path in (EXAMPLES / sample).glob("*/shaders.lock"))
    command = (sys.executable, "-m", "vkmnn.codegen", "--check", "--shaders", folder)
    call(*command, folder=ROOT)


def test_mutants_of_its_shader_are_caught(tmp_path: Path) -> None:
    """Its own cases judge them."""
    pytest.importorskip("jinja2", reason="the extra 'codegen' is not installed")
    folder = EXAMPLES / "custom_kernel"
    said = call(
        *(sys.executable, "-m", "vkmnn_suite.mutate", "squared_relu_buffer"),
        *("--sample", "4", "--cases", folder / "tests" / "cases_squared_relu.py"),
        folder=tmp_path,
        packages=folder,
    )
    assert "squared_relu_buffer" in said
