"""Sixteen threads over four sessions of one network, with callbacks on."""

from __future__ import annotations

import resource
import threading
import time
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import vkmnn
from tests.session.models import model, value
from vkmnn import Interpreter, OpCall

RNG = np.random.default_rng(16)
THREADS, SESSIONS = 16, 4
W1 = RNG.standard_normal((8, 16)).astype(np.float32)
W2 = RNG.standard_normal((16, 5)).astype(np.float32)


def network() -> Any:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="tanh"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="second"),
        helper.make_node("Softmax", ["c"], ["y"], name="softmax"),
    ]
    constants = [numpy_helper.from_array(W1, "w1"), numpy_helper.from_array(W2, "w2")]
    return model(nodes, [value("x", [3, 8])], [value("y", [3, 5])], constants)


def answer(x: Any) -> Any:
    c = np.tanh(x @ W1) @ W2
    e = np.exp(c - c.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Storm:
    """Threads that run sessions with callbacks until the time is over; four share a session."""

    def __init__(self) -> None:
        self.net = Interpreter(network())
        self.sessions = [self.net.create_session() for _ in range(SESSIONS)]
        self.errors: list[BaseException] = []
        self.runs = 0
        self.calls = 0

    def run(self, seconds: float) -> int:
        """Run for a while; return the peak memory of the process, in KiB."""
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._work, args=(number, end)) for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def _work(self, number: int, end: float) -> None:
        session = self.sessions[number % SESSIONS]
        rng = np.random.default_rng(number)
        try:
            while time.monotonic() < end and not self.errors:
                self._once(session, rng.standard_normal((3, 8)).astype(np.float32))
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.errors.append(error)

    def _once(self, session: Any, x: Any) -> None:
        seen: list[tuple[str, str]] = []

        def before(call: OpCall, values: Any) -> None:
            seen.append(("before", call.name))

        def after(call: OpCall, values: Any) -> None:
            seen.append(("after", call.name))
            assert all(np.isfinite(array).all() for array in values.values())

        with session.lock:  # from the input to the output, the tensors are this thread's
            session.inputs["x"].copy_from(x)
            self.net.run_session_with_callback(session, before, after)
            y = session.outputs["y"].copy_to()
        np.testing.assert_allclose(y, answer(x), rtol=1e-3, atol=1e-5)
        names = [name for when, name in seen if when == "before"]
        assert seen == [(when, name) for name in names for when in ("before", "after")]
        assert len(names) == 3  # tanh is a part of the first product
        self.runs += 1
        self.calls += len(seen)


def weather(seconds: float, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    storm = Storm()
    first = storm.run(seconds / 3)
    plans = [session.core.counters()["plans"] for session in storm.sessions]
    held = storm.sessions[0].core.counters()["allocations"]
    last = storm.run(seconds * 2 / 3)
    assert storm.errors == []
    assert storm.runs >= THREADS
    assert storm.calls == 6 * storm.runs
    assert [session.core.counters()["plans"] for session in storm.sessions] == plans
    assert storm.sessions[0].core.counters()["allocations"] == held
    assert last - first < 20_000, f"{last - first} KiB more"
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []
    assert capfd.readouterr().err == ""
    storm.net.close()
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("vkmnn-numpy") for name in names)


def test_threads_with_callbacks(caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    weather(1.5, caplog, capfd)


@pytest.mark.soak
def test_threads_with_callbacks_for_some_time(caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    weather(8, caplog, capfd)


def test_a_lock_is_the_threads_own() -> None:
    session = Interpreter(network()).create_session({"device": "cpu"})
    with session.lock, session.lock:
        other: list[bool] = []
        thread = threading.Thread(target=lambda: other.append(session.lock.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert other == [False]
    assert vkmnn.Session is type(session)
