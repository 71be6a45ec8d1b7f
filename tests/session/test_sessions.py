"""Sessions, plans, placement and the MNN-shaped interpreter, on the device and on the CPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.session.models import model, tanh_chain, value
from vkmnn.errors import InvalidInputError
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.memory import Buffer, MemoryKind


@pytest.fixture(params=["cpu", "auto"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both kinds of device."""
    if request.param == "auto" and not enumerate_devices():
        pytest.skip("no Vulkan device")
    return request.param


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_shapes_change_back_and_forth_and_plans_are_kept(device: str) -> None:
    session = vkmnn.InferenceSession(tanh_chain(["N", "M"]), device)
    for shape in ((2, 3), (5, 7), (2, 3), (0, 4), (1, 1), (5, 7)):
        x = floats(*shape)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, -np.tanh(x), rtol=1e-5, atol=1e-6)
    assert session._session.core.plan_count == 4


def test_least_recently_used_plan_goes_first(device: str) -> None:
    interpreter = vkmnn.Interpreter.from_model(tanh_chain(["N"]))
    session = interpreter.create_session(vkmnn.ScheduleConfig(device, max_plans=2))
    for size in (1, 2, 1, 3, 1):
        session.run({"x": floats(size)})
    assert session.core.plan_count == 2
    session.close()


def test_shape_from_the_content_of_an_input(device: str) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    proto = model(
        [node],
        [value("x", ["N"]), value("shape", [2], TensorProto.INT64)],
        [value("y", ["A", "B"])],
    )
    session = vkmnn.InferenceSession(proto, device)
    x = floats(12)
    for shape in ((3, 4), (2, 6), (3, 4), (-1, 1)):
        (y,) = session.run(None, {"x": x, "shape": np.array(shape, np.int64)})
        np.testing.assert_array_equal(y, x.reshape(shape))
    with pytest.raises(vkmnn.ShapeError):
        session.run(None, {"x": x, "shape": np.array([5, 5], np.int64)})
    (y,) = session.run(None, {"x": x, "shape": np.array([4, 3], np.int64)})
    assert y.shape == (4, 3)


def test_outputs_that_are_inputs_views_and_constants(device: str) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Neg", ["x"], ["neg"]),
        helper.make_node("Flatten", ["neg"], ["flat_neg"]),
    ]
    outputs = [
        value("same", ["N", 3, 2]),
        value("flat", ["N", 6]),
        value("shape", [3], TensorProto.INT64),
        value("neg", ["N", 3, 2]),
        value("flat_neg", ["N", 6]),
    ]
    session = vkmnn.InferenceSession(model(nodes, [value("x", ["N", 3, 2])], outputs), device)
    x = floats(5, 3, 2)
    for _ in range(2):
        same, flat, shape, neg, flat_neg = session.run(None, {"x": x})
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(flat, x.reshape(5, 6))
        np.testing.assert_array_equal(shape, [5, 3, 2])
        np.testing.assert_array_equal(neg, -x)
        np.testing.assert_array_equal(flat_neg, -x.reshape(5, 6))
        same[:] = 0
        shape[:] = 0
    np.testing.assert_array_equal(x, floats(5, 3, 2))


@pytest.mark.parametrize("staged", [False, True])
def test_outputs_share_no_memory_with_each_other(device: str, staged: bool) -> None:
    """Views of another output, parts of it, the output again; in one plan and in stages."""
    nodes = [
        helper.make_node("Neg", ["x"], ["neg"]),
        helper.make_node("Flatten", ["neg"], ["flat"]),
        helper.make_node("Transpose", ["neg"], ["turned"]),
        helper.make_node("Split", ["neg"], ["top", "bottom"], axis=0),
    ]
    outputs = [
        value("top", [1, 3]),
        value("flat", [2, 3]),
        value("neg", [2, 3]),
        value("turned", [3, 2]),
        value("bottom", [1, 3]),
        value("neg", [2, 3]),
    ]
    if staged:  # what it finds has no shape until it has run
        nodes += [helper.make_node("NonZero", ["neg"], ["found"])]
        outputs.append(value("found", [2, "count"], TensorProto.INT64))
    session = vkmnn.InferenceSession(model(nodes, [value("x", [2, 3])], outputs), device)
    x = floats(2, 3)
    for _ in range(2):
        results = session.run(None, {"x": x})
        top, flat, neg, turned, bottom, again = results[:6]
        for expected, given in ((-x, neg), (-x, again), (-x.T, turned), (-x, flat)):
            np.testing.assert_array_equal(given, expected)
        np.testing.assert_array_equal(np.concatenate([top, bottom]), -x)
        for one, other in combinations(results, 2):
            assert not np.shares_memory(one, other)


def test_results_do_not_change_with_the_next_run(device: str) -> None:
    session = vkmnn.InferenceSession(tanh_chain(["N"]), device)
    (first,) = session.run(None, {"x": floats(5)})
    kept = first.copy()
    session.run(None, {"x": floats(5) + np.float32(1)})
    np.testing.assert_array_equal(first, kept)


def float64_island() -> object:
    """Return a model whose middle op has a type that devices do not store."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], name="before"),
        helper.make_node("Cast", ["a"], ["wide"], name="widen", to=TensorProto.DOUBLE),
        helper.make_node("Exp", ["wide"], ["e"], name="middle"),
        helper.make_node("Cast", ["e"], ["narrow"], name="narrow", to=TensorProto.FLOAT),
        helper.make_node("Add", ["narrow", "a"], ["y"], name="after"),
    ]
    return model(nodes, [value("x", ["N", 3])], [value("y", ["N", 3])])


def test_ops_without_a_kernel_run_on_the_backup_visibly(device: str) -> None:
    session = vkmnn.InferenceSession(float64_island(), device)
    x = floats(5, 3)
    for _ in range(2):
        (y,) = session.run(None, {"x": x})
        a = np.tanh(x)
        np.testing.assert_allclose(y, np.exp(a) + a, rtol=1e-5)
    placement = session.placement()
    if device == "cpu":
        assert not placement.off_device
    else:
        assert {op.name for op in placement.off_device} == {"widen", "middle", "narrow"}
        assert placement.copies == 2
        assert "float64 tensors cannot be stored" in str(placement)


def test_require_device_refuses_the_backup() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    session = vkmnn.InferenceSession(float64_island(), require_device=True)
    with pytest.raises(vkmnn.PlacementError, match="middle"):
        session.run(None, {"x": floats(2, 3)})


def test_wide_integers_are_kept(device: str) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    proto = model(
        [node], [value("x", [2], TensorProto.INT64)], [value("y", [2], TensorProto.INT64)]
    )
    session = vkmnn.InferenceSession(proto, device)
    big = np.array([2**40, 1], np.int64)
    np.testing.assert_array_equal(session.run(None, {"x": big})[0], 2 * big)
    assert len(session.placement().off_device) == (device != "cpu")
    small = np.array([-7, 9], np.int64)
    np.testing.assert_array_equal(session.run(None, {"x": small})[0], 2 * small)
    assert not session.placement().off_device


def test_some_outputs_by_name(device: str) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"])]
    proto = model(nodes, [value("x", [3])], [value("a", [3]), value("b", [3])])
    session = vkmnn.InferenceSession(proto, device)
    (b,) = session.run(["b"], {"x": floats(3)})
    np.testing.assert_array_equal(b, np.abs(floats(3)))
    with pytest.raises(vkmnn.InvalidInputError, match="no output 'c'"):
        session.run(["c"], {"x": floats(3)})


def test_interpreter_in_the_manner_of_mnn(device: str) -> None:
    interpreter = vkmnn.Interpreter.from_buffer(tanh_chain(["N", 3]).SerializeToString())
    session = interpreter.create_session(vkmnn.ScheduleConfig(device))
    source = interpreter.get_session_input(session)
    assert source.name == "x"
    with pytest.raises(vkmnn.InvalidInputError, match="call resize_tensor"):
        interpreter.resize_session(session)
    for rows in (2, 5, 2):
        interpreter.resize_tensor(session, source, (rows, 3))
        with pytest.raises(vkmnn.InvalidInputError, match="resize_session"):
            interpreter.run_session(session)
        interpreter.resize_session(session)
        result = interpreter.get_session_output(session, "y")
        assert result.shape == (rows, 3)
        with pytest.raises(vkmnn.InvalidInputError, match="run_session"):
            result.copy_to()
        source.copy_from(floats(rows, 3))
        interpreter.run_session(session)
        np.testing.assert_allclose(result.copy_to(), -np.tanh(floats(rows, 3)), rtol=1e-5)
    with pytest.raises(vkmnn.InvalidInputError, match="no output 'z'"):
        interpreter.get_session_output(session, "z")
    with pytest.raises(vkmnn.InvalidInputError, match="shape"):
        interpreter.resize_tensor(session, source, (2, -4))
    session.close()


def test_arguments_as_onnxruntime_has_them(device: str) -> None:
    with vkmnn.InferenceSession(tanh_chain(["N", 3]), device) as session:
        (arg,) = session.get_inputs()
    assert (arg.type, arg.dtype) == ("tensor(float)", "float32")
    assert isinstance(arg.shape, list)


@pytest.mark.parametrize("name", ["sess_options", "providers", "provider_options"])
def test_arguments_of_onnxruntime_are_explained(name: str) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"has no argument {name}(.|\n)*vkmnn\.onnxruntime"
    ):
        vkmnn.InferenceSession(tanh_chain(["N", 3]), "cpu", **{name: ["CPUExecutionProvider"]})


def test_a_session_says_what_it_is() -> None:
    with vkmnn.InferenceSession(tanh_chain(["N", 3]), "cpu") as session:
        assert repr(session) == "<vkmnn.InferenceSession (x) -> (y) on CPU (numpy backend)>"


def test_the_first_lines_of_mnn(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(tanh_chain(["N", 3]).SerializeToString())
    net = vkmnn.Interpreter(str(path))
    for settings in ({"backend": "CPU", "numThread": 4}, {"backend": "cpu", "precision": "fp16"}):
        session = net.create_session(settings)
        assert session.device.name.startswith("CPU")
        session.close()
    if vkmnn.devices():
        session = net.create_session({"backend": "VULKAN", "saveTensors": []})
        assert session.device.name == vkmnn.devices()[session.device.index].name
        session.close()
    with pytest.raises(InvalidInputError, match="'METAL'"):
        net.create_session({"backend": "METAL"})
    with pytest.raises(InvalidInputError, match="did you mean precision"):
        net.create_session({"precison": "high"})


def test_saved_tensors_become_outputs(device: str) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Softmax", ["t"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["N"])], [value("y", ["N"])])
    interpreter = vkmnn.Interpreter.from_model(proto)
    config = vkmnn.ScheduleConfig(device, save_tensors=("t",))
    session = interpreter.create_session(config)
    results = session.run({"x": floats(5)})
    np.testing.assert_allclose(results["t"], np.tanh(floats(5)), rtol=1e-5)
    with pytest.raises(vkmnn.InvalidInputError, match="no tensor 'gone'"):
        interpreter.create_session(vkmnn.ScheduleConfig(device, save_tensors=("gone",)))


def test_two_sessions_of_one_network_run_at_once(device: str) -> None:
    interpreter = vkmnn.Interpreter.from_model(tanh_chain(["N"]))
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            session = interpreter.create_session(vkmnn.ScheduleConfig(device))
            rng = np.random.default_rng(seed)
            for _ in range(20):
                x = rng.standard_normal(rng.integers(1, 50)).astype(np.float32)
                y = session.run({"x": x})["y"]
                np.testing.assert_allclose(y, -np.tanh(x), rtol=1e-5, atol=1e-6)
            session.close()
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_one_session_from_several_threads(device: str) -> None:
    session = vkmnn.InferenceSession(tanh_chain(["N"]), device)
    wrong: list[int] = []

    def work(size: int) -> None:
        x = np.full(size, size, np.float32)
        for _ in range(20):
            (y,) = session.run(None, {"x": x})
            if y.shape != x.shape or not np.allclose(y, -np.tanh(x)):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_weights_are_uploaded_once_for_all_shapes() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    weight = numpy_helper.from_array(floats(16, 3, 3, 3), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    proto = model([node], [value("x", [1, 3, "H", "W"])], [value("y", [1, 16, "H", "W"])], [weight])
    session = vkmnn.InferenceSession(proto)
    session.run(None, {"x": floats(1, 3, 8, 8)})
    store = session._session.core._main._constants
    before = {key: storage.range for key, storage in store._stored.items()}
    session.run(None, {"x": floats(1, 3, 16, 16)})
    after = {key: storage.range for key, storage in store._stored.items()}
    packed = [key for key in before if key[1] != "literal"]
    assert packed
    assert all(after[key] == before[key] for key in packed)


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(vkmnn.InvalidInputError, match="precision 'exact'"):
        vkmnn.InferenceSession(tanh_chain([3]), "cpu", precision="exact")


@pytest.mark.parametrize("view", ["host", "coherent_host"])
def test_memory_that_the_host_does_not_see(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a discrete GPU: weights are staged; without coherence everything is flushed."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    mapped = Buffer.host
    staged = () if view == "coherent_host" else (MemoryKind.UPLOAD, MemoryKind.READBACK)
    monkeypatch.setattr(
        Buffer, view, property(lambda self: mapped.fget(self) if self.kind in staged else None)
    )
    weight = numpy_helper.from_array(floats(8, 3, 3, 3), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    proto = model(nodes, [value("x", [1, 3, 5, 7])], [value("y", [1, 8, 5, 7])], [weight])
    feeds = {"x": floats(1, 3, 5, 7)}
    with vkmnn.InferenceSession(proto) as session:
        (y,) = session.run(None, feeds)
    (expected,) = vkmnn.InferenceSession(proto, "cpu").run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", ["onnx", "vkmnn"])
def test_a_released_model_leaves_the_hosts_memory(device: str, suffix: str, tmp_path: Path) -> None:
    weight = floats(300, 700)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = model(
        [node],
        [value("x", ["N", 300])],
        [value("y", ["N", 700])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / f"net.{suffix}"
    if suffix == "onnx":
        path.write_bytes(proto.SerializeToString())
    else:
        vkmnn.convert(proto, path)
    session = vkmnn.InferenceSession(path, device)
    x = floats(2, 300)
    session.prepare([{"x": (2, 300)}])
    session.release_model()
    gc.collect()
    if device == "auto":  # on the host, the plans compute with the weights themselves
        assert path.name not in Path("/proc/self/maps").read_text()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weight, rtol=1e-4, atol=1e-4)
    for refused in (session.another, lambda: session.run(None, {"x": floats(3, 300)})):
        with pytest.raises(InvalidInputError, match="released its model"):
            refused()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weight, rtol=1e-4, atol=1e-4)
