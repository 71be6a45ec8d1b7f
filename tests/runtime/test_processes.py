"""Tests that need a separate process: other loaders, other drivers, the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SWIFTSHADER = Path(
    os.environ.get("VKMNN_SWIFTSHADER_ICD", "/usr/lib/chromium/vk_swiftshader_icd.json")
)
_PICK_DRIVER = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # the new and the old name


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(["-c", code], **environment)


def run_python(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


LIST_AND_OPEN = """
import logging
logging.basicConfig(level=logging.INFO)
from vkmnn.errors import DeviceNotFoundError
from vkmnn.runtime.device import enumerate_devices, open_device
assert enumerate_devices() == []
try:
    open_device()
except DeviceNotFoundError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fakes the loader by LD_LIBRARY_PATH")
def test_a_broken_loader(tmp_path: Path) -> None:
    for name in ("libvulkan.so.1", "libvulkan.so"):
        (tmp_path / name).write_bytes(b"no library")
    result = run(LIST_AND_OPEN, LD_LIBRARY_PATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "no Vulkan loader" in result.stdout
    assert "apt install libvulkan1" in result.stdout
    assert "no devices: no Vulkan loader" in result.stderr


def test_a_missing_package(tmp_path: Path) -> None:
    (tmp_path / "vulkan.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    result = run(LIST_AND_OPEN, PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    assert "pip install vulkan" in result.stdout


def test_no_driver_installed() -> None:
    result = run(LIST_AND_OPEN, **dict.fromkeys(_PICK_DRIVER, "/nowhere/driver.json"))
    assert result.returncode == 0, result.stderr
    assert "no driver (ICD)" in result.stdout
    assert "hint:" in result.stdout


@pytest.mark.parametrize("name", ["intel_icd", "radeon_icd"])
def test_a_driver_without_hardware(name: str) -> None:
    path = Path(f"/usr/share/vulkan/icd.d/{name}.x86_64.json")
    if not path.is_file():
        pytest.skip("the driver is not installed")
    result = run(
        "from vkmnn.runtime.device import enumerate_devices\n"
        "assert all(info.vendor in ('Intel', 'AMD') for info in enumerate_devices())\n",
        **dict.fromkeys(_PICK_DRIVER, str(path)),
    )
    assert result.returncode == 0, result.stderr


def test_importing_opens_nothing() -> None:
    result = run(
        "import sys, vkmnn.runtime\n"
        "assert 'vulkan' not in sys.modules, 'the loader is loaded at import'\n"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.soak
@pytest.mark.swiftshader
@pytest.mark.parametrize(
    "place",
    [
        *("tests/driver", "tests/runtime/test_dispatch.py"),
        *("tests/runtime/test_recorder.py", "tests/runtime/test_device.py"),
        "tests/runtime/test_queue_priority.py",
    ],
)
def test_the_same_on_swiftshader(place: str) -> None:
    if not SWIFTSHADER.is_file():
        pytest.skip("SwiftShader is not installed")
    result = run_python(
        ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", place],
        **dict.fromkeys(_PICK_DRIVER, str(SWIFTSHADER)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
