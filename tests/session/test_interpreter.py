"""An interpreter's sessions: their behaviour, their descriptions, and their end."""

from __future__ import annotations

import copy
import gc
import mmap
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import vkmnn
from tests.session.models import model, value
from vkmnn import (
    Interpreter,
    InvalidInputError,
    NetworkPath,
    PathNames,
    ScheduleConfig,
    SessionModes,
    SessionStatus,
)
from vkmnn.core.futures import RunFuture
from vkmnn.interpreter import BackendChoice, Owner, PlanTime, Session, Shapes
from vkmnn.opening.reshaped import MAX_OPENINGS

DEVICES = ["auto", "cpu"] if vkmnn.devices() else ["cpu"]
RNG = np.random.default_rng(7)
WEIGHT = RNG.standard_normal((3, 5)).astype(np.float32)
BIAS = RNG.standard_normal(5).astype(np.float32)
X = RNG.standard_normal((2, 3)).astype(np.float32)


def dense(rows: object = 2) -> onnx.ModelProto:
    """Return y = relu(x · w + b)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["s"], name="bias"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
    ]
    constants = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")]
    return model(nodes, [value("x", [rows, 3])], [value("y", [rows, 5])], constants)


def answer(x: Any = X, weight: Any = WEIGHT) -> Any:
    return np.maximum(x @ weight + BIAS, 0)


def run(net: Interpreter, session: Session, x: Any = X) -> Any:
    session.inputs["x"].copy_from(x)
    net.run_session(session)
    return session.outputs["y"].copy_to()


def close_to(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# --- sessions and their interpreter --------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_it_keeps_its_sessions(device: str) -> None:
    net, other = Interpreter(dense()), Interpreter(dense())
    first, second = (net.create_session({"device": device}) for _ in range(2))
    assert set(net.sessions) == {first, second}
    assert net.get_session_input(first).session is first
    assert second.outputs["y"].session is second
    with pytest.raises(InvalidInputError, match="not one of this interpreter's"):
        other.release_session(first)
    net.release_session(first)
    assert net.sessions == (second,)
    with pytest.raises(InvalidInputError, match="closed"):
        run(net, first)
    with pytest.raises(InvalidInputError, match="already have been released"):
        net.release_session(first)
    close_to(run(net, second), answer())
    with net:
        pass
    assert second.closed
    assert net.sessions == ()


def test_forgotten_sessions_are_not_kept() -> None:
    net = Interpreter(dense())
    session = net.create_session({"device": "cpu"})
    tensor, gone = session.inputs["x"], weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    assert net.sessions == ()
    with pytest.raises(InvalidInputError, match="session of tensor 'x' is gone"):
        _ = tensor.session


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_it_cannot_be_copied(copied: Any) -> None:
    with pytest.raises(TypeError, match="cannot be copied"):
        copied(Interpreter(dense()))


@pytest.mark.parametrize("device", DEVICES)
def test_a_released_model(device: str) -> None:
    net = Interpreter(dense("N"))
    session, unplanned = (net.create_session({"device": device}) for _ in range(2))
    net.resize_tensor(session, session.inputs["x"], (2, 3))
    net.resize_session(session)
    net.release_model()
    close_to(run(net, session), answer())
    net.resize_session(session)  # nothing to do
    net.resize_tensor(session, session.inputs["x"], (4, 3))
    for refused in (
        lambda: net.graph,
        lambda: net.create_session({"device": device}),
        lambda: net.resize_session(session),
        lambda: net.update_session_to_model(session),
        lambda: net.get_session_constant(session, "w"),
        lambda: session.release_cache(),
        lambda: net.run_session_with_callback(session, lambda *_: None, lambda *_: None),
    ):
        with pytest.raises(InvalidInputError, match="released its model"):
            refused()
    net.resize_tensor(unplanned, unplanned.inputs["x"], (2, 3))
    with pytest.raises(InvalidInputError, match="released its model"):
        net.resize_session(unplanned)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", ["N", 2])
def test_a_released_model_and_the_shapes_that_have_plans(device: str, rows: object) -> None:
    """Also where the file fixes the shape, and after a resize that was refused."""
    net = Interpreter(dense(rows))
    session = net.create_session({"device": device})
    x = session.inputs["x"]
    arrays = {count: np.full((count, 3), count, np.float32) for count in (2, 4, 3)}
    for count in arrays:
        net.resize_tensor(session, x, (count, 3))
        net.resize_session(session)
    net.release_model()
    for count in (2, 5, 4, 5, 5, 3, 2):
        net.resize_tensor(session, x, (count, 3))
        if count == 5:
            with pytest.raises(InvalidInputError, match="released its model"):
                net.resize_session(session)
            continue
        net.resize_session(session)
        close_to(run(net, session, arrays[count]), answer(arrays[count]))
    net.resize_tensor(session, x, (2, 3, 3))
    with pytest.raises(InvalidInputError, match="released its model"):
        net.resize_session(session)


def released(device: str) -> tuple[Any, Interpreter, Session]:
    net = Interpreter(dense())
    session = net.create_session({"device": device})
    weight = weakref.ref(net.graph.constants["w"])
    net.release_model()
    gc.collect()
    return weight, net, session


def test_a_released_model_and_shapes_that_follow_from_data() -> None:
    """Other data would take another plan: the run is refused, and the earlier data still run."""
    proto = model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [value("x", [2, 3]), value("shape", [2], onnx.TensorProto.INT64)],
        [value("y", ["A", "B"])],
    )
    net = Interpreter(proto)
    session = net.create_session({"device": "cpu"})
    shape = session.inputs["shape"]
    shape.copy_from(np.array([3, 2]))
    net.resize_session(session)
    net.release_model()
    assert run(net, session).shape == (3, 2)
    shape.copy_from(np.array([6, 1]))
    with pytest.raises(InvalidInputError, match="has released its model, and has no plan"):
        run(net, session)
    shape.copy_from(np.array([3, 2]))
    assert run(net, session).shape == (3, 2)


@pytest.mark.skipif(len(DEVICES) == 1, reason="no Vulkan device")
def test_a_released_model_is_gone() -> None:
    """What is on the device need not be in the host's memory as well."""
    weight, net, session = released("auto")
    assert weight() is None
    close_to(run(net, session), answer())
    assert net.session_info(session).flops > 0
    assert len(session.placement().ops) == 1


def test_numpy_keeps_what_it_computes_with() -> None:
    weight, net, session = released("cpu")
    assert weight() is not None
    close_to(run(net, session), answer())
    session.close()
    del session
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_passes_fuse_away_are_kept(device: str) -> None:
    net = Interpreter(dense())
    session = net.create_session(ScheduleConfig(device, save_tensors=("p", "s")))
    close_to(run(net, session), answer())
    close_to(session.outputs["p"].copy_to(), X @ WEIGHT)
    close_to(session.outputs["s"].copy_to(), X @ WEIGHT + BIAS)
    with pytest.raises(InvalidInputError, match="no tensor 'q'"):
        net.create_session(ScheduleConfig(device, save_tensors=("p", "q")))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "mmap"])
def test_models_in_buffers(kind: Any, tmp_path: Path) -> None:
    data = dense().SerializeToString()
    if kind == "mmap":
        (tmp_path / "m").write_bytes(data)
        with (tmp_path / "m").open("rb") as file:
            buffer: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        buffer = kind(data)
    net = Interpreter.from_buffer(buffer)
    close_to(run(net, net.create_session({"device": "cpu"})), answer())
    with pytest.raises(InvalidInputError, match="a str is not a buffer"):
        Interpreter.from_buffer("dense.onnx")  # type: ignore[arg-type]


# --- runs that nobody waits for ------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parts", [1, 2])
def test_runs_that_are_submitted(device: str, parts: int) -> None:
    net = Interpreter(dense())
    names = (("x", "s"), ("s", "y"))
    paths = [NetworkPath((first,), (last,), PathNames.TENSOR) for first, last in names]
    one = ScheduleConfig(device)
    session = net.create_session([replace(one, path=p) for p in paths] if parts == 2 else one)
    net.resize_session(session)
    futures = []
    for factor in range(1, 6):
        session.inputs["x"].copy_from(factor * X)  # runs have what was there when they began
        futures.append(net.submit(session))
    close_to(session.outputs["y"].copy_to(), answer(5 * X))
    assert all(future.done() for future in futures)
    session.inputs["x"].copy_from(-X)
    net.run_session(session, sync=False)
    net.sync(session)
    close_to(session.outputs["y"].copy_to(), answer(-X))
    seen: list[str] = []
    net.run_session_with_callback(
        session, lambda call, _: seen.append(call.name), lambda *_: None, sync=False
    )
    session.sync()
    assert seen
    close_to(session.outputs["y"].copy_to(), answer(-X))


@pytest.mark.parametrize("device", DEVICES)
def test_errors_of_runs_that_were_submitted(device: str) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=0)
    index = value("i", [1], onnx.TensorProto.INT64)
    net = Interpreter(model([node], [value("x", [2, 3]), index], [value("y", [1, 3])]))
    session = net.create_session({"device": device})
    net.resize_session(session)
    session.inputs["x"].copy_from(X)
    with pytest.raises(InvalidInputError, match="'i' has no data"):
        session.submit()
    session.inputs["i"].copy_from(np.array([7]))
    net.run_session(session, sync=False)
    with pytest.raises(InvalidInputError, match="7"):
        net.sync(session)
    net.sync(session)  # said once
    failed = session.submit()
    with pytest.raises(InvalidInputError, match="7"):
        failed.result(60)
    with pytest.raises(InvalidInputError, match="7"):
        session.outputs["y"].copy_to()
    session.inputs["i"].copy_from(np.array([1]))
    session.submit()
    close_to(session.outputs["y"].copy_to(), X[1:])
    session.close()
    with pytest.raises(InvalidInputError, match="closed"):
        session.submit()


@pytest.mark.parametrize("device", DEVICES)
def test_runs_that_were_cancelled(device: str) -> None:
    net = Interpreter(dense())
    session = net.create_session({"device": device})
    net.resize_session(session)
    session.inputs["x"].copy_from(X)
    for _ in range(2):
        taken_back: RunFuture[None] = RunFuture()
        assert taken_back.cancel()  # runs of a small network are over before they can be
        session._submitted(taken_back)
        session.submit()
        close_to(session.outputs["y"].copy_to(), answer(X))


@pytest.mark.parametrize("make", [Interpreter, Interpreter.from_file, Interpreter.from_model])
def test_every_way_to_load_takes_the_same_arguments(make: Any, tmp_path: Path) -> None:
    onnx.save(dense(), tmp_path / "dense.onnx")
    make(tmp_path / "dense.onnx", unsupported="raise").close()
    with pytest.raises(InvalidInputError, match="perhaps"):
        make(tmp_path / "dense.onnx", unsupported="perhaps")
    with pytest.raises(InvalidInputError, match="perhaps"):
        Interpreter.from_buffer(dense().SerializeToString(), unsupported="perhaps")  # type: ignore[arg-type]


@pytest.mark.parametrize("names", ["y", 5])
def test_names_of_tensors_are_a_list(names: Any) -> None:
    for key in ("saveTensors", "save_tensors"):
        with pytest.raises(InvalidInputError, match=f"{key} is"):
            ScheduleConfig.from_mapping({key: names})
        assert ScheduleConfig.from_mapping({key: None}).save_tensors == ()


# --- shapes that the file excludes ---------------------------------------------------------------


def forms(folder: Path) -> dict[str, Any]:
    """Return a model of a fixed shape in every form that is loaded."""
    onnx.save(dense(), folder / "dense.onnx")
    vkmnn.convert(folder / "dense.onnx", folder / "dense.vkmnn")
    return {
        "path": folder / "dense.onnx",
        "bytes": dense().SerializeToString(),
        "proto": dense(),
        "graph": Interpreter(dense()).graph,
        "native": folder / "dense.vkmnn",
        "native bytes": (folder / "dense.vkmnn").read_bytes(),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["path", "bytes", "proto", "graph", "native", "native bytes"])
def test_an_input_of_a_fixed_shape_takes_another(device: str, form: str, tmp_path: Path) -> None:
    net = Interpreter(forms(tmp_path)[form])
    session = net.create_session({"device": device})
    for shape in ((7, 3), (2, 3), (4, 2, 3), (3,), (1, 3), (2, 3)):
        net.resize_tensor(session, session.inputs["x"], shape)
        net.resize_session(session)
        x = RNG.standard_normal(shape).astype(np.float32)
        assert session.outputs["y"].shape == (*shape[:-1], 5)
        close_to(run(net, session, x), answer(x))
    net.resize_tensor(session, session.inputs["x"], (2, 4))
    with pytest.raises(vkmnn.ShapeError, match="MatMul"):
        net.resize_session(session)
    net.resize_tensor(session, session.inputs["x"], (2, 3))
    net.resize_session(session)
    close_to(run(net, session), answer())


@pytest.mark.skipif(len(DEVICES) == 1, reason="no Vulkan device")
def test_weights_are_on_the_device_once_for_all_shapes() -> None:
    net = Interpreter(dense())
    session = net.create_session()
    graph = session.core.graph
    net.resize_tensor(session, session.inputs["x"], (7, 3))
    net.resize_session(session)
    assert session.core.graph is not graph
    known = session.core.graph.constants.keys() & graph.constants.keys()
    assert "w" in known
    assert all(session.core.graph.constants[name] is graph.constants[name] for name in known)


def test_many_ranks_keep_few_sessions_open() -> None:
    """Every rank is another reading of the file; the oldest readings are closed."""
    net = Interpreter(dense())
    session = net.create_session({"device": "cpu"})
    for _ in range(2):
        for rank in range(1, 9):
            x = np.ones((*(1,) * (rank - 1), 3), np.float32)
            net.resize_tensor(session, session.inputs["x"], x.shape)
            net.resize_session(session)
            close_to(run(net, session, x), answer(x))
    assert len(session._openings._all) == MAX_OPENINGS
    with session:
        pass
    assert all(one.core.closed for one in session._openings._all)


def test_another_shape_and_the_modes_of_the_session() -> None:
    net = Interpreter(dense())
    session = net.create_session({"device": "cpu"}, SessionModes(passes=False))
    net.get_session_constant(session, "w").copy_from(2 * WEIGHT)
    net.resize_tensor(session, session.inputs["x"], (1, 3))
    net.resize_session(session)
    close_to(run(net, session, X[:1]), answer(X[:1], 2 * WEIGHT))
    assert len(session.placement().ops) == 3
    net.update_session_to_model(session)
    other = net.create_session({"device": "cpu"})
    net.resize_tensor(other, other.inputs["x"], (1, 3))
    net.resize_session(other)
    close_to(run(net, other, X[:1]), answer(X[:1], 2 * WEIGHT))


def test_a_file_that_was_replaced_is_not_read_for_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "dense.onnx"
    onnx.save(dense(), path)
    net = Interpreter(path)
    session = net.create_session({"device": "cpu"})
    onnx.save(dense("N"), path)
    net.resize_tensor(session, session.inputs["x"], (7, 3))
    with pytest.raises(InvalidInputError, match="has changed since it was loaded"):
        net.resize_session(session)
    net.resize_tensor(session, session.inputs["x"], (2, 3))
    net.resize_session(session)
    close_to(run(net, session), answer())


@pytest.mark.parametrize("device", DEVICES)
def test_input_shapes_of_a_session(device: str) -> None:
    x = np.ones((7, 3), np.float32)
    session = vkmnn.InferenceSession(dense(), device, input_shapes={"x": ("rows", 3)})
    assert session.get_inputs()[0].shape == ["rows", 3]
    close_to(session.run(None, {"x": x})[0], answer(x))
    fixed = vkmnn.InferenceSession(dense("N"), device, input_shapes={"x": (2, 3)})
    assert fixed.get_outputs()[0].shape == [2, 5]
    for shapes, text in (
        ({"q": (1,)}, "no input 'q'"),
        ({"x": (-1, 3)}, "input_shapes"),
        ({"x": (1.5, 3)}, "input_shapes"),
        ([2, 3], "input_shapes"),
        ({"x": 3}, "input_shapes"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            vkmnn.InferenceSession(dense(), device, input_shapes=shapes)  # type: ignore[arg-type]


# --- modes ---------------------------------------------------------------------------------------


def test_planned_at_once_or_later() -> None:
    net = Interpreter(dense())
    assert net.create_session({"device": "cpu"}).state is SessionStatus.READY
    later = net.create_session({"device": "cpu"}, SessionModes(plan=PlanTime.DEFER))
    assert later.state is SessionStatus.NEEDS_RESIZE
    with pytest.raises(InvalidInputError, match="call resize_session"):
        net.run_session(later)
    open_shape = Interpreter(dense("N")).create_session({"device": "cpu"})
    assert open_shape.state is SessionStatus.NEEDS_RESIZE


@pytest.mark.parametrize("device", DEVICES)
def test_memory_of_the_session_or_of_the_caller(device: str) -> None:
    net = Interpreter(dense())
    own = net.create_session({"device": device})
    x = X.copy()
    own.inputs["x"].copy_from(x)
    x[...] = 0
    net.run_session(own)
    close_to(own.outputs["y"].copy_to(), answer())
    with pytest.raises(InvalidInputError, match=r"outputs=Owner\.USER"):
        own.outputs["y"].write_to(np.zeros((2, 5), np.float32))

    modes = SessionModes(inputs=Owner.USER, outputs=Owner.USER)
    session = net.create_session({"device": device}, modes)
    x, y = X.copy(), np.zeros((2, 5), np.float32)
    session.inputs["x"].copy_from(x)
    with pytest.raises(InvalidInputError, match=r"float32 \[2, 5\], the memory for it none"):
        net.run_session(session)
    session.outputs["y"].write_to(np.zeros((5, 2), np.float32))
    with pytest.raises(InvalidInputError, match=r"the memory for it float32 \[5, 2\]"):
        net.run_session(session)
    session.outputs["y"].write_to(y)
    for factor in (1, -2):
        x[...] = X * factor
        net.run_session(session)
        close_to(y, answer(X * factor))
        assert session.outputs["y"].copy_to() is y
    with pytest.raises(InvalidInputError, match="an output, which runs write"):
        session.outputs["y"].copy_from(y)


@pytest.mark.skipif(len(DEVICES) == 1, reason="no Vulkan device")
def test_outputs_in_memory_of_the_device() -> None:
    net = Interpreter(dense())
    session = net.create_session(modes=SessionModes(outputs=Owner.USER))
    place = vkmnn.InferenceSession(dense()).upload(np.zeros((2, 5), np.float32))
    session.outputs["y"].write_to(place)
    run(net, session)
    close_to(place.numpy(), answer())


def test_shapes_that_stay() -> None:
    net = Interpreter(dense("N"))
    session = net.create_session({"device": "cpu"}, SessionModes(shapes=Shapes.FIX))
    tensor = session.inputs["x"]
    net.resize_tensor(session, tensor, (2, 3))
    net.resize_session(session)
    net.resize_tensor(session, tensor, (4, 3))
    with pytest.raises(InvalidInputError, match=r"keeps the input shapes .*\(2, 3\)"):
        net.resize_session(session)
    net.resize_tensor(session, tensor, (2, 3))
    net.resize_session(session)
    close_to(run(net, session), answer())


def test_callbacks_only_where_they_are_wanted() -> None:
    net = Interpreter(dense())
    session = net.create_session({"device": "cpu"}, SessionModes(debug=False))
    session.inputs["x"].copy_from(X)
    with pytest.raises(InvalidInputError, match="debug=True"):
        net.run_session_with_callback(session, lambda *_: None, lambda *_: None)


def names(net: Interpreter, modes: SessionModes | None) -> list[str]:
    session = net.create_session({"device": "cpu"}, modes)
    seen: list[str] = []
    session.inputs["x"].copy_from(X)
    net.run_session_with_callback(session, lambda call, _: seen.append(call.type), lambda *_: None)
    close_to(session.outputs["y"].copy_to(), answer())
    return seen


def test_passes_on_and_off() -> None:
    net = Interpreter(dense())
    assert names(net, None) == ["MatMul"]
    assert len(names(net, SessionModes(passes=False))) == 3
    without = SessionModes(without_passes=("fuse_activation",))
    assert len(names(net, without)) == 2
    with pytest.raises(InvalidInputError, match=r"no pass 'fuse_activatoin'(.|\n)*fuse_activation"):
        net.create_session(modes=SessionModes(without_passes=("fuse_activatoin",)))
    assert names(net, None) == ["MatMul"]  # the interpreter's own network is as it was


def test_a_bisection_by_callbacks_and_passes() -> None:
    """Tensors of the unoptimised network can be compared op by op, by their names in the file."""
    net = Interpreter(dense())
    seen: dict[str, dict[str, Any]] = {}
    for device in DEVICES:
        session = net.create_session({"device": device}, SessionModes(passes=False))
        session.inputs["x"].copy_from(X)
        made = seen[device] = {}
        net.run_session_with_callback(
            session, lambda *_: None, lambda _, results, made=made: made.update(results)
        )
    for made in seen.values():
        close_to(made["p"], X @ WEIGHT)
        close_to(made["s"], X @ WEIGHT + BIAS)


@pytest.mark.parametrize("device", DEVICES)
def test_the_faster_backend(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Interpreter(dense())
    times = {"VULKAN": 2.0, "CPU": 1.0}
    monkeypatch.setattr(
        "vkmnn.interpreter.session._seconds", lambda core, arrays: times[core.backend_types()[0]]
    )
    auto = SessionModes(backend=BackendChoice.AUTO)
    session = net.create_session({"device": device}, auto)
    assert net.session_info(session).backends == ("CPU",)
    close_to(run(net, session), answer())
    times["CPU"] = 3.0
    session = net.create_session({"device": device}, auto)
    own = "CPU" if device == "cpu" else "VULKAN"
    assert net.session_info(session).backends == (own,)
    close_to(run(net, session), answer())


def test_the_faster_backend_is_really_measured() -> None:
    net = Interpreter(dense())
    session = net.create_session(modes=SessionModes(backend=BackendChoice.AUTO))
    close_to(run(net, session), answer())


# --- information ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_information(device: str) -> None:
    net = Interpreter(dense("N"))
    session = net.create_session({"device": device})
    with pytest.raises(InvalidInputError, match="no plan yet"):
        net.session_info(session)
    for rows in (2, 7):
        net.resize_tensor(session, session.inputs["x"], (rows, 3))
        assert session.state is SessionStatus.NEEDS_RESIZE
        net.resize_session(session)
        info = net.session_info(session)
        assert info.state is SessionStatus.READY
        assert info.flops == 2 * rows * 3 * 5 + rows * 5
        assert info.backends == (("CPU",) if device == "cpu" else ("VULKAN",))
    assert (info.memory.constants > 0) == (device != "cpu")
    session.release_cache()
    assert session.state is SessionStatus.NEEDS_MEMORY
    x = np.concatenate([X, X, X, X[:1]])
    close_to(run(net, session, x), answer(x))  # plans again
    assert session.state is SessionStatus.READY


def test_operations_of_all_stages_count() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("NonZero", ["p"], ["n"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(WEIGHT, "w"),
        numpy_helper.from_array(WEIGHT.T.copy(), "v"),
    ]
    outputs = [value("y", [2, 3]), value("n", [2, "K"], onnx.TensorProto.INT64)]
    net = Interpreter(model(nodes, [value("x", [2, 3])], outputs, constants))
    session = net.create_session({"device": "cpu"})
    run(net, session)
    assert net.session_info(session).flops >= 2 * 2 * 3 * 5 * 2


# --- constants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_constants_are_written_back(device: str, tmp_path: Path) -> None:
    net = Interpreter(dense())
    config = ScheduleConfig(device=device)
    session, other = net.create_session(config), net.create_session(config)
    net.update_session_to_model(session)  # nothing has changed
    weight = net.get_session_constant(session, "w")
    np.testing.assert_array_equal(weight.copy_to(), WEIGHT)
    weight.map()[...] = 2 * WEIGHT
    weight.unmap()
    with pytest.raises(InvalidInputError, match="call resize_session"):
        run(net, session)
    with pytest.raises(InvalidInputError, match="call resize_session"):
        net.update_session_to_model(session)
    net.resize_session(session)
    close_to(run(net, session), answer(weight=2 * WEIGHT))
    close_to(run(net, other), answer())  # the change is the session's alone
    close_to(run(net, net.create_session(config)), answer())
    net.update_session_to_model(session)
    close_to(run(net, net.create_session(config)), answer(weight=2 * WEIGHT))
    path = tmp_path / "changed.vkmnn"
    vkmnn.convert(net.graph, path)
    (y,) = vkmnn.InferenceSession(path, device).run(None, {"x": X})
    close_to(y, answer(weight=2 * WEIGHT))


def test_changed_constants_and_modes() -> None:
    """A session keeps its passes when its weights change, and the network its own."""
    net = Interpreter(dense())
    session = net.create_session({"device": "cpu"}, SessionModes(passes=False))
    net.update_session_to_model(session)
    assert names(net, None) == ["MatMul"]
    net.get_session_constant(session, "w").copy_from(3 * WEIGHT)
    net.resize_session(session)
    close_to(run(net, session), answer(weight=3 * WEIGHT))
    assert len(session.placement().ops) == 3
    net.update_session_to_model(session)
    other = net.create_session({"device": "cpu"})
    close_to(run(net, other), answer(weight=3 * WEIGHT))
    assert len(other.placement().ops) == 1
    other.close()
    with pytest.raises(InvalidInputError, match="is closed"):
        net.update_session_to_model(other)


def test_constants_of_a_part() -> None:
    net = Interpreter(dense())
    path = vkmnn.NetworkPath(("p",), (), vkmnn.PathNames.TENSOR)
    session = net.create_session(ScheduleConfig("cpu", path=path))
    net.get_session_constant(session, "b").copy_from(np.zeros(5, np.float32))
    net.resize_session(session)
    session.inputs["p"].copy_from(X @ WEIGHT)
    net.run_session(session)
    close_to(session.outputs["y"].copy_to(), np.maximum(X @ WEIGHT, 0))


def test_constants_that_cannot_be_changed() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    constants = [numpy_helper.from_array(np.array([3, 2]), "shape")]
    net = Interpreter(model(nodes, [value("x", [2, 3])], [value("y", [3, 2])], constants))
    session = net.create_session({"device": "cpu"})
    with pytest.raises(InvalidInputError, match="only floats"):
        net.get_session_constant(session, "shape").copy_from(np.array([2, 3]))
    with pytest.raises(InvalidInputError, match=r"no constant 'z'(.|\n)*shape"):
        net.get_session_constant(session, "z")
    net = Interpreter(dense())
    weight = net.get_session_constant(net.create_session({"device": "cpu"}), "w")
    for wrong in (WEIGHT.T, WEIGHT.astype(np.float64)):
        with pytest.raises(InvalidInputError, match="constant 'w' is float32"):
            weight.copy_from(wrong)
    with pytest.raises(InvalidInputError, match="not one of this interpreter's"):
        Interpreter(dense()).update_session_to_model(session)
