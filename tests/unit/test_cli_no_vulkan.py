"""A machine without a Vulkan loader: everything works on numpy, with a hint what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "digits" / "digits.onnx"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="fakes the loader by LD_LIBRARY_PATH"
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which the loaders that are found are no libraries."""
    for name in ("libvulkan.so.1", "libvulkan.so"):
        (tmp_path / name).write_bytes(b"no library")
    hidden = ("VKMNN_", "VK_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**env, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


RUN = f"""
import numpy as np, vkmnn
assert vkmnn.devices() == []
session = vkmnn.InferenceSession({str(MODEL)!r}, device=DEVICE)
(y,) = session.run(None, {{"image": np.ones((2, 1, 8, 8), np.float32)}})
assert session.device.name == "CPU (numpy backend)"
assert y.shape == (2, 10)
np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
"""


def test_auto_warns_and_runs_on_numpy(environment: dict[str, str]) -> None:
    done = python(environment, "-c", RUN.replace("DEVICE", "'auto'"))
    assert done.returncode == 0, done.stderr
    assert "no Vulkan device, the numpy CPU backend runs the network" in done.stderr
    assert "apt install libvulkan1" in done.stderr


def test_cpu_is_silent(environment: dict[str, str]) -> None:
    done = python(environment, "-W", "error", "-c", RUN.replace("DEVICE", "'cpu'"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("selector", ["0", "'llvmpipe'"])
def test_a_device_that_is_asked_for_raises(environment: dict[str, str], selector: str) -> None:
    done = python(environment, "-c", RUN.replace("DEVICE", selector))
    assert done.returncode == 1
    assert "DeviceNotFoundError" in done.stderr
    assert "hint: " in done.stderr


def test_devices_lists_numpy_alone(environment: dict[str, str]) -> None:
    done = python(environment, "-m", "vkmnn", "devices")
    assert done.returncode == 0
    assert "CPU (numpy backend)" in done.stdout
    assert '"auto" means cpu: there is no Vulkan device' in done.stdout
    assert "no Vulkan loader: cannot load libvulkan.so.1" in done.stderr
    assert "note: to get one: " in done.stderr
    answer = json.loads(python(environment, "-m", "vkmnn", "devices", "--json").stdout)
    assert [device["index"] for device in answer["devices"]] == ["cpu"]


def test_doctor_says_what_to_install(environment: dict[str, str]) -> None:
    done = python(environment, "-m", "vkmnn", "doctor")
    assert done.returncode == 1
    assert "✗  loader" in done.stdout
    assert "install" in done.stdout
    assert "No usable device" in done.stdout
    assert "Traceback" not in done.stderr


def test_run_and_profile_work(environment: dict[str, str]) -> None:
    for command in ("run", "profile"):
        done = python(environment, "-m", "vkmnn", command, str(MODEL))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("digits.onnx on CPU (numpy backend)")
        assert "warning: no Vulkan device" in done.stderr
