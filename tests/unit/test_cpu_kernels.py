"""Kernels on the CPU: data loaded once, memory for one op or for all runs, and threads."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn import InvalidInputError, ScheduleConfig
from vkmnn.cpu_fallback import CpuBackend
from vkmnn.cpu_fallback.scratch import Arena, Scratch, Storage
from vkmnn.errors import PluginError
from vkmnn.plugin import CpuKernel, backend, kernel

pytestmark = pytest.mark.usefixtures("registrations")
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)


def model(nodes: Any, outputs: tuple[str, ...] = ("y",), **constants: Any) -> Any:
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["n", 3])],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chain(*kinds: str) -> Any:
    names = ["x", *(f"t{number}" for number in range(1, len(kinds))), "y"]
    return model(
        [
            helper.make_node(kind, [names[number]], [names[number + 1]], kind.lower())
            for number, kind in enumerate(kinds)
        ]
    )


# --- memory --------------------------------------------------------------------------------------


def test_blocks_lie_apart_until_they_are_released() -> None:
    scratch = Scratch()
    first = scratch.acquire((3,), np.float32, Storage.DYNAMIC)
    second = scratch.acquire((100,), np.uint8, Storage.DYNAMIC)
    assert (first.offset, second.offset) == (0, 64)
    scratch.release(first)
    third = scratch.acquire((2, 2), np.int64, Storage.DYNAMIC)  # where the first was
    assert (third.offset, scratch.nbytes) == (0, 64 + 128)
    large = scratch.acquire((65,), np.uint8, Storage.DYNAMIC)
    assert large.offset == second.end
    second.array[...] = 7
    third.array[...] = 1
    assert second.array.max() == second.array.min() == 7
    with pytest.raises(PluginError, match="can be released, and once"):
        scratch.release(first)
    static = scratch.acquire((2,), np.float32, Storage.STATIC)
    with pytest.raises(PluginError, match="only DYNAMIC memory"):
        scratch.release(static)
    assert not static.array.any()


def test_arrays_are_aligned_and_of_their_shape() -> None:
    scratch = Scratch()
    for shape in ((), (0,), (5, 7), (1,)):
        array = scratch.acquire(shape, np.float64, Storage.DYNAMIC).array
        assert (array.shape, array.dtype, array.ctypes.data % 64) == (shape, np.float64, 0)


class Squares(CpuKernel):
    """Squares via scratch memory, poisoned first; counts its runs in its own memory."""

    places: list[int] = []  # noqa: RUF012 - each test has its own class

    def prepare(self) -> None:
        self.work = self.acquire(self.operand(0).shape, np.float32)
        self.runs = self.acquire((), np.int64, Storage.STATIC)
        self.kept = self.acquire((2,), np.float32, Storage.SEPARATE)

    def compute(self, inputs: Any) -> Any:
        self.runs.array[...] += 1
        work = self.work.array
        work[...] = np.nan
        np.multiply(inputs[0], inputs[0], out=work)
        type(self).places.append(work.ctypes.data)
        return [work + np.float32(0 * self.runs.array)]


def test_scratch_is_shared_by_ops_and_state_is_not() -> None:
    class Own(Squares):
        places: list[int] = []  # noqa: RUF012
        made: list[Any] = []  # noqa: RUF012

        def prepare(self) -> None:
            super().prepare()
            type(self).made.append(self)

    kernel("UnaryOp", backend="CPU", provider="acme")(Own)
    net = vkmnn.Interpreter(chain("Abs", "Neg", "Exp"))
    session = net.create_session({"device": "cpu"}, vkmnn.SessionModes(passes=False))

    def run(x: Any) -> Any:
        net.resize_tensor(session, session.inputs["x"], x.shape)
        net.resize_session(session)
        session.inputs["x"].copy_from(x)
        net.run_session(session)
        return session.outputs["y"].copy_to()

    for _ in range(3):
        y = run(X)
        np.testing.assert_allclose(y, X**8, rtol=1e-5)
    assert len(Own.places) == 9  # three ops in three runs …
    assert len(set(Own.places)) == 1  # … and the same bytes
    assert [one.runs.array.item() for one in Own.made] == [3, 3, 3]
    first = y.copy()
    run(X[:1])  # another plan has a state of its own
    assert [one.runs.array.item() for one in Own.made] == [3, 3, 3, 1, 1, 1]
    np.testing.assert_array_equal(y, first)


def test_memory_is_acquired_while_a_kernel_is_prepared() -> None:
    class Late(CpuKernel):
        def compute(self, inputs: Any) -> Any:
            self.acquire((1,), np.float32)
            return [inputs[0]]

    kernel("UnaryOp", backend="CPU", provider="acme")(Late)
    session = vkmnn.InferenceSession(chain("Abs"), "cpu")
    with pytest.raises(PluginError, match=r"in `prepare` only(.|\n)*abs"):
        session.run(None, {"x": X})


def test_the_arena_is_trimmed() -> None:
    arena = Arena()
    assert arena.room(1000).nbytes == 1000
    assert arena.room(10).nbytes == 1000
    arena.trim()
    assert arena.nbytes == 0


# --- what is loaded once -------------------------------------------------------------------------


def test_weights_are_packed_once_for_plans_and_sessions() -> None:
    packed: list[Any] = []

    @kernel("MatMul", backend="CPU", provider="acme")
    class Packed(CpuKernel):
        def load(self) -> Any:
            packed.append(np.ascontiguousarray(self.operand(1).value.T))
            return packed[-1]

        def compute(self, inputs: Any) -> Any:
            assert self.loaded is packed[-1]
            return [inputs[0] @ self.loaded.T]

    net = vkmnn.Interpreter(model([helper.make_node("MatMul", ["x", "w"], ["y"])], w=W))
    sessions = [net.create_session({"device": "cpu"}) for _ in range(2)]
    for rows in (2, 1):
        for session in sessions:
            net.resize_tensor(session, session.inputs["x"], (rows, 3))
            net.resize_session(session)
            session.inputs["x"].copy_from(X[:rows])
            net.run_session(session)
            np.testing.assert_allclose(session.outputs["y"].copy_to(), X[:rows] @ W, rtol=1e-6)
    assert len(packed) == 1
    net.close()
    del session, sessions
    gc.collect()
    net = vkmnn.Interpreter(model([helper.make_node("MatMul", ["x", "w"], ["y"])], w=W))
    other = net.create_session({"device": "cpu"})
    net.resize_tensor(other, other.inputs["x"], (2, 3))
    net.resize_session(other)
    assert len(packed) == 2  # nobody had the first any more


# --- threads -------------------------------------------------------------------------------------


def wide(branches: int = 4) -> Any:
    """Return a network of independent branches, with a sum at the end."""
    nodes = [
        helper.make_node("Mul", ["x", f"c{n}"], [f"b{n}"], f"branch{n}") for n in range(branches)
    ]
    names = [f"b{n}" for n in range(branches)]
    nodes.append(helper.make_node("Sum", names, ["y"]))
    constants = {f"c{n}": np.linspace(1, n + 2, 3, dtype=np.float32) for n in range(branches)}
    return model(nodes, **constants)


def test_ops_that_wait_for_nobody_run_at_once() -> None:
    """Four kernels wait for each other: none returns before all have started."""
    barrier = threading.Barrier(4, timeout=60)

    @kernel("BinaryOp", backend="CPU", provider="acme")
    class Meets(CpuKernel):
        def prepare(self) -> None:
            self.work = self.acquire((2, 3), np.float32)
            self.meets = self.op.source.startswith("branch")

        def compute(self, inputs: Any) -> Any:
            work = self.work.array
            (np.multiply if self.meets else np.add)(*inputs, out=work)
            if self.meets:
                barrier.wait()
            return [work.copy()]  # as it was: each thread has its own scratch

    net = vkmnn.Interpreter(wide())
    modes = vkmnn.SessionModes(passes=False)
    session = net.create_session({"device": "cpu", "numThread": 4}, modes)
    net.resize_tensor(session, session.inputs["x"], X.shape)
    net.resize_session(session)
    assert net.session_info(session).threads == 4
    session.inputs["x"].copy_from(X)
    for _ in range(3):
        net.run_session(session)
        wanted = sum(X * np.linspace(1, n + 2, 3, dtype=np.float32) for n in range(4))
        np.testing.assert_allclose(session.outputs["y"].copy_to(), wanted, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(threads: int) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Exp", ["x"], ["b"]),
        helper.make_node("Softmax", ["a"], ["c"]),
        helper.make_node("MatMul", ["b", "w"], ["d"]),
        helper.make_node("Sub", ["c", "d"], ["y"]),
        helper.make_node("Abs", ["d"], ["z"]),
    ]
    proto = model(nodes, ("y", "z", "a"), w=W)
    config = ScheduleConfig("cpu", threads=threads)
    net = vkmnn.Interpreter(proto)
    session = net.create_session(config)
    net.resize_tensor(session, session.inputs["x"], X.shape)
    net.resize_session(session)
    session.inputs["x"].copy_from(X)
    net.run_session(session)
    wanted = vkmnn.InferenceSession(proto, "cpu").run(["y", "z", "a"], {"x": X})
    for name, array in zip(("y", "z", "a"), wanted, strict=True):
        np.testing.assert_array_equal(session.outputs[name].copy_to(), array)


def test_a_failure_on_a_thread_is_the_runs() -> None:
    done: list[str] = []
    barrier = threading.Barrier(4, timeout=60)  # one that has not started may be left out

    @kernel("BinaryOp", backend="CPU", provider="acme")
    def fails(op: Any, inputs: Any) -> Any:
        barrier.wait()
        if op.name == "branch2":
            raise ValueError("not today")
        time.sleep(0.05)
        done.append(op.name)
        return [np.zeros((2, 3), np.float32)]

    net = vkmnn.Interpreter(wide())
    config = ScheduleConfig("cpu", threads=4)
    session = net.create_session(config, vkmnn.SessionModes(passes=False))
    net.resize_tensor(session, session.inputs["x"], X.shape)
    net.resize_session(session)
    session.inputs["x"].copy_from(X)
    with pytest.raises(InvalidInputError, match=r"not today(.|\n)*"):
        net.run_session(session)
    assert sorted(done) == ["branch0", "branch1", "branch3"]  # nothing runs on after the error


@pytest.mark.parametrize("threads", [0, -1, 257, 1.5, "2"])
def test_numbers_of_threads_that_cannot_be(threads: Any) -> None:
    with pytest.raises(InvalidInputError, match="threads is a number from 1 to 256"):
        vkmnn.Interpreter(wide()).create_session(ScheduleConfig("cpu", threads=threads))


# --- calls around runs ---------------------------------------------------------------------------


def test_a_backend_is_told_of_runs() -> None:
    told: list[str] = []

    @backend("TOLD")
    class Told(CpuBackend):
        type = "TOLD"

        def __init__(self, option: str) -> None:
            super().__init__()

        def on_execute_begin(self) -> None:
            told.append("begin")

        def on_execute_end(self) -> None:
            told.append("end")

    @kernel("UnaryOp", backend="TOLD", provider="acme")
    class Abs(CpuKernel):
        def compute(self, inputs: Any) -> Any:
            told.append("op")
            if np.isnan(inputs[0]).any():
                raise ValueError("not a number")
            return [abs(inputs[0])]

    with vkmnn.InferenceSession(chain("Abs"), "told") as session:
        (y,) = session.run(None, {"x": X})
        np.testing.assert_array_equal(y, abs(X))
        assert told == ["begin", "op", "end"]
        with pytest.raises(InvalidInputError, match="not a number"):
            session.run(None, {"x": X * np.float32("nan")})
        assert told == ["begin", "op", "end"] * 2
