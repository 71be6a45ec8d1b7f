"""The examples run, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_example(*arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        capture_output=True,
        text=True,
        encoding=encoding,
        timeout=1800,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["examples/digits/demo.py", "--runs", "5"], "358 of 360"),
        (["examples/digits/demo.py", "--runs", "5", "--device", "cpu"], "358 of 360"),
        (["examples/quickstart.py"], "probabilities: float32 [1, 10]"),
        (["examples/resize.py"], "3 x 37 x 53"),
    ],
)
def test_example(arguments: list[str], said: str):
    done = run_example(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout


def test_demo_without_any_driver_says_so_and_runs_on_numpy(monkeypatch: pytest.MonkeyPatch):
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(variable, "/nowhere.json")
    done = run_example("examples/digits/demo.py", "--runs", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No Vulkan device" in done.stdout
    assert "358 of 360" in done.stdout


def test_demo_on_a_console_without_block_characters():
    arguments = ("examples/digits/demo.py", "--runs", "1", "--device", "cpu")
    done = run_example(*arguments, encoding="cp1252")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "##" in done.stdout
    assert " ok " in done.stdout


def test_unknown_device_is_an_error():
    done = run_example("examples/quickstart.py", "examples/digits/digits.onnx", "no such device")
    assert done.returncode != 0
    assert "DeviceNotFoundError" in done.stderr


def test_training_data_beside_the_model_is_small():
    assert (ROOT / "examples/digits/digits.onnx").stat().st_size < 300_000
