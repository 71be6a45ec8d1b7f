"""What needs a process of its own: other loaders, other drivers, the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
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
        timeout=120,
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
    (tmp_path / "libvulkan.so.1").write_bytes(b"no library")
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


@pytest.mark.parametrize("validation", [False, True])
def test_the_interpreter_ends_cleanly_with_everything_alive(validation: bool) -> None:
    """Live buffers, views, commands and encoders when the interpreter ends."""
    result = run(
        f"""
from vkmnn.errors import ValidationLayerError
from vkmnn.runtime import *
if not enumerate_devices():
    raise SystemExit
try:
    device = open_device(validation={validation})
except ValidationLayerError:
    raise SystemExit
memory = device.allocate(4096, MemoryKind.DEVICE)
view = memory.host
encoder = device.encoder()
encoder.fill(BufferRange(memory, 0, 64), 7)
commands = encoder.finish()
commands.submit()
unfinished = device.encoder()
unfinished.fill(BufferRange(memory, 0, 64), 7)
class Cycle: pass
cycle = Cycle(); cycle.self = cycle; cycle.things = (memory, commands, unfinished)
"""
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_device_alone() -> None:
    result = run(
        """
import os
import numpy as np
from vkmnn.errors import InvalidInputError
from vkmnn.runtime import *
if not enumerate_devices():
    raise SystemExit
device = open_device()
memory = device.allocate(4096, MemoryKind.DEVICE)
memory.write(0, np.arange(10, dtype=np.uint8))
child = os.fork()
if child == 0:
    try:
        device.encoder()
    except InvalidInputError as error:
        assert "parent process" in str(error)
    else:
        os._exit(3)
    memory.destroy()
    device.close()
    del memory, device
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
encoder = device.encoder()
encoder.fill(BufferRange(memory, 4, 4), 0)
with encoder.finish() as commands:
    commands.run()
assert memory.read(0, 10).tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9]
"""
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.swiftshader
@pytest.mark.parametrize("file", ["test_dispatch.py", "test_encoder.py", "test_device.py"])
def test_the_same_on_swiftshader(file: str) -> None:
    if not SWIFTSHADER.is_file():
        pytest.skip("SwiftShader is not installed")
    path = Path(__file__).with_name(file)
    result = run_python(
        ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(path)],
        **dict.fromkeys(_PICK_DRIVER, str(SWIFTSHADER)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
