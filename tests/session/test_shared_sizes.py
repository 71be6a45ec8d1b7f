"""Inputs whose sizes have one name and differ all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import vkmnn
from tests.session.models import model, value
from vkmnn.core.shared_sizes import SharedSizes
from vkmnn.ir import Graph, TensorInfo
from vkmnn.ir.dtype import DType
from vkmnn.opening.saving import convert
from vkmnn.runtime.device import enumerate_devices

MISMATCH = "'N' is 5 in input 'a' but 1 in input 'b'"


@pytest.fixture(params=["cpu", "auto"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both kinds of device."""
    if request.param == "auto" and not enumerate_devices():
        pytest.skip("no Vulkan device")
    return request.param


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


W = floats(3, 3, seed=7)


def product_and_sum() -> onnx.ModelProto:
    """a · W + b, which is one op if b has the shape of a: the names show that."""
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    inputs = [value("a", ["N", 3]), value("b", ["N", 3])]
    return model(
        nodes, inputs, [value("y", ["N", 3])], initializers=[numpy_helper.from_array(W, "w")]
    )


def expected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ W + b


def close(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected(a, b), rtol=1e-5, atol=1e-5)


def test_the_names_matter(device: str) -> None:
    # Otherwise what is below would say little: by the names, b is added by the product's kernel.
    session = vkmnn.InferenceSession(product_and_sum(), device)
    session.run(None, {"a": floats(5, 3), "b": floats(5, 3)})
    assert len(session.placement().ops) == 1


def test_sizes_that_differ(device: str, caplog: pytest.LogCaptureFixture) -> None:
    session = vkmnn.InferenceSession(product_and_sum(), device)
    for rows in ((5, 5), (5, 1), (1, 5), (5, 5), (2, 2), (3, 1)):
        a, b = floats(rows[0], 3), floats(rows[1], 3, seed=1)
        with caplog.at_level(logging.WARNING, "vkmnn"):
            (y,) = session.run(None, {"a": a, "b": b})
        close(y, a, b)
    warnings = [record.getMessage() for record in caplog.records if "names" in record.getMessage()]
    assert len(warnings) == 1
    assert MISMATCH in warnings[0]
    session.close()


def test_sizes_that_cannot_be(device: str) -> None:
    session = vkmnn.InferenceSession(product_and_sum(), device)
    with pytest.raises(vkmnn.ShapeError):
        session.run(None, {"a": floats(5, 3), "b": floats(4, 3)})
    a = floats(5, 3)
    (y,) = session.run(None, {"a": a, "b": a})
    close(y, a, a)


def test_every_way_of_running(device: str) -> None:
    a, b = floats(5, 3), floats(1, 3, seed=1)
    feeds = {"a": a, "b": b}

    def opened() -> vkmnn.InferenceSession:
        return vkmnn.InferenceSession(product_and_sum(), device)

    close(opened().submit(feeds).result()[0], a, b)
    close(vkmnn.load(product_and_sum(), device=device)(a, b), a, b)
    session = opened()
    session.prepare([{"a": (5, 3), "b": (1, 3)}])
    before = session.counters()["plans"]
    close(session.run(None, feeds)[0], a, b)
    assert session.counters()["plans"] == before
    close(session.another().run(None, feeds)[0], a, b)
    if device != "cpu":
        close(opened().run_on_device(None, feeds)[0].numpy(), a, b)
        bound = opened().bind(feeds)
        bound()
        close(bound.outputs["y"].numpy(), a, b)


def test_the_other_faces(device: str) -> None:
    a, b = floats(5, 3), floats(1, 3, seed=1)
    interpreter = vkmnn.Interpreter.from_model(product_and_sum())
    session = interpreter.create_session(vkmnn.ScheduleConfig(device))
    for name, rows in (("a", 5), ("b", 1)):
        interpreter.resize_tensor(session, interpreter.get_session_input(session, name), (rows, 3))
    interpreter.resize_session(session)
    close(session.run({"a": a, "b": b})["y"], a, b)


def test_a_bound_run_of_before_goes_on() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    session = vkmnn.InferenceSession(product_and_sum())
    a, b = floats(5, 3), floats(1, 3, seed=1)
    bound = session.bind({"a": a, "b": a})
    close(session.run(None, {"a": a, "b": b})[0], a, b)
    bound()
    close(bound.outputs["y"].numpy(), a, a)
    session.close()


def test_one_input_that_contradicts_itself(device: str) -> None:
    node = helper.make_node("MatMul", ["a", "w"], ["y"])
    proto = model(
        [node],
        [value("a", ["N", "N"])],
        [value("y", ["N", 3])],
        initializers=[numpy_helper.from_array(W, "w")],
    )
    a = floats(4, 3)
    (y,) = vkmnn.InferenceSession(proto, device).run(None, {"a": a})
    np.testing.assert_allclose(y, a @ W, rtol=1e-5, atol=1e-5)


def test_a_file_that_holds_what_the_passes_made(device: str, tmp_path: Path) -> None:
    path = tmp_path / "net.vkmnn"
    convert(product_and_sum(), path)
    session = vkmnn.InferenceSession(path, device)
    with pytest.raises(vkmnn.InvalidInputError, match=MISMATCH):
        session.run(None, {"a": floats(5, 3), "b": floats(1, 3)})
    (y,) = session.run(None, {"a": floats(5, 3), "b": floats(5, 3)})
    close(y, floats(5, 3), floats(5, 3))


def test_a_released_model(device: str) -> None:
    session = vkmnn.InferenceSession(product_and_sum(), device)
    session.run(None, {"a": floats(5, 3), "b": floats(5, 3)})
    session.release_model()
    with pytest.raises(vkmnn.InvalidInputError, match=MISMATCH):
        session.run(None, {"a": floats(5, 3), "b": floats(1, 3)})


def test_names_that_are_forgotten() -> None:
    f32 = DType.FLOAT32
    graph = Graph(
        "g",
        [
            TensorInfo("a", f32, ("N", "M", 3)),
            TensorInfo("b", f32, ("N", "K")),
            TensorInfo("c", f32, None),
        ],
        [TensorInfo("y", f32, ("N", "M"))],
        infos={"t": TensorInfo("t", f32, ("2*N", "K", 4))},
    )
    shared = SharedSizes(graph.inputs)
    assert shared
    found = shared.told_apart(graph)
    assert [info.shape for info in found.inputs] == [(None, "M", 3), (None, "K"), None]
    assert found.outputs[0].shape == (None, None)
    assert found.infos["t"].shape == (None, None, 4)
    assert not SharedSizes(found.inputs)
