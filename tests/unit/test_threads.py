"""Work is done by threads, or by who has it to do where there are none."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from vkmnn.threads import Workers


def test_threads_do_the_work() -> None:
    with Workers(2, "some") as workers:
        names = [workers.submit(lambda: threading.current_thread().name) for _ in range(4)]
    assert all(name.result().startswith("some") for name in names)


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
