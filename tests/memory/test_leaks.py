"""Sessions release their resources: device objects and host memory."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn import onnxruntime
from vkmnn.ir import Graph
from vkmnn.runtime.device import enumerate_devices, open_device

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"

pytestmark = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")


def images(count: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(0).random((count, 1, 8, 8), dtype=np.float32)}


@pytest.fixture(scope="module", autouse=True)
def _layouts() -> None:
    """Let every kernel create its layout, which the device keeps, before anything is counted."""
    with vkmnn.InferenceSession(DIGITS) as session:
        for count in range(1, 8):
            session.run(None, images(count))


def live() -> dict[str, int]:
    """Return the device's live objects, except pipelines: those are kept for the next session."""
    gc.collect()
    counts = open_device("auto").stats()
    return {name: count for name, count in counts.items() if "pipeline" not in name}


def test_a_closed_session_leaves_no_device_objects() -> None:
    counts = (1, 2, 5)
    before = live()
    for count in counts:
        with vkmnn.InferenceSession(DIGITS) as session:
            session.run(None, images(count))
            session.run(None, images(count + 1))
            assert live().get("buffers", 0) > before.get("buffers", 0)
        assert live() == before


def test_a_forgotten_session_leaves_no_device_objects() -> None:
    before = live()
    session = vkmnn.InferenceSession(DIGITS)
    session.run(None, images(3))
    del session
    assert live() == before


@pytest.mark.parametrize("face", ["session", "interpreter"])
def test_a_forgotten_session_is_gone_at_once(face: str) -> None:
    before = live()
    gc.disable()
    try:
        if face == "session":
            session = vkmnn.InferenceSession(DIGITS)
            session.run(None, images(3))
            session.profile(images(2), runs=1)
            del session
        else:
            interpreter = vkmnn.Interpreter.from_file(DIGITS)
            made = interpreter.create_session()
            made.run(images(3))
            tensor = interpreter.get_session_output(made)
            del made
            assert tensor.name == "probabilities"
        counts = open_device("auto").stats()
        assert {name: n for name, n in counts.items() if "pipeline" not in name} == before
    finally:
        gc.enable()


def test_an_evicted_plan_leaves_no_device_objects() -> None:
    interpreter = vkmnn.Interpreter.from_file(DIGITS)
    session = interpreter.create_session(vkmnn.ScheduleConfig(max_plans=2))
    sizes = (1, 2, 3, 4, 5)
    for count in sizes:
        session.run(images(count))
    before = live()
    for count in sizes * 2:
        session.run(images(count))
    assert live() == before
    session.close()


def test_a_failed_plan_leaves_no_device_objects() -> None:
    session = vkmnn.InferenceSession(DIGITS)
    session.run(None, images(2))
    before = live()
    for _ in range(3):
        with pytest.raises(vkmnn.InvalidInputError):
            session.run(None, {"image": np.zeros((1, 1, 9, 9), np.float32)})
    assert live() == before
    session.close()


def test_many_runs_and_shapes_do_not_grow_the_process() -> None:
    interpreter = vkmnn.Interpreter.from_file(DIGITS)
    session = interpreter.create_session(vkmnn.ScheduleConfig(max_plans=2))

    def work(rounds: int) -> int:
        for step in range(rounds):
            session.run(images(1 + step % 5))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    first = work(100)
    grown = work(300) - first
    assert grown < 20_000, f"{grown} KiB more after 300 further runs"
    session.close()


@pytest.mark.parametrize("face", [vkmnn.InferenceSession, onnxruntime.InferenceSession])
@pytest.mark.parametrize("rows", ["N", 2])
def test_weights_that_passes_replaced_are_gone_at_once(
    face: Callable[[bytes], object], rows: str | int
) -> None:
    """Nobody waits for the garbage collector: it may take long to come."""
    weights = np.ones((4, 3, 1, 1), np.float32)
    parts = {name: np.ones(4, np.float32) for name in ("gain", "shift", "mean", "variance")}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("BatchNormalization", ["c", *parts], ["y"]),
        ],
        "normed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in {"w": weights, **parts}.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    gc.collect()
    gc.disable()
    try:
        session = face(model)
        found = [one for one in gc.get_objects() if isinstance(one, Graph)]
    finally:
        gc.enable()
    assert session is not None
    sizes = [len(one.ops) for one in found if one.name == "normed"]
    assert sizes
    assert set(sizes) == {1}
