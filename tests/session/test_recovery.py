"""on_device_lost="rebuild": a session outlives its device, and reports when it cannot."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import vkmnn
from vkmnn.errors import DeviceLostError, InvalidInputError
from vkmnn.runtime import Device
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.runtime.recorder import CommandBuffer

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"

pytestmark = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")


@pytest.fixture(autouse=True)
def _nobody_else_uses_the_device() -> None:
    """A lost device is closed when the last who uses it is gone: others may have been before."""
    open_device().close()


def images(count: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(0).random((count, 1, 8, 8), dtype=np.float32)}


def rebuilding(**changes: object) -> vkmnn.InferenceSession:
    return vkmnn.InferenceSession(DIGITS, on_device_lost="rebuild", **changes)


def lose_in_runs(monkeypatch: pytest.MonkeyPatch, times: int) -> list[Device]:
    """Let devices be lost while commands run on them; return the lost ones."""
    lost: list[Device] = []
    real = CommandBuffer.run_inside

    def run(self: CommandBuffer, timeout_s: float | None = None) -> None:
        real(self, timeout_s)
        if len(lost) < times:
            lost.append(self.device)
            self.device.mark_lost("for the test")
            self.device.raise_unusable()

    monkeypatch.setattr(CommandBuffer, "run_inside", run)
    return lost


def test_a_run_is_done_once_more_on_a_new_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with rebuilding() as session:
        expected = session.run(None, images(2))[0]
        lost = open_device()
        losses = lose_in_runs(monkeypatch, 1)
        np.testing.assert_array_equal(session.run(None, images(2))[0], expected)
        assert lost.lost
        assert lost.closed
        assert lost.stats() == {}
        assert open_device() is not lost
        session.profile(images(2), runs=1)
    assert losses == [lost]


@pytest.mark.parametrize("call", ["run", "profile", "tune"])
def test_a_device_that_others_lost_is_noticed(call: str) -> None:
    with rebuilding() as session:
        session.run(None, images(1))
        for _ in range(2):
            open_device().mark_lost("for the test")
            if call == "run":
                session.run(None, images(1))
            else:
                getattr(session, call)(images(1), runs=1)


def test_a_second_loss_in_a_row_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with rebuilding() as session:
        expected = session.run(None, images(1))[0]
        lost = lose_in_runs(monkeypatch, 2)
        with pytest.raises(DeviceLostError, match="is lost"):
            session.run(None, images(1))
        assert len(set(lost)) == 2
        np.testing.assert_array_equal(session.run(None, images(1))[0], expected)


def test_without_the_option_the_error_says_what_to_do() -> None:
    with vkmnn.InferenceSession(DIGITS) as session:
        session.run(None, images(1))
        open_device().mark_lost("for the test")
        for _ in range(2):
            with pytest.raises(DeviceLostError, match=r"rebuild the session.*on_device_lost"):
                session.run(None, images(1))


def test_sessions_and_threads_share_the_new_device() -> None:
    sessions = [rebuilding() for _ in range(4)]
    expected = sessions[0].run(None, images(2))[0]
    results: list[np.ndarray] = []
    errors: list[Exception] = []

    def work(session: vkmnn.InferenceSession) -> None:
        try:
            results.extend(session.run(None, images(2))[0] for _ in range(20))
        except vkmnn.VkmnnError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in sessions * 2]
    for thread in threads:
        thread.start()
    first = open_device()
    first.mark_lost("for the test")
    for thread in threads:
        thread.join()
    assert not errors
    assert len(results) == 160
    for result in results:
        np.testing.assert_array_equal(result, expected)
    for session in sessions:
        session.close()
    open_device()
    assert first.closed


def test_other_values_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="is not known"):
        vkmnn.InferenceSession(DIGITS, on_device_lost="retry")  # type: ignore[arg-type]
