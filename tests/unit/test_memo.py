"""Tables of results for equal keys: computed once, and bounded."""

from __future__ import annotations

import threading

import numpy as np

from vkmnn.base.memo import Memo
from vkmnn.ir import alike
from vkmnn.ir.ops import BinaryAttrs


def test_a_result_is_computed_once() -> None:
    memo: Memo[str, list[int]] = Memo(4)
    first = memo.once("a", lambda: [1])
    assert memo.once("a", lambda: [2]) is first
    assert memo.get("a") is first
    assert memo.get("b") is None
    assert "a" in memo


def test_a_full_one_begins_anew() -> None:
    memo: Memo[int, int] = Memo(3)
    for number in range(100):
        assert memo.once(number, lambda number=number: number * 2) == number * 2
        assert len(memo) <= 3
    memo = Memo(3)
    for number in (0, 1, 2):
        memo.keep(number, number)
    memo.keep(2, 9)  # is there already: nothing is forgotten
    assert [memo.get(number) for number in range(3)] == [0, 1, 2]
    memo.keep(3, 3)
    assert [memo.get(number) for number in range(4)] == [None, None, None, 3]


def test_the_first_of_several_threads_decides() -> None:
    memo: Memo[str, object] = Memo(4)
    barrier, found = threading.Barrier(4), []

    def find() -> object:
        barrier.wait(20)  # all of them have seen that there is none
        return object()

    threads = [
        threading.Thread(target=lambda: found.append(memo.once("a", find))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 4
    assert all(one is found[0] for one in found)


def test_a_result_can_be_replaced_and_may_be_none() -> None:
    memo: Memo[str, int | None] = Memo(1)
    memo.keep("a", 1)
    memo.replace("a", None)
    assert "a" in memo
    assert memo.get("a") is None
    assert len(memo) == 1


def test_texts_of_attributes_are_bounded() -> None:
    many = [BinaryAttrs("ADD") for _ in range(2 * alike.MAX_ALIKE + 5)]
    assert {alike.attrs_text(one) for one in many} == {repr(many[0])}
    assert len(alike._texts) <= 2 * alike.MAX_ALIKE


def test_contents_differ_by_type_shape_and_bits() -> None:
    arrays = [
        np.zeros(2, np.float32),
        np.zeros(2, np.int32),
        np.zeros((1, 2), np.float32),
        -np.zeros(2, np.float32),
    ]
    assert len({alike.content_key(array) for array in arrays}) == 4
    assert alike.content_key(np.zeros(2, np.float32)) == alike.content_key(arrays[0])
    assert alike.is_comparable(np.zeros(64, np.float32))
    assert not alike.is_comparable(np.zeros(65, np.float32))
