"""Work is done by threads, or by the calling thread if there are none."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest

from vkmnn.base.threads import PatientFuture, Workers


def test_threads_do_the_work() -> None:
    with Workers(2, "some") as workers:
        names = [workers.submit(lambda: threading.current_thread().name) for _ in range(4)]
    assert all(name.result().startswith("some") for name in names)


def test_without_threads_the_caller_works() -> None:
    with Workers(0, "some") as workers:
        name = workers.submit(lambda: threading.current_thread().name)
        assert name.done()
        with pytest.raises(ZeroDivisionError):
            workers.submit(lambda: 1 // 0).result()
    assert name.result() == threading.current_thread().name


@pytest.mark.parametrize("kept", [False, True], ids=["refused", "kept"])
def test_the_caller_works_where_there_is_no_thread(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    def submit(pool: ThreadPoolExecutor, work: object) -> None:
        if kept:  # as the pool does when the system has no thread left
            real(pool, work)  # type: ignore[arg-type]
        raise RuntimeError("can't start new thread")

    real = ThreadPoolExecutor.submit
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    calls: list[int] = []
    with Workers(1, "some") as workers:
        futures = [workers.submit(calls.append, i) for i in range(5)]
        assert all(future.result() is None for future in futures)
    assert sorted(calls) == list(range(5))


def test_errors_come_with_the_result_and_are_not_kept() -> None:
    class Thing:
        pass

    def fail(thing: Thing) -> None:
        raise ValueError(str(type(thing)))

    thing = Thing()
    seen = weakref.ref(thing)
    gc.disable()
    try:
        with Workers(1, "some") as workers:
            future = workers.submit(fail, thing)
            with pytest.raises(ValueError, match="Thing"):
                future.result()
        del future, thing, workers
        assert seen() is None
    finally:
        gc.enable()


def test_a_future_whose_condition_stays_locked() -> None:
    """Ctrl-C may leave it like that; those that wait for the outcome still get it."""
    for settle in (lambda f: f.set_result(7), lambda f: f.set_exception(KeyError("x"))):
        future: PatientFuture[int] = PatientFuture()
        owner = threading.Thread(target=future._condition.acquire)
        owner.start()
        owner.join()
        settler = threading.Thread(target=settle, args=(future,), daemon=True)
        settler.start()
        error = future.exception(5)
        assert future.done()
        if error is None:
            assert future.result(5) == 7
        else:
            with pytest.raises(KeyError):
                future.result(5)


def test_the_first_outcome_counts() -> None:
    future: PatientFuture[int] = PatientFuture()
    with pytest.raises(FutureTimeoutError):
        future.result(0.01)
    future.set_result(1)
    future.set_exception(KeyError())
    future.set_result(2)
    assert future.result() == 1
    assert future.exception() is None
    assert not future.cancel()


def test_what_is_cancelled_says_so() -> None:
    future: PatientFuture[int] = PatientFuture()
    assert future.cancel()
    assert future.done()
    with pytest.raises(CancelledError):
        future.result(1)
    with pytest.raises(CancelledError):
        future.exception(1)


@pytest.mark.skipif(sys.platform == "win32", reason="raises a signal in the process itself")
def test_ctrl_c_comes_after_work_was_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[str] = []

    def submit(self: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        signal.raise_signal(signal.SIGINT)
        handed.append("whole")
        work()

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Workers(1, "test") as workers, pytest.raises(KeyboardInterrupt):
            workers.submit(handed.append, "work")
        assert handed == ["whole", "work"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
