"""Which pipelines a device keeps."""

from __future__ import annotations

import gc
from concurrent.futures import Future
from typing import Any

import pytest

from vkmnn.runtime import pipeline_store
from vkmnn.runtime.pipeline_store import PipelineStore


class Driver:
    """Stands in for a driver's pipeline."""


def key(number: int) -> Any:
    return "shader", (number,)


def settled(value: object = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_store, "KEPT_PIPELINES", 3)


def test_those_used_last_are_kept() -> None:
    store = PipelineStore()
    for number in (0, 1, 2, 0, 3):
        store.claim(key(number), settled())
    assert [number for number in range(4) if key(number) in store] == [0, 2, 3]


def test_who_claims_first_makes_it() -> None:
    store, first, second = PipelineStore(), settled(), settled()
    assert store.claim(key(0), first) is first
    assert store.claim(key(0), second) is first
    store.give_up(key(0), second)
    assert key(0) in store
    store.give_up(key(0), first)
    assert key(0) not in store


def test_those_being_built_stay() -> None:
    store = PipelineStore()
    pending: list[Future[Any]] = [Future() for _ in range(5)]
    for number, future in enumerate(pending):
        store.claim(key(number), future)
    store.clear()
    assert all(key(number) in store for number in range(5))


def test_what_is_used_elsewhere_is_known() -> None:
    store, used, unused = PipelineStore(), Driver(), Driver()
    for number, driver in enumerate((used, unused)):
        store.claim(key(number), settled(driver))
        store.keep(key(number), driver)  # type: ignore[arg-type]
    del driver, unused
    store.clear()
    gc.collect()
    assert store.alive(key(0)) is used
    assert store.alive(key(1)) is None
    assert key(1) not in store
