"""Profiles, memory and the public names."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn.core.profile import Profile, ProfileEntry
from vkmnn.core.timeline import Span

ROOT = Path(__file__).resolve().parents[2]
X = np.random.default_rng(3).standard_normal((1, 3, 11, 7)).astype(np.float32)


def convolution_model() -> bytes:
    """y = softmax(conv(x)), and also the convolution's result."""
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((5, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="convolve", pads=[1, 1, 1, 1]),
            helper.make_node("Softmax", ["c"], ["y"], name="normalise", axis=1),
        ],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 11, 7])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("c", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def mixed_model() -> bytes:
    """A float64 op, which the device cannot store, between two that it runs."""
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["a"], name="first"),
            helper.make_node("Cast", ["a"], ["b"], name="widen", to=TensorProto.DOUBLE),
            helper.make_node("Sqrt", ["b"], ["c"], name="wide"),
            helper.make_node("Cast", ["c"], ["d"], name="narrow", to=TensorProto.FLOAT),
            helper.make_node("Relu", ["d"], ["y"], name="last"),
        ],
        "mixed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [13])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [13])],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def need_device() -> None:
    found = vkmnn.devices()
    if not found:
        pytest.skip("no Vulkan device")
    if "timestamps" not in found[0].features:
        pytest.skip("the device has no timestamps")


def test_profile_on_a_device() -> None:
    need_device()
    with vkmnn.InferenceSession(convolution_model(), "0") as session:
        before = session.run(None, {"x": X})
        profile = session.profile({"x": X}, runs=3)
        after = session.run(None, {"x": X})
        placed = {op.name: op.type for op in session.placement()}
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert profile.runs == 3
    assert profile.main == "VULKAN"
    assert {entry.backend for entry in profile} == {"VULKAN"}
    ops = {entry.name: entry.type for entry in profile if entry.type != "Copy"}
    assert ops.items() <= placed.items()
    assert {"Convolution", "Softmax"} <= set(ops.values())
    kernels = [entry.kernel for entry in profile if entry.type == "Convolution"]
    assert kernels[0].startswith("conv")
    assert all(entry.microseconds > 0 for entry in profile)
    assert profile.gpu_us > 0
    assert profile.wall_us > profile.python_us > 0
    assert profile.total_us == pytest.approx(sum(entry.microseconds for entry in profile))


def test_profile_on_numpy() -> None:
    with vkmnn.InferenceSession(convolution_model(), "cpu") as session:
        profile = session.profile({"x": X}, runs=2)
        memory = session.memory()
    assert [entry.type for entry in profile] == ["Convolution", "Softmax"]
    assert {entry.kernel for entry in profile} == {"numpy"}
    assert profile.gpu_us == 0
    assert profile.wall_us >= profile.python_us > 0
    assert (memory.activations, memory.constants, memory.io) == (0, 0, 0)


def test_profile_of_ops_on_both() -> None:
    need_device()
    x = np.linspace(-2, 2, 13, dtype=np.float32)
    with vkmnn.InferenceSession(mixed_model(), "0") as session:
        session.run(None, {"x": x})
        assert session.placement().off_device
        profile = session.profile({"x": x}, runs=2)
    backends = [entry.backend for entry in profile]
    assert backends[0] == backends[-1] == "VULKAN"
    assert "CPU" in backends
    on_device = sum(entry.microseconds for entry in profile if entry.backend == "VULKAN")
    assert profile.gpu_us == pytest.approx(on_device, rel=0.5)
    assert profile.total_us > profile.gpu_us * 0.5
    assert {backend for backend, _, _ in profile.totals("backend")} == {"VULKAN", "CPU"}


def test_a_profile_leaves_nothing_behind() -> None:
    need_device()
    with vkmnn.InferenceSession(convolution_model(), "0") as session:
        session.run(None, {"x": X})
        device = session._session.core._main.device  # type: ignore[attr-defined]
        before = device.stats()
        plans = session._session.core.plan_count
        for _ in range(3):
            session.profile({"x": X}, runs=1)
        assert session._session.core.plan_count == plans
        assert {**device.stats(), "pipelines": 0} == {**before, "pipelines": 0}


def test_a_device_without_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    need_device()
    monkeypatch.setenv("VKMNN_DISABLE_FEATURES", "timestamps")
    with vkmnn.InferenceSession(convolution_model(), "0") as session:
        with pytest.raises(vkmnn.InvalidInputError, match="no timestamps"):
            session.profile({"x": X})
        session.run(None, {"x": X})


def test_memory_of_a_plan() -> None:
    need_device()
    with vkmnn.InferenceSession(convolution_model(), "0") as session:
        session.run(None, {"x": X})
        small = session.memory()
        session.run(None, {"x": np.repeat(X, 4, axis=0)})
        large = session.memory()
    assert small.activations >= small.lower_bound > 0
    assert small.constants >= 5 * 3 * 3 * 3 * 4
    assert small.io >= 2 * 5 * 11 * 7 * 4
    assert large.activations > small.activations
    assert large.io > small.io
    assert large.constants == small.constants


PROFILE = Profile(
    (
        ProfileEntry("a", "Convolution", "node_a", "VULKAN", "conv_x", 30.0, "tuned", 6000, 300),
        ProfileEntry("b", "MatMul", "node_b", "CPU", "numpy", 10.0),
        ProfileEntry("c", "Convolution", "node_c", "VULKAN", "conv_x", 60.0),
    ),
    "VULKAN",
    5,
    90.0,
    130.0,
    30.0,
    (
        Span("Python", "write inputs", 0.0, 4.0),
        Span("submit and wait", "submit", 4.0, 2.0),
        Span("VULKAN", "a", 6.0, 30.0, 0),
        Span("CPU", "b", 40.0, 10.0, 1),
        Span("VULKAN", "c", 51.0, 60.0, 2),
        Span("Python", "read outputs", 111.0, 9.0),
    ),
)


def test_totals_are_sorted() -> None:
    assert PROFILE.totals("type") == [("Convolution", 2, 90.0), ("MatMul", 1, 10.0)]
    assert PROFILE.totals("kernel")[0] == ("conv_x", 2, 90.0)
    assert [name for name, _, _ in PROFILE.totals("name")] == ["c", "a", "b"]


def test_a_profile_prints_as_a_table() -> None:
    lines = str(PROFILE).splitlines()
    assert "median of 5 runs" in lines[0]
    assert [line.split()[5] for line in lines[1:]] == ["Convolution"] * 2 + ["MatMul"]
    assert lines[1].split()[:2] == ["60.0", "%"]
    assert str(Profile((), "CPU", 1, 0.0, 0.0, 0.0)).startswith("0 steps")


def test_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    PROFILE.to_chrome_trace(path)
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(span["name"], span["ts"], span["dur"]) for span in spans] == [
        (span.name, span.start_us, span.microseconds) for span in PROFILE.timeline
    ]
    named = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M"
    }
    places = [
        (named["process_name", span["pid"], 0], named["thread_name", span["pid"], span["tid"]])
        for span in spans
    ]
    assert places == [
        *(("host", "Python"), ("host", "submit and wait"), ("device", "VULKAN")),
        *(("host", "CPU"), ("device", "VULKAN"), ("host", "Python")),
    ]
    assert spans[2]["cat"] == "Convolution"
    assert spans[2]["args"]["kernel"] == "conv_x"


def test_what_the_host_adds() -> None:
    assert PROFILE.host() == {"write inputs": 4.0, "submit": 2.0, "read outputs": 9.0}


@pytest.mark.parametrize("model", ["convolution", "mixed"])
def test_the_timeline_of_a_run(model: str) -> None:
    """Nobody does two things at once, and the device works between submit and end of wait."""
    need_device()
    made, x = {
        "convolution": (convolution_model, X),
        "mixed": (mixed_model, np.linspace(-2, 2, 13, dtype=np.float32)),
    }[model]
    with vkmnn.InferenceSession(made(), "0") as session:
        profile = session.profile({"x": x}, runs=3)
    line = profile.timeline
    assert [span.step for span in line if span.step is not None] == list(
        range(len(profile.entries))
    )
    assert (line[0].name, line[-1].name) == ("write inputs", "read outputs")
    assert line[0].start_us == 0
    for track in {span.track for span in line}:
        of_track = [span for span in line if span.track == track]
        for one, other in pairwise(of_track):
            assert one.end_us <= other.start_us + 1e-3, track
    submits = [span for span in line if span.name == "submit"]
    waits = [span for span in line if span.name == "wait"]
    for span in line:
        if span.track == "VULKAN":
            assert any(
                submit.start_us <= span.start_us and span.end_us <= wait.end_us + 1e-3
                for submit, wait in zip(submits, waits, strict=True)
            )
    assert len(submits) == (2 if model == "mixed" else 1)


def test_operations_and_bytes_of_an_op() -> None:
    with vkmnn.InferenceSession(convolution_model(), "cpu") as session:
        convolution, softmax = session.profile({"x": X}, runs=1)
    pixels = 11 * 7
    assert convolution.flops == 2 * 5 * pixels * 3 * 3 * 3
    assert convolution.nbytes == 4 * (3 * pixels + 5 * 3 * 3 * 3 + 5 * pixels)
    assert softmax.nbytes == 2 * 4 * 5 * pixels


def test_an_op_that_moves_data_reads_what_it_writes() -> None:
    table = numpy_helper.from_array(np.zeros((1000, 3), np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"], name="look_up")],
        "embedding",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 3])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with vkmnn.InferenceSession(model, "cpu") as session:
        (entry,) = session.profile({"x": np.arange(7)}, runs=1)
    assert entry.flops == 0
    assert entry.nbytes == 2 * 7 * 3 * 4


# --- public names ------------------------------------------------------------------------------


def test_every_public_name_is_there() -> None:
    for name in vkmnn.__all__:
        assert getattr(vkmnn, name) is not None
        assert name in dir(vkmnn)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        vkmnn.nonsense  # noqa: B018 - the access is the test


def test_lazy_names_are_the_declared_ones() -> None:
    assert set(vkmnn._LAZY) <= set(vkmnn.__all__)


@pytest.mark.parametrize("module", ["vkmnn", "vkmnn.codegen.__main__", "vkmnn.cli"])
def test_some_modules_leave_the_engine_alone(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "engine = {'vkmnn.interpreter', 'vkmnn.core', 'vkmnn.runtime', 'onnx', 'vulkan'}\n"
        "assert not engine & set(sys.modules), engine & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
