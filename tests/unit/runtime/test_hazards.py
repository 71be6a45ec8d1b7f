from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from vkmnn.runtime.hazards import BufferHazards, IntervalSet

RANGES = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), RANGES), max_size=30), RANGES)
def test_interval_set_behaves_like_a_set_of_bytes(
    changes: list[tuple[str, tuple[int, int]]], probe: tuple[int, int]
) -> None:
    intervals, model = IntervalSet(), set()
    for action, (start, end) in changes:
        getattr(intervals, action)(start, end)
        model = (
            model | set(range(start, end)) if action == "add" else model - set(range(start, end))
        )
    pairs = list(zip(intervals.bounds[::2], intervals.bounds[1::2], strict=True))
    assert {byte for start, end in pairs for byte in range(start, end)} == model
    assert all(start < end for start, end in pairs)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(pairs))
    assert intervals.overlaps(*probe) == bool(model & set(range(*probe)))
    intervals.remove(0, 100)
    assert not intervals.bounds


def test_reads_of_constant_memory_are_one_read_of_all() -> None:
    state = BufferHazards(constant=True)
    state.note_read(0, 4, 2)
    assert state.is_read(100, 104, 2)
    assert not state.is_read(0, 4, 3)
    state.note_write(0, 4)
    state.note_read(8, 12, 3)
    assert not state.is_read(100, 104, 3)
    assert state.is_read(8, 9, 3)
    state.pass_barrier(visible_to_writes=False)
    assert not state.is_read(8, 9, 4)
    assert not state.written.overlaps(0, 4)
    assert state.stale.overlaps(0, 4)
    state.pass_barrier(visible_to_writes=True)
    assert not state.stale.overlaps(0, 4)
