"""MNN's BackendConfig: the effects of memory, power and tuning."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
import vkmnn.mnn as MNN  # noqa: N812 - as programs write it
from tests.session.models import model, tanh_chain, value
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


SETTINGS = ["memory", "power", "tuning", "execution", "allocator", "out_of_range"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_levels_that_are_unknown(setting: str) -> None:
    net = vkmnn.Interpreter(tanh_chain([2]))
    with pytest.raises(InvalidInputError, match=f'{setting}="extreme" is not known'):
        net.create_session({"device": "cpu", setting: "extreme"})


@pytest.mark.skipif(not vkmnn.devices(), reason="no Vulkan device")
@pytest.mark.parametrize("execution", ["INDIRECT", "DIRECT", "direct"])
@pytest.mark.parametrize("face", ["own", "mnn"])
def test_commands_are_recorded_once_or_in_every_run(
    execution: str, face: str, tmp_path: Any
) -> None:
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    want = -np.tanh(x)
    onnx.save(tanh_chain([5]), tmp_path / "m.onnx")
    if face == "own":
        net = vkmnn.Interpreter(tmp_path / "m.onnx")
        session = net.create_session({"execution": execution})
        session.inputs["x"].copy_from(x)
        run, core = lambda: net.run_session(session), session.core
        output = lambda: session.outputs["y"].copy_to()  # noqa: E731
    else:
        mnn = MNN.Interpreter(tmp_path / "m.onnx")
        other = mnn.createSession({"execution": execution})
        mnn.getSessionInput(other).fromNumpy(x)
        run, core = lambda: mnn.runSession(other), other._core
        output = lambda: mnn.getSessionOutput(other).getNumpyData()  # noqa: E731
    run()
    counted = []
    for _ in range(3):
        before = core.counters()["recordings"]  # type: ignore[union-attr]
        run()
        counted.append(core.counters()["recordings"] - before)  # type: ignore[union-attr]
        np.testing.assert_allclose(output(), want, atol=1e-5)
    assert counted == [0 if execution == "INDIRECT" else 1] * 3


@pytest.mark.skipif(not vkmnn.devices(), reason="no Vulkan device")
def test_memory_is_placed_at_once_or_as_tensors_come() -> None:
    """A small result that outlives the large one before it lies beyond it, or under it."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=1),
        helper.make_node("Concat", ["s"] * 2, ["b"], axis=0),
        helper.make_node("Tile", ["b", "times"], ["c"]),
        helper.make_node("Tanh", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "d"], ["e"]),
        helper.make_node("Add", ["e", "s"], ["y"]),
    ]
    times = onnx.numpy_helper.from_array(np.array([32, 64]), "times")
    proto = model(nodes, [value("x", [40, 40])], [value("y", [64, 64])], [times])
    x = np.linspace(-1, 1.1, 1600, dtype=np.float32).reshape(40, 40)
    used, results = {}, []
    for allocator in ("DEFER", "EAGER"):
        net = vkmnn.Interpreter(proto)
        session = net.create_session({"allocator": allocator})
        session.inputs["x"].copy_from(x)
        net.run_session(session)
        results.append(session.outputs["y"].copy_to())
        used[allocator] = session.core.memory()
    np.testing.assert_array_equal(*results)
    assert used["DEFER"].activations == used["DEFER"].lower_bound
    assert used["EAGER"].activations > used["DEFER"].activations


def test_levels_as_mnn_writes_them(tmp_path: Any) -> None:
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
