"""How many items share a run by default: as many as do not change results, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vkmnn.batch import sizing
from vkmnn.batch.sizing import MOST, Trial, sized
from vkmnn.errors import DeviceLostError, InvalidInputError, OutOfDeviceMemoryError, VkmnnError

Array = np.ndarray[Any, np.dtype[Any]]


ONES = np.ones((1, 4), np.float32)


class Clock:
    """The clock of trials, which stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the seconds since the start."""
        return self.now

    def wait(self, x: Array, seconds: float) -> Array:
        """Return an array as if that had taken long."""
        self.now += seconds
        return x


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sizing, "time", made)
    return made


def trial(function: Callable[[Array], Array], item: Array = ONES, held: int = 0) -> Any:
    """Return the choice for a function of a batch, and the sizes of its runs."""
    sizes: list[int] = []

    def run(feeds: Any) -> list[Array]:
        sizes.append(len(feeds["x"]))
        return [function(feeds["x"])]

    def feeds(one: Any) -> Any:
        if isinstance(one, VkmnnError):
            raise one
        return None if one is None else ({"x": one}, held)

    items = [InvalidInputError("damaged"), None, item, item]
    size, reason, rest = sized(Trial(feeds, run), items, 1000)
    assert all(one is other for one, other in zip(rest, items, strict=True))
    return size, reason, sizes


def test_independent_rows_share_runs() -> None:
    size, reason, sizes = trial(lambda x: x * 2)
    assert (size, sizes) == (MOST, [1, 1, MOST])
    assert reason == "more would gain little"


def test_items_of_several_rows_are_joined() -> None:
    assert trial(lambda x: x * 2, np.ones((3, 4), np.float32))[2] == [3, 3, 3 * MOST]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0, keepdims=True),
        lambda x: x.sum(0),
        lambda x: x[:1],
        lambda x: x.sum(),
        lambda x: np.argsort(x[:, 0]),
    ],
)
def test_rows_that_depend_on_each_other_run_alone(function: Callable[[Array], Array]) -> None:
    size, reason, _ = trial(function)
    assert size == 1
    assert "depend on the others" in reason


def test_bounds_of_memory_and_time(clock: Clock) -> None:
    assert trial(lambda x: x, np.ones((1, 1 << 20), np.float32))[:2] == (4, "they are large")
    assert trial(lambda x: x, np.ones((1, 1 << 23), np.float32))[0] == 1
    assert trial(lambda x: x, held=3 << 20)[:2] == (4, "they are large")
    assert trial(lambda x: clock.wait(x, 0.05))[:2] == (4, "each takes long")
    assert trial(lambda x: clock.wait(x, 0.3))[:2] == (1, "each takes long")


def failing(error: VkmnnError, above: int) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        if len(x) > above:
            raise error
        return x

    return run


def test_failures_lower_the_size() -> None:
    size, reason, sizes = trial(failing(OutOfDeviceMemoryError("full"), 8))
    assert (size, sizes) == (8, [1, 1, 32, 16, 8])
    assert "memory" in reason
    assert trial(failing(InvalidInputError("fixed inside"), 1))[:2] == (
        1, "a run of 32 failed: fixed inside",
    )  # fmt: skip
    assert trial(failing(InvalidInputError("wrong"), 0))[0] == 1
    with pytest.raises(DeviceLostError):
        trial(failing(DeviceLostError("gone"), 1))


def test_items_that_tell_nothing_run_alone() -> None:
    """Equal whole numbers are the same in any order."""
    size, reason, sizes = trial(lambda x: x, np.ones((1, 4), np.int64))
    assert (size, sizes) == (1, [])
    assert "no item shows" in reason


@pytest.mark.parametrize(
    ("held", "step", "size"), [(100, 1, 16), (3 << 20, 1, 5), (1 << 30, 1, 1), (100, 6, 12),
                               (1 << 30, 6, 6), (100, 64, 64)],
)  # fmt: skip
def test_items_that_never_share_a_run_are_taken_in_turn(held: int, step: int, size: int) -> None:
    """A thread takes several at once, within the memory; a fixed batch is filled."""
    made = Trial(lambda _: ({"x": ONES}, held), None, step)
    assert sized(made, iter([1, 2]), 1000)[:2] == (size, "")
    assert sized(made, iter([1, 2]), 8)[0] == step


def test_short_jobs_take_no_trial() -> None:
    items = [1, 2]
    size, reason, rest = sized(Trial(lambda _: pytest.fail("it was read"), lambda _: []), items, 15)
    assert (size, reason, list(rest)) == (1, "", items)
