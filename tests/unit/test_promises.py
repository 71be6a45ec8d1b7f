"""tests/conftest.py: a skip caused by the lack of a promised device is a failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
ROOT = str(CONFTEST.parents[1])

SUITE = """
import os, pytest

def test_in_call(): pytest.skip("no Vulkan device")

@pytest.fixture
def device(): pytest.skip("no device matches 'auto'; no Vulkan device was found")

def test_in_fixture(device): pass

@pytest.fixture
def validated(): pytest.skip("needs the layer VK_LAYER_KHRONOS_validation")

def test_layer(validated): pass

def test_kompute(): pytest.skip("no device matches 'auto': the Python package 'kp' is missing")

def test_modules(): pytest.skip("spirv-val is not installed")

def test_other(): pytest.skip("the device takes larger grids")

@pytest.mark.xfail
def test_known(): assert not "no Vulkan device"

def test_cache(): assert "vkmnn-tests-" in os.environ["VKMNN_CACHE_DIR"]
"""


@pytest.mark.parametrize(
    ("promised", "failed"),
    [
        ([], []),
        (["VKMNN_REQUIRE_VULKAN"], ["test_in_call", "test_in_fixture"]),
        (["VKMNN_REQUIRE_KOMPUTE"], ["test_kompute"]),
        (["VKMNN_REQUIRE_VALIDATION"], ["test_layer"]),
        (["VKMNN_REQUIRE_SPIRV_VAL"], ["test_modules"]),
    ],
)
def test_broken_promises_fail(tmp_path: Path, promised: list[str], failed: list[str]):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE)
    own = ("VKMNN_", "PYTEST_")  # what the run around this one was told is not for the one inside
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env.update(dict.fromkeys(promised, "1"), PYTHONPATH=ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if failed else 0), done.stdout
    shown = done.stdout.split("short test summary")[-1]
    for name in re.findall(r"def (test_\w+)", SUITE):
        assert (f"::{name}" in shown) == (name in failed), done.stdout


def test_module_that_skips_itself_fails_too(tmp_path: Path):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.skip('no Vulkan device', allow_module_level=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "VKMNN_REQUIRE_VULKAN": "1", "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert "VKMNN_REQUIRE_VULKAN=1, but" in done.stdout
