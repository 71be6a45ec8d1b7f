"""Jobs of a server that take turns: nobody waits for one with much to prepare."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("starlette")
pytest.importorskip("tokenizers")

from vkmnn.serve.limits import HttpError
from vkmnn.serve.models import Models
from vkmnn.serve.turns import Turns


class Clock:
    """Seconds that steps take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(jobs: list[tuple[str, int, int]]) -> list[tuple[str, int, float]]:
    """Run jobs, given by name, preparing work and other steps; return the steps and their ends.

    A step of preparing handles 32 and takes 10 s; another one takes 1 s.
    """
    clock, told = Clock(), list[tuple[str, int, float]]()

    def steps(name: str, left: int, count: int) -> Iterator[int]:
        while left > 0:
            left -= 32
            clock.now += 10
            told.append((name, max(left, 0), clock.now))
            yield max(left, 0)
        for _ in range(count):
            clock.now += 1
            told.append((name, 0, clock.now))
            yield 0

    async def all_of_them() -> None:
        turns = Turns(16, 8, "turns", left=lambda left: int(left), clock=clock)
        events: asyncio.Queue[Any] = asyncio.Queue()
        with turns._change:  # so that all begin together
            made = [
                turns.add(lambda job=job: steps(*job), events, job[1])  # type: ignore[misc]
                for job in jobs
            ]
        async for _ in turns.each(None, made, events):
            pass
        turns.close()

    asyncio.run(all_of_them())
    return told


def test_a_long_prompt_has_a_share_of_the_time() -> None:
    told = run([("long", 4000, 3), ("a", 0, 400), ("b", 0, 400)])
    assert {name for name, _, _ in told} == {"long", "a", "b"}
    ends = [time for name, left, time in told if name == "long" and left]
    others = [time for name, _, time in told if name in "ab"]
    for number, end in enumerate(ends):
        if end < others[-1]:
            spent = sum(time <= end for time in others)
            assert 10 * number <= 0.25 * spent + 10
    shorts = [time for name, _, time in told if name == "a"]
    assert max(b - a for a, b in pairwise(shorts)) <= 12  # one step of each


def test_short_prompts_do_not_wait_for_long_ones() -> None:
    told = run([("long", 4000, 1), ("short", 64, 20), ("other", 0, 100)])
    end = next(time for name, left, time in told if name == "short" and not left)
    assert sum(name == "long" and time < end for name, _, time in told) <= 2
    told = run([("longer", 4000, 1), ("long", 1000, 1)])
    names = [name for name, left, _ in told if left > 128]
    first = names[: names.index("long") + 20]
    assert first.count("longer") == first.count("long") // 3  # the oldest has every fourth turn
    assert [name for name, _, _ in told][-1] == "longer"


def test_long_prompts_do_not_take_all_places() -> None:
    told = run([(f"long {n}", 4000, 1) for n in range(12)] + [("short", 32, 9)])
    end = next(place for place, (name, *_) in enumerate(told) if name == "short")
    assert end <= 4
    assert {name for name, left, _ in told if name.startswith("long") and not left} == {
        f"long {n}" for n in range(12)
    }


def test_nothing_slows_a_long_prompt_alone() -> None:
    told = run([("long", 3200, 5)])
    assert told[-1][2] == 10 * 100 + 5


def test_a_cancelled_prompt_frees_its_place_at_once() -> None:
    async def check() -> None:
        turns = Turns(4, 2, "turns", left=lambda left: int(left))
        closed, events = asyncio.Event(), asyncio.Queue[Any]()
        loop = asyncio.get_running_loop()

        def endless() -> Iterator[int]:
            try:
                while True:
                    yield 4000
            finally:
                loop.call_soon_threadsafe(closed.set)

        long = turns.add(endless, events, 4000)
        await events.get()
        turns.cancel(long)
        await asyncio.wait_for(closed.wait(), 20)
        while turns.active:
            await asyncio.sleep(0.01)
        turns.close()

    asyncio.run(check())


def test_a_full_queue_refuses_and_a_cancelled_job_frees_its_place() -> None:
    async def check() -> None:
        turns = Turns(1, 1, "turns")
        gate = asyncio.Queue[Any]()
        running = turns.add(lambda: iter(range(10**9)), gate)
        await gate.get()
        waiting = turns.add(lambda: iter(()))
        with pytest.raises(HttpError) as error:
            turns.add(lambda: iter(()))
        assert error.value.status == 503
        assert error.value.headers["Retry-After"]
        turns.cancel(waiting)
        assert turns.waiting == 0
        last = turns.add(lambda: iter([7]))
        turns.cancel(running)
        assert await last.events.get() == 7
        turns.close()

    asyncio.run(check())


def test_as_many_texts_take_turns_as_every_model_takes() -> None:
    """A text that waits for a model's caches would hold up all others."""
    models = Models()
    assert models.texts_at_once == 8
    models.language["many"] = cast(Any, SimpleNamespace(texts_at_once=64))
    assert models.texts_at_once == 64
    models.language["few"] = cast(Any, SimpleNamespace(texts_at_once=8))
    assert models.texts_at_once == 8

    async def check() -> None:
        most = 1
        turns = Turns(2, lambda: most, "turns")
        gate = asyncio.Queue[Any]()
        running = turns.add(lambda: iter(range(10**9)), gate)
        await gate.get()
        waiting = turns.add(lambda: iter([7]))
        assert turns.waiting == 1
        most = 2
        assert await asyncio.wait_for(waiting.events.get(), 20) == 7
        turns.cancel(running)
        turns.close()

    asyncio.run(check())
