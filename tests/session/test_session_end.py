"""`close` is final, whatever else is happening."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vkmnn
from vkmnn.errors import InvalidInputError
from vkmnn.runtime.device import enumerate_devices

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
X = {"image": np.zeros((1, 1, 8, 8), np.float32)}

CALLS: dict[str, Callable[[vkmnn.InferenceSession], object]] = {
    "run": lambda session: session.run(None, X),
    "profile": lambda session: session.profile(X, runs=1),
    "tune": lambda session: session.tune(X, runs=1),
    "placement": lambda session: session.placement(),
    "memory": lambda session: session.memory(),
}


@pytest.fixture(params=["cpu", "auto"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "auto" and not enumerate_devices():
        pytest.skip("no Vulkan device")
    return str(request.param)


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_closed_session_refuses_everything(device: str, name: str, planned: bool) -> None:
    session = vkmnn.InferenceSession(DIGITS, device)
    if planned:
        session.run(None, X)
    session.close()
    session.close()
    with pytest.raises(InvalidInputError, match="the session has been closed"):
        CALLS[name](session)


def test_a_closed_session_cannot_be_resized(device: str) -> None:
    interpreter = vkmnn.Interpreter.from_file(DIGITS)
    session = interpreter.create_session(vkmnn.ScheduleConfig(device=device))
    image = interpreter.get_session_input(session)
    interpreter.resize_tensor(session, image, (2, 1, 8, 8))
    session.close()
    with pytest.raises(InvalidInputError, match="the session has been closed"):
        interpreter.resize_session(session)


def test_closing_waits_for_the_running_call(device: str) -> None:
    session = vkmnn.InferenceSession(DIGITS, device)
    expected = session.run(None, X)[0]
    runs: list[np.ndarray] = []
    ends: list[str] = []

    def work() -> None:
        try:
            while True:
                runs.append(session.run(None, X)[0])
        except InvalidInputError as error:
            ends.append(error.message)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(runs) < 10:
        time.sleep(0.001)
    session.close()
    for thread in threads:
        thread.join()
    assert ends == ["the session has been closed"] * 3
    for result in runs:
        np.testing.assert_array_equal(result, expected)


def test_runs_may_be_submitted_while_another_thread_closes(device: str) -> None:
    end = time.monotonic() + 2
    sessions = [vkmnn.InferenceSession(DIGITS, device)]

    def close_again_and_again() -> None:
        while time.monotonic() < end:
            closed, sessions[0] = sessions[0], vkmnn.InferenceSession(DIGITS, device)
            closed.close()

    def submit_again_and_again() -> None:
        while time.monotonic() < end:
            with contextlib.suppress(InvalidInputError):
                sessions[0].submit(X)

    works = [close_again_and_again, *[submit_again_and_again] * 4]
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end + 30 - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads)
    sessions[0].close()
