"""Initialisers that are graph inputs too: every face takes another value for one, or leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
import vkmnn.onnxruntime
from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession, Interpreter, InvalidInputError, ModelError, onnx_backend
from vkmnn.opening.overridable import MAX_SESSIONS

X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
B = np.array([3, -4, 5], np.float32)
Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], Any]


def on_device(session: InferenceSession) -> Run:
    return lambda feeds: [np.array(one) for one in session.run_on_device(None, feeds)]


def bound(session: InferenceSession) -> Run:
    def run(feeds: Feeds) -> list[np.ndarray]:
        one = session.bind(feeds)
        one()
        return [np.array(tensor) for tensor in one.outputs.values()]

    return run


def by_constants(path: str) -> Run:
    """MNN has no inputs with default values: its sessions change constants."""
    net = Interpreter(path)
    session = net.create_session()

    def run(feeds: Feeds) -> list[np.ndarray]:
        for name, array in feeds.items():
            if name == "x":
                tensor = net.get_session_input(session, name)
                net.resize_tensor(session, tensor, array.shape)
                tensor.copy_from(array)
            else:
                net.get_session_constant(session, name).copy_from(array)
        net.resize_session(session)
        net.get_session_input(session, "x").copy_from(feeds["x"])
        net.run_session(session)
        return [np.array(session.outputs[name].array) for name in ("y", "z")]

    return run


FACES: dict[str, Callable[[str], Run]] = {
    "run": lambda path: lambda feeds: InferenceSession(path).run(None, feeds),
    "submit": lambda path: lambda feeds: InferenceSession(path).submit(feeds).result(),
    "run_on_device": lambda path: on_device(InferenceSession(path)),
    "bind": lambda path: bound(InferenceSession(path)),
    "another": lambda path: lambda feeds: InferenceSession(path).another().run(None, feeds),
    "load": lambda path: vkmnn.load(path),
    "onnx_backend": lambda path: onnx_backend.prepare(onnx.load(path)).run,
    "onnxruntime": lambda path: (
        lambda feeds: vkmnn.onnxruntime.InferenceSession(path).run(None, feeds)
    ),
    "numpy": lambda path: lambda feeds: InferenceSession(path, device="cpu").run(None, feeds),
    "Interpreter": by_constants,
}


@pytest.mark.parametrize("face", FACES)
def test_another_value_for_one_run(face: str, dense: Path) -> None:
    run = FACES[face](str(dense))
    oracle = open_oracle(dense)
    all_feeds: list[dict[str, np.ndarray]] = [{"x": X}, {"x": X, "b": B}, {"x": X, "b": -B}]
    if face != "Interpreter":  # where a constant stays as it is until it changes again
        all_feeds.append({"x": X})
    for feeds in all_feeds:
        for result, want in zip(run(feeds), oracle.run(None, feeds), strict=True):
            np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


def test_they_are_listed_and_checked(dense: Path) -> None:
    with InferenceSession(dense) as session:
        assert [arg.name for arg in session.get_inputs()] == ["x"]
        (arg,) = session.get_overridable_initializers()
        assert (arg.name, arg.type, arg.shape) == ("b", "tensor(float)", [3])
        with pytest.raises(InvalidInputError, match="'b' has shape"):
            session.run(None, {"x": X, "b": B[:2]})
        session.prepare([{"x": X.shape, "b": B.shape}])
        assert session.tensor("b").shape == (3,)


def test_after_the_model_has_gone(dense: Path, tmp_path: Path) -> None:
    """Values that have been fed before may change; another set of them needs the model."""
    path = Path(copyfile(dense, tmp_path / "model.onnx"))
    with InferenceSession(path) as session, InferenceSession(path) as other:
        y, _ = session.run(None, {"x": X, "b": B})
        session.release_model()
        again, _ = session.run(None, {"x": X, "b": 2 * B})
        np.testing.assert_allclose(again - y, np.broadcast_to(B, y.shape), rtol=1e-5)
        path.write_bytes(path.read_bytes() + b"\0")
        with pytest.raises(ModelError, match="has changed"):
            other.run(None, {"x": X, "b": B})
        other.run(None, {"x": X})
        other.release_model()
        with pytest.raises(InvalidInputError, match="released"):
            other.run(None, {"x": X, "b": B})


@pytest.mark.parametrize("names", [(), ("b",)])
def test_a_closed_session_stays_closed(names: tuple[str, ...], dense: Path) -> None:
    """A value that has not been fed before does not open the model again."""
    session = InferenceSession(dense)
    session.run(None, {"x": X})
    session.close()
    with pytest.raises(InvalidInputError, match="closed"):
        session.run(None, {"x": X, **dict.fromkeys(names, B)})


def test_sessions_that_are_kept(tmp_path: Path) -> None:
    """With n such inputs there are 2ⁿ subsets, of which few stay open."""
    names = [f"d{i}" for i in range(4)]
    nodes = [
        onnx.helper.make_node("Add", [left, right], [made])
        for left, right, made in zip(
            ("x", "a0", "a1", "a2"), names, ("a0", "a1", "a2", "y"), strict=True
        )
    ]
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        for name in ("x", *names, "y")
    ]
    ones = [onnx.numpy_helper.from_array(np.ones(1, np.float32), name) for name in names]
    graph = onnx.helper.make_graph(nodes, "sum", values[:-1], values[-1:], ones)
    with InferenceSession(onnx.helper.make_model(graph), "cpu") as session:
        for which in [*range(16), *range(16)]:
            fed = {
                name: np.full(1, 10, np.float32) for i, name in enumerate(names) if which >> i & 1
            }
            (y,) = session.run(None, {"x": np.zeros(1, np.float32), **fed})
            assert y == 4 + 9 * len(fed)
        assert len(session._overridable.open_sessions()) <= MAX_SESSIONS
