from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkmnn.errors import InvalidInputError
from vkmnn.runtime import Lifetime, memory_plan, plan_buffers, plan_offsets

LIFETIMES = st.builds(
    lambda first, length, nbytes, alignment: Lifetime(first, first + length, nbytes, alignment),
    st.integers(0, 20),
    st.integers(0, 8),
    st.integers(0, 1000),
    st.sampled_from([1, 16, 256]),
)


@given(st.lists(LIFETIMES, max_size=25))
def test_ranges_alive_together_do_not_overlap(lifetimes: list[Lifetime]) -> None:
    offsets, total, bound = plan_offsets(lifetimes)
    placed = list(zip(lifetimes, offsets, strict=True))
    for (a, at_a), (b, at_b) in itertools.combinations(placed, 2):
        if a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes:
            assert at_a + a.nbytes <= at_b or at_b + b.nbytes <= at_a
    assert all(offset % item.alignment == 0 for item, offset in placed)
    assert total == max((at + item.nbytes for item, at in placed if item.nbytes), default=0)
    steps = range(30)
    alive = (sum(i.nbytes for i in lifetimes if i.first <= step <= i.last) for step in steps)
    assert bound == max(alive)
    assert bound <= total


@pytest.mark.parametrize("length", [1, 2, 7, 100])
def test_a_chain_needs_two_ranges(length: int) -> None:
    chain = [Lifetime(step, step + 1, 256) for step in range(length)]
    _offsets, total, bound = plan_offsets(chain)
    assert total == bound == 256 * min(length, 2)


def test_the_smallest_gap_that_holds_a_range_is_used() -> None:
    lifetimes = [
        Lifetime(0, 0, 3000, 1),  # becomes a gap of 3000 at step 1
        Lifetime(0, 1, 2000, 1),
        Lifetime(0, 0, 1700, 1),  # becomes a gap of 1700
        Lifetime(0, 1, 700, 1),
        Lifetime(1, 1, 600, 1),
    ]
    offsets, total, bound = plan_offsets(lifetimes)
    assert offsets[4] == offsets[2]
    assert total == bound == 7400


def test_ranges_on_top_begin_the_next_attempt() -> None:
    """The largest first, once and for all, would take 17 bytes."""
    spans = [(2, 3, 3), (3, 4, 3), (0, 3, 5), (2, 5, 5), (1, 1, 6)]
    _offsets, total, bound = plan_offsets([Lifetime(*span, 1) for span in spans])
    assert total == bound == 16


def test_an_order_that_wastes_nothing_comes_first_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other sizes of a network have the same lifetimes."""
    spans = [(2, 3, 3), (3, 4, 3), (0, 3, 5), (2, 5, 5), (1, 1, 6)]
    attempts, place = 0, memory_plan._place_in_order

    def counted(*arguments: Any) -> tuple[list[int], int]:
        nonlocal attempts
        attempts += 1
        return place(*arguments)

    plan_offsets([Lifetime(*span, 1) for span in spans])
    monkeypatch.setattr(memory_plan, "_place_in_order", counted)
    lifetimes = [Lifetime(first, last, 7 * nbytes, 1) for first, last, nbytes in spans]
    _offsets, total, bound = plan_offsets(lifetimes)
    assert total == bound == 7 * 16
    assert attempts == 1


def test_nothing_to_place() -> None:
    assert plan_offsets([]) == ([], 0, 0)
    assert plan_offsets([Lifetime(0, 3, 0)]) == ([0], 0, 0)


@given(st.lists(LIFETIMES, max_size=25))
def test_buffers_are_shared_by_ranges_that_never_meet(lifetimes: list[Lifetime]) -> None:
    numbers, sizes, bound = plan_buffers(lifetimes)
    placed = list(zip(lifetimes, numbers, strict=True))
    for (a, in_a), (b, in_b) in itertools.combinations(placed, 2):
        if a.first <= b.last and b.first <= a.last:
            assert in_a != in_b
    for number, size in enumerate(sizes):
        assert size == max(item.nbytes for item, other in placed if other == number)
    assert bound == plan_offsets(lifetimes)[2] <= sum(sizes)


def test_a_range_takes_the_smallest_buffer_that_is_free() -> None:
    lifetimes = [Lifetime(0, 1, 900), Lifetime(0, 0, 800), Lifetime(0, 0, 700), Lifetime(1, 1, 600)]
    assert plan_buffers(lifetimes) == ([0, 1, 2, 2], [900, 800, 700], 2400)
    assert plan_buffers([]) == ([], [], 0)


@pytest.mark.parametrize("bad", [(3, 2, 4, 1), (0, 1, -4, 1), (0, 1, 4, 0)])
def test_impossible_lifetimes_are_refused(bad: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidInputError, match="not a lifetime"):
        Lifetime(*bad)


def crowded(count: int, seed: int = 3) -> list[Lifetime]:
    """Ranges with arbitrary lifetimes: most overlap each other."""
    rng = random.Random(seed)
    return [
        Lifetime(first, rng.randint(first, count), 256 * rng.randint(1, 99))
        for first in range(count)
    ]


def chain(count: int, seed: int = 3) -> list[Lifetime]:
    """Ranges that overlap their neighbours only, and do not fit into each other's gaps."""
    rng = random.Random(seed)
    return [Lifetime(i, i + rng.randint(1, 3), 256 * rng.randint(1, 99)) for i in range(count)]


@pytest.mark.parametrize("make", [chain, crowded])
@pytest.mark.parametrize("count", [3000, 12000])
def test_what_a_plan_looks_at_is_bounded(
    make: Callable[[int], list[Lifetime]], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, best_fit = 0, memory_plan._best_fit

    def counted(taken: Sequence[tuple[int, int]], nbytes: int, alignment: int) -> int:
        nonlocal looks
        looks += len(taken)
        return best_fit(taken, nbytes, alignment)

    monkeypatch.setattr(memory_plan, "_best_fit", counted)
    lifetimes = make(count)
    _offsets, total, bound = plan_offsets(lifetimes)
    assert looks < min(memory_plan.WORK, 8 * 4 * count + 1), "the plan is quadratic"
    assert bound <= total < 1.35 * bound


def test_what_sharing_buffers_tries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, is_free = 0, memory_plan._is_free

    def counted(spans: Sequence[tuple[int, int]], span: tuple[int, int]) -> bool:
        nonlocal tried
        tried += 1
        return is_free(spans, span)

    monkeypatch.setattr(memory_plan, "_is_free", counted)
    plan_buffers([Lifetime(i, 2000, 256) for i in range(2000)])
    assert 0 < tried <= 2000 * memory_plan.MAX_BUFFERS_TRIED


def test_a_gap_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges smaller than their alignment leave gaps between them, which need not be looked at."""
    aligned, align = 0, memory_plan._align

    def counted(offset: int, alignment: int) -> int:
        nonlocal aligned
        aligned += 1
        return align(offset, alignment)

    monkeypatch.setattr(memory_plan, "_align", counted)
    lifetimes = [Lifetime(i, 3000, 64) for i in range(2000)]
    assert plan_offsets(lifetimes)[1] == 1999 * 256 + 64
    assert aligned <= 6 * len(lifetimes)


@given(st.lists(LIFETIMES, max_size=25))
def test_placing_by_time_is_a_plan_too(lifetimes: list[Lifetime]) -> None:
    """The result of `plan_offsets` with too many neighbours."""
    offsets, total = memory_plan._place_by_time(lifetimes)
    used = [(item, at) for item, at in zip(lifetimes, offsets, strict=True) if item.nbytes]
    for (a, at_a), (b, at_b) in itertools.combinations(used, 2):
        if a.first <= b.last and b.first <= a.last:
            assert at_a + a.nbytes <= at_b or at_b + b.nbytes <= at_a
    assert all(at % item.alignment == 0 for item, at in used)
    assert total == max((at + item.nbytes for item, at in used), default=0)
