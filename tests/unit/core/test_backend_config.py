"""MNN's BackendConfig: what memory, power and tuning change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkmnn
import vkmnn.mnn as MNN  # noqa: N812 - as programs write it
from tests.unit.core.models import tanh_chain
from vkmnn import InvalidInputError, ScheduleConfig
from vkmnn.core import plans


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"memory": "low"}, 1),
        ({}, 8),  # no memory for more: see below
        ({"memory": "high"}, 12),
        ({"memory": "low", "max_plans": 3}, 3),
    ],
)
def test_memory_says_how_many_plans_are_kept(
    settings: Any, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "PLANS_BYTES", -1)
    net = vkmnn.Interpreter(tanh_chain(["N"]))
    session = net.create_session({"device": "cpu", **settings})
    for size in range(1, 13):
        net.resize_tensor(session, session.inputs["x"], (size,))
        net.resize_session(session)
    assert session.core.plan_count == kept  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "variable", "tuning"),
    [
        ({}, "on", True),
        ({}, "off", False),
        ({"power": "high"}, "off", True),
        ({"power": "low"}, "on", False),
        ({"power": "low", "tuning": "on"}, "off", True),
        ({"tuning": "off"}, "on", False),
        ({"tuning": "cached"}, "on", False),
    ],
)
@pytest.mark.skipif(not vkmnn.devices(), reason="no Vulkan device")
def test_power_says_whether_kernels_are_measured(
    settings: Any, variable: str, tuning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKMNN_TUNE", variable)
    session = vkmnn.Interpreter(tanh_chain(["N"])).create_session(settings)
    main = session.core._main  # type: ignore[union-attr]
    assert main.tunes_new_plans is tuning
    assert main.timed().tunes_new_plans is tuning


def test_low_power_is_one_thread() -> None:
    assert ScheduleConfig(threads=4).cpu_threads == 4
    assert ScheduleConfig(threads=4, power="low").cpu_threads == 1
    net = vkmnn.Interpreter(tanh_chain([2]))
    session = net.create_session({"device": "cpu", "numThread": 4, "power": "low"})
    assert net.session_info(session).threads == 1


@pytest.mark.parametrize("setting", ["memory", "power", "tuning"])
def test_levels_that_are_unknown(setting: str) -> None:
    net = vkmnn.Interpreter(tanh_chain([2]))
    with pytest.raises(InvalidInputError, match=f'{setting}="extreme" is not known'):
        net.create_session({"device": "cpu", setting: "extreme"})


def test_levels_as_mnn_writes_them(tmp_path: Any) -> None:
    import onnx

    path = tmp_path / "m.onnx"
    onnx.save(tanh_chain([2]), path)
    net = MNN.Interpreter(str(path))
    for level in ("low", 2, MNN.expr.MemoryMode.Low):
        session = net.createSession({"backend": "CPU", "memory": level, "power": level})
        source = net.getSessionInput(session)
        source.copyFrom(MNN.Tensor(np.ones(2, np.float32)))
        assert net.runSession(session) == 0
    with pytest.raises(InvalidInputError, match="no power 'utter'"):
        net.createSession({"power": "utter"})


@pytest.mark.skipif(not vkmnn.devices(), reason="no Vulkan device")
@pytest.mark.parametrize(
    ("storage", "variable", "images"),
    [("image", "buffer", True), ("buffer", "image", False), (None, "image", True)],
)
def test_storage_of_one_session(
    storage: Any, variable: str, images: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "images" not in vkmnn.devices()[0].features:
        pytest.skip("the device has no images")
    monkeypatch.setenv("VKMNN_STORAGE", variable)
    session = vkmnn.Interpreter(tanh_chain(["N"])).create_session({"storage": storage})
    assert (session.core._main._images > 0) is images  # type: ignore[union-attr]


def test_storage_that_is_not_known() -> None:
    with pytest.raises(InvalidInputError, match='storage="texture" is not known'):
        vkmnn.Interpreter(tanh_chain(["N"])).create_session({"storage": "texture"})
