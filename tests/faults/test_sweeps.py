"""Every Vulkan call of a session's life fails once, in every way; so do numpy's allocations."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.llm import tiny
from vkmnn.runtime.device import enumerate_devices
from vkmnn_suite.faults.library import Fault
from vkmnn_suite.faults.sweep import Life, sweep

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(not enumerate_devices("vulkan"), reason="no Vulkan device"),
    pytest.mark.skipif(sys.platform != "linux", reason="hooks the C library's allocator"),
]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product, an activation and a softmax, over a symbolic batch."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VKMNN_DRIVER", raising=False)
    weight = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Relu", ["product"], ["positive"]),
            helper.make_node("Softmax", ["positive"], ["y"], axis=-1),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "tiny.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


LASTING = (Fault.HOST_MEMORY, Fault.LOST, Fault.INTERRUPT)

FEW = (Fault.TIMEOUT, Fault.HANG, Fault.NUMPY)
"""Faults that are tried on a few calls only."""


@pytest.mark.parametrize("stride", [11, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_every_call_may_fail(model: Path, fault: Fault, stride: int) -> None:
    (row,) = sweep(model, [fault], stride=1 if fault in FEW else stride)
    assert row.violations == []
    assert row.trials > (5 if fault in FEW else 120 // stride)
    if fault is not Fault.TIMEOUT:  # which is not an error unless it lasts
        assert sum(row.errors.values()) - row.errors["made good"] > row.trials // 2


@pytest.mark.parametrize("fault", [Fault.DEVICE_MEMORY, Fault.LOST, Fault.INTERRUPT])
def test_calls_of_the_instance_may_fail(model: Path, fault: Fault) -> None:
    (row,) = sweep(model, [fault], fresh=True, limit=20)
    assert row.violations == []
    assert row.trials == 20


@pytest.mark.parametrize("fault", [Fault.DEVICE_MEMORY, Fault.LOST_ONCE, Fault.INTERRUPT])
def test_calls_on_tensors_of_the_device_may_fail(model: Path, fault: Fault) -> None:
    (row,) = sweep(model, [fault], life="bound", stride=7)
    assert row.violations == []
    assert row.trials > 25


@pytest.mark.parametrize("fault", [Fault.LOST_ONCE, Fault.LOST])
def test_sessions_that_open_lost_devices_anew(model: Path, fault: Fault) -> None:
    """vkmnn recovers from most losses; whatever was lost, the session continues."""
    (row,) = sweep(model, [fault], life="rebuild", stride=5)
    assert row.violations == []
    assert row.trials > 25
    if fault is Fault.LOST_ONCE:
        assert row.errors["made good"] > row.trials // 4


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """The folder of a language model of one layer."""
    shape = replace(
        tiny.LLAMA, layers=1, width=16, heads=2, kv_heads=1, depth=8, inner=16, rotary=8
    )
    return tiny.genai_folder(tmp_path / "folder", shape)


@pytest.mark.parametrize("stride", [151, pytest.param(31, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "fault", [Fault.DEVICE_MEMORY, *(pytest.param(f, marks=pytest.mark.soak) for f in LASTING)]
)
def test_calls_of_a_state_may_fail(folder: Path, fault: Fault, stride: int) -> None:
    (row,) = sweep(folder / "model.onnx", [fault], life="state", stride=stride)
    assert row.violations == []
    assert row.trials >= 500 // stride


@pytest.mark.parametrize(
    ("life", "fault", "stride"),
    [
        ("text", Fault.DEVICE_MEMORY, 997),
        ("rebuilt text", Fault.LOST, 997),
        *(pytest.param("text", fault, 997, marks=pytest.mark.soak) for fault in LASTING),
        pytest.param("rebuilt text", Fault.LOST_ONCE, 997, marks=pytest.mark.soak),
    ],
)
def test_calls_of_a_language_model_may_fail(
    folder: Path, life: Life, fault: Fault, stride: int
) -> None:
    """Load, warm-up, a batch, draws, a session that is saved and loaded.

    Every call takes half an hour a fault: python -m vkmnn_suite.faults FOLDER --life text
    """
    pytest.importorskip("tokenizers")
    (row,) = sweep(folder, [fault], life=life, stride=stride)
    assert row.violations == []
    assert row.trials >= 1000 // stride


@pytest.mark.soak
def test_calls_of_eight_texts_may_fail(folder: Path) -> None:
    (row,) = sweep(folder, [Fault.DEVICE_MEMORY], life="text", tune=True, stride=613)
    assert row.violations == []
    assert row.trials > 4


@pytest.mark.parametrize("stride", [97, pytest.param(83, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "fault",
    [
        Fault.INTERRUPT,
        *(pytest.param(f, marks=pytest.mark.soak) for f in (Fault.DEVICE_MEMORY, Fault.LOST)),
    ],
)
def test_calls_while_tuning_may_fail(model: Path, fault: Fault, stride: int) -> None:
    (row,) = sweep(model, [fault], tune=True, stride=stride)
    assert row.violations == []
    assert row.trials > 230 // stride


def test_a_crash_is_told_from_what_was_tried(model: Path, tmp_path: Path) -> None:
    """The sweep itself notices what it is for."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os\n"
        "import vkmnn_suite.faults.library as library\n"
        "real = library.Library._hit\n"
        "def hit(self, name, *rest):\n"
        "    found = real(self, name, *rest)\n"
        "    if found and name == 'vkCreateFence':\n"
        "        os.abort()\n"
        "    return found\n"
        "library.Library._hit = hit\n"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    (row,) = sweep(model, [Fault.DEVICE_MEMORY], stride=2, limit=80)
    assert row.violations
    assert all("ends the process with -6" in text for text in row.violations)


def test_the_command_prints_a_table(model: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "vkmnn_suite.faults", str(model), "--error=unknown", "--limit=9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "UNKNOWN" in result.stdout
    assert "DeviceError" in result.stdout
