"""Tensors that stay on the device, bound runs, and runs that do not wait."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.session.models import model, tanh_chain, value
from vkmnn.runtime.device import enumerate_devices, open_device


@pytest.fixture(params=["cpu", "auto"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both kinds of device."""
    if request.param == "auto" and not enumerate_devices():
        pytest.skip("no Vulkan device")
    return request.param


@pytest.fixture
def vulkan() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")


RNG = np.random.default_rng(7)
WEIGHTS = RNG.standard_normal((13, 7)).astype(np.float32)


def dense() -> Any:
    """Return y = 2 relu(x w), r = relu(x w): r is also read on the device."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["r", "r"], ["y"]),
    ]
    outputs = [value("y", ["n", 7]), value("r", ["n", 7])]
    return model(nodes, [value("x", ["n", 13])], outputs, [numpy_helper.from_array(WEIGHTS, "w")])


def dense_of(x: np.ndarray) -> np.ndarray:
    return 2 * np.maximum(x @ WEIGHTS, 0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def typed(dtype: int, op: str = "Identity") -> Any:
    shape: list[object] = ["a", "b"]
    node = helper.make_node(op, ["x"] if op != "Add" else ["x", "x"], ["y"])
    return model([node], [value("x", shape, dtype)], [value("y", shape, dtype)])


def close(got: Any, want: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)


# --- tensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int32", "int64", "uint8", "int8", "uint32", "bool"]
)
def test_a_tensor_holds_what_was_uploaded(device: str, dtype: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    for shape in ((), (1,), (0, 3), (5, 7), (2, 3, 11)):
        array = RNG.integers(0, 99, shape).astype(dtype)
        tensor = session.upload(array)
        assert (tensor.shape, tensor.dtype, tensor.ndim) == (shape, np.dtype(dtype), len(shape))
        assert (tensor.size, tensor.nbytes) == (array.size, array.nbytes)
        np.testing.assert_array_equal(tensor.numpy(), array)
        np.testing.assert_array_equal(np.asarray(tensor), array)
        assert np.asarray(tensor, "float64").dtype == np.float64
        assert isinstance(tensor, vkmnn.DeviceTensor)
        assert dtype in repr(tensor)
        other = session.upload(np.zeros_like(array))
        other.copy_from(tensor)
        np.testing.assert_array_equal(other.numpy(), array)


def test_views_share_the_memory_and_outlive_everything(device: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    tensor = session.upload(floats(4, 13))
    if not tensor.is_mapped:
        pytest.skip("the device's memory is not mapped")
    view = tensor.numpy()
    view[...] = 3
    assert np.array_equal(tensor.numpy(), view)
    assert np.shares_memory(tensor.numpy(), view)
    exported = np.from_dlpack(tensor)
    assert np.shares_memory(exported, view)
    assert tensor.__dlpack_device__() == (1, 0)
    session.close()
    del session, tensor
    gc.collect()
    np.testing.assert_array_equal(exported, np.full((4, 13), 3, np.float32))
    np.testing.assert_array_equal(view, exported)


def test_elements_that_are_stored_otherwise_are_copies(vulkan: None) -> None:
    session = vkmnn.InferenceSession(dense())
    tensor = session.upload(np.arange(6))
    assert not tensor.is_mapped
    assert tensor.__dlpack_device__()[0] == 7
    with pytest.raises(ValueError, match="without a copy"):
        np.array(tensor, copy=False)
    with pytest.raises(BufferError, match="cannot be exported"):
        tensor.__dlpack__()
    with pytest.raises(vkmnn.IntegerRangeError):
        session.upload(np.array([2**40]))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([None])])
def test_other_elements_are_refused(device: str, array: np.ndarray) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    with pytest.raises(vkmnn.InvalidInputError, match="do not support elements"):
        session.upload(array)


def test_shapes_and_types_are_checked(device: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    tensor = session.tensor("x", (4, 13))
    assert not np.any(tensor.numpy())
    for wrong in (floats(13, 4), floats(4, 13).astype(np.float64)):
        with pytest.raises(vkmnn.InvalidInputError):
            tensor.copy_from(wrong)
        with pytest.raises(vkmnn.InvalidInputError):
            session.run(None, {"x": session.upload(wrong)})
    with pytest.raises(vkmnn.InvalidInputError, match="is not known"):
        session.tensor("x")
    with pytest.raises(vkmnn.InvalidInputError, match="has shape"):
        session.tensor("x", (4, 12))
    with pytest.raises(vkmnn.InvalidInputError, match="no input or output 'z'"):
        session.tensor("z", (4, 12))


def test_arrays_of_other_libraries(device: str) -> None:
    class WithArray:
        def __init__(self, array: np.ndarray) -> None:
            self._array = array

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self._array

    class WithDlpack:
        def __init__(self, array: np.ndarray) -> None:
            self._array: Any = array

        def __dlpack__(self, **options: Any) -> Any:
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self._array.__dlpack_device__()

    session = vkmnn.InferenceSession(dense(), device)
    x = floats(3, 13)
    for kind in (WithArray, WithDlpack):
        close(session.run(["y"], {"x": kind(x)})[0], dense_of(x))
        with pytest.raises(vkmnn.InvalidInputError, match="is float32, got an array of float64"):
            session.run(["y"], {"x": kind(x.astype(np.float64))})
    with pytest.raises(vkmnn.InvalidInputError, match="must be a numpy array, got list"):
        session.run(["y"], {"x": x.tolist()})


# --- runs ----------------------------------------------------------------------------------------


def test_tensors_go_from_session_to_session(device: str) -> None:
    first, second = (
        vkmnn.InferenceSession(dense(), device),
        vkmnn.InferenceSession(tanh_chain(["N", "M"]), device),
    )
    x = floats(5, 13)
    (middle,) = first.run_on_device(["y"], {"x": first.upload(x)})
    first.run_on_device(["y"], {"x": floats(5, 13)})  # does not write into what was given away
    first.close()
    (y,) = second.run(None, {"x": middle})
    close(y, -np.tanh(dense_of(x)))
    close(middle, dense_of(x))


def test_nothing_passes_through_the_host(vulkan: None) -> None:
    first, second = vkmnn.InferenceSession(dense()), vkmnn.InferenceSession(tanh_chain(["N", "M"]))
    x = first.upload(floats(5, 13))

    def chain() -> list[vkmnn.DeviceTensor]:
        return second.run_on_device(None, {"x": first.run_on_device(["y"], {"x": x})[0]})

    chain()
    before = first.counters()
    (y,) = chain()
    assert first.counters()["host_copies"] == before["host_copies"]
    assert first.counters()["recordings"] == before["recordings"]
    close(y, -np.tanh(dense_of(x.numpy())))


def test_tensors_of_another_backend() -> None:
    x = floats(2, 13)
    on_cpu = vkmnn.InferenceSession(dense(), "cpu")
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    on_device = vkmnn.InferenceSession(dense())
    close(on_device.run(["y"], {"x": on_cpu.upload(x)})[0], dense_of(x))
    close(on_cpu.run(["y"], {"x": on_device.upload(x)})[0], dense_of(x))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (TensorProto.INT64, "int64"),
        (TensorProto.BOOL, "bool"),
        (TensorProto.FLOAT16, "float16"),
        (TensorProto.UINT8, "uint8"),
        (TensorProto.DOUBLE, "float64"),  # which the device does not hold
    ],
)
def test_other_element_types(device: str, dtype: int, name: str) -> None:
    op = "Not" if name == "bool" else "Identity"
    session = vkmnn.InferenceSession(typed(dtype, op), device)
    x = RNG.integers(0, 2, (3, 5)).astype(name)
    want = ~x if name == "bool" else x
    tensor = session.upload(x)
    np.testing.assert_array_equal(session.run(None, {"x": tensor})[0], want)
    np.testing.assert_array_equal(session.run_on_device(None, {"x": tensor})[0].numpy(), want)
    np.testing.assert_array_equal(session.bind({"x": tensor})()["y"].numpy(), want)
    np.testing.assert_array_equal(session.submit({"x": x}).result()[0], want)


@pytest.mark.parametrize("ends", [("x", "y"), ("x",), ("y",)], ids="-".join)
def test_ends_that_the_device_does_not_hold(device: str, ends: tuple[str, ...]) -> None:
    """float64 at the ends of a network lies in the host's memory; all kinds of runs take it."""
    kind = {name: TensorProto.DOUBLE if name in ends else TensorProto.FLOAT for name in "xy"}
    nodes = [
        helper.make_node("Cast", ["x"], ["t"], to=TensorProto.FLOAT),
        helper.make_node("Exp", ["t"], ["u"]),
        helper.make_node("Cast", ["u"], ["y"], to=kind["y"]),
    ]
    shape = ["n", 3]
    proto = model(nodes, [value("x", shape, kind["x"])], [value("y", shape, kind["y"])])
    session = vkmnn.InferenceSession(proto, device)
    for rows in (2, 0, 5):
        x = floats(rows, 3).astype(helper.tensor_dtype_to_np_dtype(kind["x"]))
        want = np.exp(x).astype(helper.tensor_dtype_to_np_dtype(kind["y"]))
        results = [
            *(future.result()[0] for future in [session.submit({"x": x}) for _ in range(3)]),
            *session.run_on_device(None, {"x": x}),
            *session.run_on_device(None, {"x": session.upload(x)}),
            session.bind({"x": x})()["y"],
        ]
        for result in results:
            assert result.dtype == want.dtype
            close(result, want)


def test_integers_that_the_device_does_not_hold(device: str) -> None:
    """Such a run is computed on the host, and its outputs lie there."""
    session = vkmnn.InferenceSession(typed(TensorProto.INT64, "Neg"), device)
    x = np.array([[2**40, -1]])
    (y,) = session.run_on_device(None, {"x": x})
    np.testing.assert_array_equal(y.numpy(), -x)
    assert y.device == "CPU"


def test_states_that_the_device_does_not_hold(device: str) -> None:
    node = helper.make_node("Add", ["x", "before"], ["after"])
    ends = [value(name, [2], TensorProto.DOUBLE) for name in ("x", "before", "after")]
    session = vkmnn.InferenceSession(model([node], ends[:2], ends[2:]), device)
    state = session.state({"before": "after"})
    for step in range(1, 5):
        state.run(None, {"x": np.array([1.0, 1e-17])})
        close(state.value("before").numpy() * [1, 1e17], np.full(2, step))


def test_bound_runs(device: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    y = session.tensor("y", (6, 7))
    with session.bind({"x": floats(6, 13)}, {"y": y, "r": None}) as bound:
        for _ in range(3):
            x = floats(6, 13)
            bound.inputs["x"].copy_from(x)
            assert bound()["y"] is y
            close(y, dense_of(x))
            close(bound.outputs["r"], dense_of(x) / 2)
        session.run(None, {"x": floats(6, 13)})  # the plan's own memory is another
        close(y, dense_of(x))
    with pytest.raises(vkmnn.InvalidInputError, match="closed"):
        bound()
    only = session.bind({"x": x}, ["r"])
    assert list(only()) == ["r"]
    close(only.outputs["r"], dense_of(x) / 2)
    session.close()
    with pytest.raises(vkmnn.InvalidInputError, match="closed"):
        only()
    close(only.outputs["r"], dense_of(x) / 2)


def test_bound_runs_copy_and_allocate_nothing(vulkan: None) -> None:
    session = vkmnn.InferenceSession(dense())
    bound = session.bind({"x": floats(6, 13)})
    assert not bound.copies
    before = session.counters()
    for number in range(20):
        bound.inputs["x"].numpy()[...] = number
        close(bound()["y"], dense_of(np.full((6, 13), number, np.float32)))
    more = {"submits": 20, "commands": 60}
    assert session.counters() == {name: n + more.get(name, 0) for name, n in before.items()}


def test_bound_tensors_are_checked(device: str) -> None:
    session = vkmnn.InferenceSession(tanh_chain(["N"]), device)
    x = session.upload(floats(5))
    with pytest.raises(vkmnn.InvalidInputError, match="cannot share the memory of 'x'"):
        session.bind({"x": x}, {"y": x})
    with pytest.raises(vkmnn.InvalidInputError, match="the tensor for it"):
        session.bind({"x": x}, {"y": session.tensor("y", (6,))})
    with pytest.raises(vkmnn.InvalidInputError, match="no output 'z'"):
        session.bind({"x": x}, ["z"])
    with pytest.raises(vkmnn.InvalidInputError, match="is missing"):
        session.bind({})


def gather() -> Any:
    node = helper.make_node("Gather", ["t", "i"], ["y"])
    table = numpy_helper.from_array(np.arange(10, dtype=np.float32), "t")
    i = value("i", ["n"], TensorProto.INT64)
    return model([node], [i], [value("y", ["n"])], [table])


def test_bound_indices_are_checked(device: str) -> None:
    session = vkmnn.InferenceSession(gather(), device)
    bound = session.bind({"i": np.array([1, 3])})
    np.testing.assert_array_equal(bound()["y"].numpy(), [1, 3])
    bound.inputs["i"].copy_from(np.array([1, 10]))
    with pytest.raises(vkmnn.VkmnnError, match="10"):
        bound()
    bound.inputs["i"].copy_from(np.array([-1, 9]))
    np.testing.assert_array_equal(bound()["y"].numpy(), [9, 9])


def test_networks_of_several_steps_are_bound_by_copies(device: str) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["n"]),
        helper.make_node("Add", ["r", "r"], ["y"]),
    ]
    outputs = [value("n", [1, "k"], TensorProto.INT64), value("y", ["N"])]
    session = vkmnn.InferenceSession(model(nodes, [value("x", ["N"])], outputs), device)
    x = np.array([1, -1, 2, -2], np.float32)
    bound = session.bind({"x": x})
    assert bound.copies or device == "auto"
    np.testing.assert_array_equal(bound()["n"].numpy(), [[0, 2]])
    np.testing.assert_array_equal(bound()["y"].numpy(), [2, 0, 4, 0])
    if bound.copies:
        bound.inputs["x"].copy_from(np.abs(x))
        with pytest.raises(vkmnn.InvalidInputError, match="cannot take"):
            bound()


def test_evicted_plans_stay_as_long_as_they_are_bound(vulkan: None) -> None:
    session = vkmnn.InferenceSession(tanh_chain(["N"]))
    x = floats(5)
    bound = session.bind({"x": x})
    for size in range(6, 20):
        session.run(None, {"x": floats(size)})
    session.trim()
    close(bound()["y"], -np.tanh(x))


# --- futures -------------------------------------------------------------------------------------


def test_futures(device: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    arrays = [floats(size % 3 + 1, 13) for size in range(12)]
    futures = [session.submit({"x": x}) for x in arrays]
    told: list[Any] = []
    futures[-1].add_done_callback(told.append)
    for x, future in zip(arrays, futures, strict=True):
        y, r = future.result(60)
        close(y, dense_of(x))
        close(r, dense_of(x) / 2)
        assert future.done()
        assert future.exception() is None
    for _ in range(6000):
        if told:
            break
        time.sleep(0.01)
    assert told == [futures[-1]]

    async def together() -> list[Any]:
        return await asyncio.gather(*(session.submit({"x": x}, ["y"]) for x in arrays))

    for x, (y,) in zip(arrays, asyncio.run(together()), strict=True):
        close(y, dense_of(x))


def test_errors_come_with_the_future(device: str) -> None:
    session = vkmnn.InferenceSession(gather(), device)
    with pytest.raises(vkmnn.InvalidInputError, match="no input"):
        session.submit({"z": np.array([1])})
    future = session.submit({"i": np.array([1, 11])})
    with pytest.raises(vkmnn.VkmnnError, match="11"):
        future.result(60)
    np.testing.assert_array_equal(session.submit({"i": np.array([4])}).result(60)[0], [4])


def test_cancelled_runs_do_not_begin(device: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    x, long = floats(2, 13), floats(20_000, 13)
    hold, held = threading.Event(), threading.Semaphore(0)
    over: list[bool] = []

    def wait(_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            over.append(True)  # the run has ended before it got its callback
        else:
            held.release()
            hold.wait(60)

    under_way, tries = 0, 0
    while under_way < 2:  # both that may be
        tries += 1
        assert tries < 1000
        session.submit({"x": long}).add_done_callback(wait)
        if len(over) + under_way < tries:
            assert held.acquire(timeout=60)
            under_way += 1
    waiting = [session.submit({"x": x}) for _ in range(4)]
    cancelled = [future.cancel() for future in waiting[2:]]
    hold.set()
    for future, taken_back in zip(waiting[2:], cancelled, strict=True):
        assert taken_back == future.cancelled()
        if taken_back:
            with pytest.raises(CancelledError):
                future.result(60)
    close(waiting[0].result(60)[0], dense_of(x))
    assert any(cancelled)


def test_closing_ends_what_has_begun_and_refuses_the_rest(device: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    x = floats(2, 13)
    futures = [session.submit({"x": x}) for _ in range(30)]
    session.close()
    for future in futures:
        assert future.done()
        if future.exception() is None:
            close(future.result()[0], dense_of(x))
        else:
            assert isinstance(future.exception(), vkmnn.InvalidInputError)
    with pytest.raises(vkmnn.InvalidInputError, match="closed"):
        session.submit({"x": x})


def test_a_callback_may_close_the_session(device: str) -> None:
    session = vkmnn.InferenceSession(dense(), device)
    done = threading.Event()

    def end(_: Any) -> None:
        session.close()
        done.set()

    session.submit({"x": floats(2, 13)}).add_done_callback(end)
    assert done.wait(60)


@pytest.mark.parametrize("seconds", [0, pytest.param(8, marks=pytest.mark.soak)])
def test_threads_with_futures_over_sessions(vulkan: None, seconds: float) -> None:
    first = vkmnn.InferenceSession(dense())
    sessions = [first, *(first.another() for _ in range(3))]
    wrong: list[str] = []

    def work(number: int, end: float) -> None:
        rng = np.random.default_rng(number)
        turn = 0
        while turn < 12 or time.monotonic() < end:
            session = sessions[(number + turn) % 4]
            xs = [rng.standard_normal((n, 13)).astype(np.float32) for n in (1, 5, 9)]
            for x, future in zip(xs, [session.submit({"x": x}) for x in xs], strict=True):
                if not np.allclose(future.result(120)[0], dense_of(x), atol=1e-4):
                    wrong.append(f"thread {number}, turn {turn}")
            turn += 1

    def weather(end: float) -> None:
        threads = [threading.Thread(target=work, args=(number, end)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    weather(time.monotonic() + seconds / 10)
    assert not wrong
    counts, held = first.counters(), [open_device("auto").stats()["bytes"]]
    # A plan whose runs overlap for the first time is recorded in a second lane.
    while len(held) < 2 or (seconds and held[-1] != held[-2] and len(held) < 5):
        weather(time.monotonic() + seconds)
        held.append(open_device("auto").stats()["bytes"])
    assert not wrong
    assert counts["plans"] == first.counters()["plans"] == 3
    if seconds:
        assert held[-1] == held[-2], f"grows: {held}"
    for session in sessions:
        session.close()


# --- memory --------------------------------------------------------------------------------------


def test_sessions_of_one_network_share_its_weights(vulkan: None) -> None:
    weights = RNG.standard_normal((512, 512)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    constants = [numpy_helper.from_array(weights, "w")]
    proto = model([node], [value("x", [1, 512])], [value("y", [1, 512])], constants)
    before = open_device("auto").stats().get("bytes", 0)
    first = vkmnn.InferenceSession(proto)
    one = open_device("auto").stats()["bytes"] - before
    second = first.another()
    both = open_device("auto").stats()["bytes"] - before
    assert one > weights.nbytes
    assert both - one < weights.nbytes / 4
    first.close()
    x = floats(1, 512)
    np.testing.assert_allclose(second.run(None, {"x": x})[0], x @ weights, rtol=1e-4, atol=1e-3)
    second.close()
    assert open_device("auto").stats().get("bytes", 0) == before


def test_trim_frees_plans(vulkan: None) -> None:
    session = vkmnn.InferenceSession(tanh_chain(["N"]))
    for size in (1000, 2000, 3000):
        session.run(None, {"x": floats(size)})
    before = open_device("auto").stats()["bytes"]
    session.trim()
    assert open_device("auto").stats()["bytes"] < before
    assert session._session.core.plan_count == 1
    close(session.run(None, {"x": np.ones(1000, np.float32)})[0], -np.tanh(np.ones(1000)))


def test_forgotten_sessions_leave_nothing(vulkan: None) -> None:
    gc.collect()
    before = open_device("auto").stats().get("buffers", 0)
    session = vkmnn.InferenceSession(dense())
    bound = session.bind({"x": floats(3, 13)})
    bound()
    session.submit({"x": floats(3, 13)}).result(60)
    tensor = session.run_on_device(["y"], {"x": floats(3, 13)})[0]
    del session, bound
    gc.collect()
    for _ in range(6000):  # the last run's thread lets go of it when it is back at rest
        if open_device("auto").stats().get("buffers", 0) <= before + 1:
            break
        time.sleep(0.01)
    assert open_device("auto").stats().get("buffers", 0) == before + 1
    del tensor
    assert open_device("auto").stats().get("buffers", 0) == before


def test_shapes_are_planned_ahead_and_kept(device: str) -> None:
    session = vkmnn.InferenceSession(tanh_chain(["N", "M"]), device)
    shapes = [(size, 3) for size in range(1, 21)]
    session.prepare({"x": shape} for shape in shapes)
    assert session.counters()["plans"] == 20
    for shape in (*shapes, *shapes):
        x = floats(*shape)
        close(session.run(None, {"x": x})[0], -np.tanh(x))
    assert session.counters()["plans"] == 20
    session.prepare([{"x": floats(4, 4)}])
    assert session.counters()["plans"] == 21
    for wrong in ({}, {"z": (1, 2)}, {"x": (1,)}):
        with pytest.raises(vkmnn.InvalidInputError):
            session.prepare([wrong])


def test_plans_are_kept_by_memory(vulkan: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkmnn.core.plans.PLANS_BYTES", 1 << 20)
    session = vkmnn.InferenceSession(tanh_chain(["N"]))
    session.prepare({"x": (size,)} for size in range(1, 21))
    assert session._session.core.plan_count == 20
    session.prepare([{"x": (1 << 20,)}])
    assert session._session.core.plan_count == 8


def lookup() -> Any:
    """Return y = t[i] + t[j]: two tensors of indices."""
    table = numpy_helper.from_array(WEIGHTS, "t")
    nodes = [
        helper.make_node("Gather", ["t", "i"], ["a"]),
        helper.make_node("Gather", ["t", "j"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    inputs = [value(name, ["n"], TensorProto.INT64) for name in "ij"]
    return model(nodes, inputs, [value("y", ["n", 7])], [table])


@pytest.mark.parametrize("profile", ["", "nvidia-h200"])
def test_a_bound_run_checks_indices(
    profile: str, vulkan: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the host cannot see the memory that they lie in."""
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", profile)
    i, j = np.array([3, 0, 12]), np.array([1, 12, 7])
    with vkmnn.InferenceSession(lookup()) as session:
        first = session.upload(i)
        bound = session.bind({"i": first, "j": j})
        assert not bound.copies
        bound()
        np.testing.assert_array_equal(bound.outputs["y"].numpy(), WEIGHTS[i] + WEIGHTS[j])
        first.copy_from(np.array([3, 13, 0]))
        with pytest.raises(vkmnn.InvalidInputError, match="'i' holds the index 13"):
            bound()
        first.copy_from(np.array([0, 1, 2]))
        bound()
        np.testing.assert_array_equal(bound.outputs["y"].numpy(), WEIGHTS[:3] + WEIGHTS[j])
