"""device="fastest": the measurements, the choice, the remembered choice, and equal results."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import vkmnn
import vkmnn.opening.fastest
from tests.onnxruntime_oracle import open_oracle
from vkmnn.cli.app import app
from vkmnn.core import fastest
from vkmnn.errors import HostError
from vkmnn.ir import Array

RNG = np.random.default_rng(3)
W = RNG.standard_normal((8, 4)).astype(np.float32)
X = RNG.standard_normal((3, 8)).astype(np.float32)
NAMES = ["VULKAN", "CPU", "onnxruntime"]


def model(rows: int | str = "N", op: str = "Tanh", width: int = 4) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node(op, ["m"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "small",
        [value("x", TensorProto.FLOAT, [rows, 8])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.resize(W, (8, width)), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Clock:
    """Returns how long each takes, in the order in which they are measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, best: str) -> None:
        self.measured = 0
        self.order = [1.0 if name == best else 5.0 for name in NAMES]
        monkeypatch.setattr(fastest, "_time", self.time)

    def time(self, run: Any) -> float:
        run()
        self.measured += 1
        return self.order[(self.measured - 1) % len(self.order)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VKMNN_DEVICE", raising=False)
    return tmp_path


def expected(proto: onnx.ModelProto, x: Array) -> Array:
    (y,) = open_oracle(proto).run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("best", NAMES)
def test_the_fastest_runs_and_is_remembered(monkeypatch: pytest.MonkeyPatch, best: str) -> None:
    """Once for each shape: neither another run nor another session measures again."""
    clock = Clock(monkeypatch, best)
    for _ in range(2):
        with vkmnn.InferenceSession(model(), device="fastest") as session:
            for rows in (3, 3, 2):
                (y,) = session.run(None, {"x": X[:rows]})
                np.testing.assert_allclose(y, expected(model(), X[:rows]), rtol=1e-5, atol=1e-6)
            placed = session.placement()
            assert {op.backend for op in placed} == {best}
            assert placed.note.startswith(f"fastest: {best} 1 ms")
            assert placed.note in str(placed)
            assert all(f"{name} 5 ms" in placed.note for name in NAMES if name != best)
        assert clock.measured == 6


@pytest.mark.parametrize("best", ["CPU", "onnxruntime"])
def test_the_device_runs_what_the_fastest_no_longer_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, best: str
) -> None:
    """What was measured in another process may fail in this one; bad inputs fail everywhere."""
    Clock(monkeypatch, best)
    with vkmnn.InferenceSession(model(), device="fastest") as session:
        session.run(None, {"x": X})

    def refused(*_arguments: Any) -> Any:
        raise HostError("it has changed")

    monkeypatch.setattr(vkmnn.opening.fastest, "_session_on_cpu", refused)
    with vkmnn.InferenceSession(model(), device="fastest") as session:
        for _ in range(2):
            (y,) = session.run(None, {"x": X})
            np.testing.assert_allclose(y, expected(model(), X), rtol=1e-5, atol=1e-6)
        placed = session.placement()
    assert {op.backend for op in placed} == {"VULKAN"}
    assert f"{best}: it has changed" in placed.note
    told = [one for one in caplog.messages if "failed, the device runs the network" in one]
    assert told == [f"{best} failed, the device runs the network: it has changed"]


@pytest.mark.parametrize("best", NAMES)
def test_every_way_to_run(monkeypatch: pytest.MonkeyPatch, best: str) -> None:
    """Submitted runs use the same choice; tensors bound to the device stay there."""
    Clock(monkeypatch, best)
    y = expected(model(), X)
    with vkmnn.InferenceSession(model(), device="fastest") as session:
        for _ in range(2):
            (made,) = session.submit({"x": X}).result()
            np.testing.assert_allclose(made, y, rtol=1e-5, atol=1e-6)
        (kept,) = session.run_on_device(None, {"x": X})
        np.testing.assert_allclose(np.asarray(kept), y, rtol=1e-5, atol=1e-6)
        assert session.profile({"x": X}, 1).wall_us > 0
        assert {op.backend for op in session.placement()} == {best}


def test_indices_out_of_range_are_skipped_whatever_is_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch, "onnxruntime")
    value = helper.make_tensor_value_info
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    inputs = [value("x", TensorProto.FLOAT, [3, 8]), value("i", TensorProto.INT64, [2])]
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, [2, 8])])
    opset = helper.make_opsetid("", 17)
    proto = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    with vkmnn.Interpreter(proto) as net:
        session = net.create_session({"device": "fastest", "out_of_range": "skip"})
        for last, row in ((1, X[1]), (7, np.zeros(8, np.float32))):
            y = session.run({"x": X, "i": np.array([2, last])})["y"]
            np.testing.assert_array_equal(y, np.stack([X[2], row]))


@pytest.mark.parametrize("best", NAMES)
def test_a_released_model_is_gone_and_still_runs(
    monkeypatch: pytest.MonkeyPatch, best: str
) -> None:
    Clock(monkeypatch, best)
    with vkmnn.InferenceSession(model(), device="fastest") as session:
        (y,) = session.run(None, {"x": X})
        core = session._session.core
        assert isinstance(core, fastest.FastestSession)
        candidates = [weakref.ref(one.open) for one in core._candidates.values()]
        session.release_model()
        gc.collect()
        assert len(candidates) == 2
        assert not any(one() for one in candidates)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], y, rtol=1e-5, atol=1e-6)
        assert {op.backend for op in session.placement()} == {best}


def test_static_shapes_and_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, "onnxruntime")
    path = tmp_path / "small.onnx"
    onnx.save(model(3), path)
    with vkmnn.load(path, device="fastest") as loaded:
        np.testing.assert_allclose(loaded(X), expected(model(3), X), rtol=1e-5, atol=1e-6)
    with vkmnn.Interpreter(path) as net:
        session = net.create_session(vkmnn.ScheduleConfig(device="fastest"))
        net.get_session_input(session).copy_from(X)
        net.run_session(session)
        y = net.get_session_output(session).copy_to()
    np.testing.assert_allclose(y, expected(model(3), X), rtol=1e-5, atol=1e-6)
    assert clock.measured == 3


@pytest.mark.parametrize("best", NAMES)
def test_an_output_that_is_listed_twice(monkeypatch: pytest.MonkeyPatch, best: str) -> None:
    """Both are there, by the names of the session, and neither is a part of the other."""
    Clock(monkeypatch, best)
    proto = model()
    proto.graph.output.append(proto.graph.output[0])
    with vkmnn.InferenceSession(proto, device="fastest") as session:
        for _ in range(2):
            one, other = session.run(None, {"x": X})
            assert not np.shares_memory(one, other)
            for y in (one, other):
                np.testing.assert_allclose(y, expected(model(), X), rtol=1e-5, atol=1e-6)
        assert {op.backend for op in session.placement()} == {best}


@pytest.mark.parametrize("best", NAMES)
def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, best: str) -> None:
    Clock(monkeypatch, best)
    path = tmp_path / "small.onnx"
    onnx.save(model(3), path)
    done = CliRunner().invoke(app, ["run", str(path), "-d", "fastest"])
    assert done.exit_code == 0, done.output
    assert f"fastest: {best} 1 ms" in " ".join(done.output.split())


def test_words_for_devices_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("CPU", " Cpu "):
        with vkmnn.InferenceSession(model(), device=word) as session:
            assert session.device.name.startswith("CPU")
        monkeypatch.setenv("VKMNN_DEVICE", word)
        with vkmnn.InferenceSession(model(), device="AUTO") as session:
            assert session.device.name.startswith("CPU")
        monkeypatch.delenv("VKMNN_DEVICE")
    assert vkmnn.opening.is_fastest(vkmnn.ScheduleConfig(device="Fastest"))
    monkeypatch.setenv("VKMNN_DEVICE", "FASTEST")
    assert vkmnn.opening.is_fastest(vkmnn.ScheduleConfig(device="Auto"))
    assert not vkmnn.opening.is_fastest(vkmnn.ScheduleConfig(device="cpu"))


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_DEVICE", "fastest")
    Clock(monkeypatch, "CPU")
    with vkmnn.InferenceSession(model()) as session:
        session.run(None, {"x": X})
        assert {op.backend for op in session.placement()} == {"CPU"}


@pytest.mark.parametrize("what", ["other weights", "another shape", "another network"])
def test_what_a_measurement_is_for(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Weights do not affect how long a run takes; everything else does."""
    clock = Clock(monkeypatch, "CPU")
    other = {
        "other weights": model(),
        "another shape": model(),
        "another network": model(op="Sigmoid"),
    }[what]
    if what == "other weights":
        other.graph.initializer[0].CopyFrom(numpy_helper.from_array(W * 2, "w"))
    for proto, rows in ((model(), 3), (other, 2 if what == "another shape" else 3)):
        with vkmnn.InferenceSession(proto, device="fastest") as session:
            (y,) = session.run(None, {"x": X[:rows]})
            np.testing.assert_allclose(y, expected(proto, X[:rows]), rtol=1e-5, atol=1e-6)
    assert clock.measured == (3 if what == "other weights" else 6)


# --- what is not measured ------------------------------------------------------------------------


def test_only_the_device_where_that_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, "CPU")
    with vkmnn.InferenceSession(model(), device="fastest", require_device=True) as session:
        session.run(None, {"x": X})
        assert {op.backend for op in session.placement()} == {"VULKAN"}
    assert clock.measured == 1


@pytest.mark.parametrize("how", ["environment", "unsupported"])
def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    options: dict[str, Any] = {}
    if how == "environment":
        monkeypatch.setenv("VKMNN_HOST_ENGINE", "onnx")
    else:
        options["unsupported"] = "raise"
    clock = Clock(monkeypatch, "onnxruntime")
    with vkmnn.InferenceSession(model(), device="fastest", **options) as session:
        session.run(None, {"x": X})
        assert "onnxruntime" not in session.placement().note
    assert clock.measured == 2


def test_large_networks_are_not_tried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "MAX_FLOPS", 100.0)
    clock = Clock(monkeypatch, "CPU")
    with vkmnn.InferenceSession(model(), device="fastest") as session:
        session.run(None, {"x": X})
        assert "CPU: not tried, as the network is large" in session.placement().note
    assert clock.measured == 1


def test_other_results_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers, say, or a file that is another one by now."""
    Clock(monkeypatch, "CPU")
    real = fastest._alike
    calls: list[None] = []

    def alike(*arguments: Any) -> bool:
        calls.append(None)
        return real(*arguments) and len(calls) > 1

    monkeypatch.setattr(fastest, "_alike", alike)
    with vkmnn.InferenceSession(model(), device="fastest") as session:
        session.run(None, {"x": X})
        assert "CPU: its results differ" in session.placement().note
        assert {op.backend for op in session.placement()} != {"CPU"}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"name": "CPU", "ms": 3}', b"[1]", b"\xff"])
def test_damaged_measurements_are_made_again(
    monkeypatch: pytest.MonkeyPatch, cache: Path, content: bytes
) -> None:
    clock = Clock(monkeypatch, "CPU")
    for _ in range(2):
        with vkmnn.InferenceSession(model(), device="fastest") as session:
            session.run(None, {"x": X})
        (kept,) = (cache / "fastest").iterdir()
        kept.write_bytes(content)
    assert clock.measured == 6


# --- "auto" --------------------------------------------------------------------------------------


def test_software_devices_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vkmnn.opening.fastest, "_said", set())
    with caplog.at_level(logging.INFO, "vkmnn.opening"):
        sessions = [vkmnn.InferenceSession(model()) for _ in range(2)]
    software = sessions[0].device.type.value == "cpu"
    for session in sessions:
        session.close()
    said = [one for one in caplog.messages if 'device="fastest"' in one]
    assert len(said) == int(software)
