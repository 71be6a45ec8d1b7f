"""Requests of several clients in one run: which are joined, and what each receives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

from tests.serve.test_repository import multiplier
from vkmnn import InvalidInputError
from vkmnn.base.row_proofs import are_close, other_than
from vkmnn.errors import DeviceLostError, OutOfDeviceMemoryError
from vkmnn.inference_session import NodeArg
from vkmnn.serve import Running, load_models
from vkmnn.serve.joining import Batching, joined, split
from vkmnn.serve.limits import HttpError
from vkmnn.serve.networks import Asked, Network

Array = Any
OPEN = NodeArg("x", "tensor(float)", ["n", None], "float32")
RESULT = NodeArg("y", "tensor(float)", ["n", None], "float32")


class Session:
    """A session that computes a function, and keeps the inputs of its runs."""

    def __init__(
        self, do: Callable[[Array], Array] = lambda x: x * 2, args: Sequence[NodeArg] = (OPEN,)
    ) -> None:
        self.do = do
        self.args = list(args)
        self.runs: list[Array] = []
        self.go = threading.Event()
        self.go.set()
        self.lost = False
        self.closed = False

    def get_inputs(self) -> list[NodeArg]:
        return self.args

    def get_outputs(self) -> list[NodeArg]:
        return [RESULT]

    def run(self, names: list[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        assert self.go.wait(30)
        self.runs.append(feeds["x"])
        return [self.do(feeds["x"])]

    def close(self) -> None:
        self.closed = True


def numbers(*shape: int, first: float = 0.0) -> dict[str, Array]:
    size = int(np.prod(shape))
    return {"x": np.arange(first, first + size, dtype=np.float32).reshape(shape)}


def outcomes(
    network: Network, requests: Sequence[Mapping[str, Any]], session: Session
) -> list[Any]:
    """Return what requests receive that arrive while a run is in progress."""

    async def ask() -> list[Any]:
        session.go.clear()
        first = network.add(numbers(1, 9), ["y"], 999)
        while not network.running:
            await asyncio.sleep(0.001)
        asked = [network.add(dict(feeds), ["y"], 999) for feeds in requests]
        session.go.set()
        done = await asyncio.gather(*(one.future for one in asked), return_exceptions=True)
        await first.future
        return [one if isinstance(one, BaseException) else one[0] for one in done]

    try:
        return asyncio.run(ask())
    finally:
        network.close()


def test_requests_of_several_sizes_share_runs() -> None:
    session = Session()
    network = Network("m", "1", [session], Batching(8))
    sizes = [(1, 3), (2, 3), (1, 4), (3, 3), (1, 3), (1, 4), (4, 3)]
    requests = [numbers(*size, first=10 * i) for i, size in enumerate(sizes)]
    for feeds, got in zip(requests, outcomes(network, requests, session), strict=True):
        np.testing.assert_array_equal(got, feeds["x"] * 2)
    # the first request; the check, alone and beside another one; then the runs
    assert [run.shape for run in session.runs[3:]] == [(8, 3), (2, 4), (4, 3)]
    assert session.closed


def test_rows_that_depend_on_others_are_never_joined() -> None:
    session = Session(lambda x: x - x.mean(0, keepdims=True))
    network = Network("m", "1", [session])
    requests = [numbers(1, 3, first=i) for i in range(6)]
    for got in outcomes(network, requests, session):
        np.testing.assert_array_equal(got, np.zeros((1, 3)))
    assert "depend on the other rows" in str(network.why_alone)


def test_equal_values_decide_nothing_and_zeros_do() -> None:
    for dtype, decides in ((np.int64, False), (np.float32, True), (np.bool_, True)):
        other = other_than({"x": np.zeros((2, 3), dtype)})
        assert (other is not None) == decides
    assert other_than({"x": np.array([[1, 2]])}) is not None


def test_one_request_fails_and_others_do_not() -> None:
    def do(x: Array) -> Array:
        if (x == 13).any():
            raise InvalidInputError("13 is refused")
        return x * 2

    session = Session(do)
    network = Network("m", "1", [session])
    requests = [numbers(1, 2, first=first) for first in (0, 13, 2)]
    good, bad, other = outcomes(network, requests, session)
    np.testing.assert_array_equal(good, [[0, 2]])
    np.testing.assert_array_equal(other, [[4, 6]])
    assert isinstance(bad, InvalidInputError)
    assert network.why_alone is None


def test_a_network_whose_joined_runs_fail_runs_alone() -> None:
    def do(x: Array) -> Array:
        if len(x) > 1:
            raise InvalidInputError("one row at most")
        return x

    session = Session(do)
    network = Network("m", "1", [session])
    for got in outcomes(network, [numbers(1, 3)] * 4, session):
        np.testing.assert_array_equal(got, numbers(1, 3)["x"])
    assert "one row at most" in str(network.why_alone)


def test_runs_that_take_too_much_memory_become_smaller() -> None:
    def do(x: Array) -> Array:
        if len(x) > 3:
            raise OutOfDeviceMemoryError("too many rows")
        return x * 2

    session = Session(do)
    network = Network("m", "1", [session], Batching(16, (8,)))
    requests = [numbers(1, 3, first=i) for i in range(12)]
    for feeds, got in zip(requests, outcomes(network, requests, session), strict=True):
        np.testing.assert_array_equal(got, feeds["x"] * 2)
    assert network.batching == Batching(6)
    session = Session(lambda x: x if len(x) == 1 else do(np.zeros((9, 3))))
    network = Network("m", "1", [session])
    assert len(outcomes(network, requests[:4], session)) == 4
    assert "too much memory" in str(network.why_alone)


def test_all_requests_of_a_lost_device_fail() -> None:
    def do(x: Array) -> Array:
        if len(x) > 2:
            raise DeviceLostError("gone")
        return x

    session = Session(do)
    network = Network("m", "1", [session])
    got = outcomes(network, [numbers(1, 3, first=i) for i in range(4)], session)
    assert [type(one) for one in got] == [DeviceLostError] * 4


def test_sessions_on_several_devices_and_of_one(tmp_path: Path) -> None:
    path = multiplier(tmp_path / "m.onnx", 3)
    running = Running(["cpu", "cpu"], 2, Batching(4))
    models = load_models([str(path)], "auto", running=running)
    network = models.networks["m"]
    assert len(network.sessions) == 4
    assert network.batching.most == 4

    async def ask() -> list[Any]:
        asked = [network.add({"x": np.float32([[i, 1]])}, ["y"], 99) for i in range(40)]
        return await asyncio.gather(*(one.future for one in asked))

    for number, (got,) in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(got, [[3 * number, 3]])
    models.close()


@pytest.mark.parametrize(
    ("args", "most", "text"),
    [
        ([NodeArg("x", "tensor(float)", [1, 3], "float32")], 8, "fixed to 1"),
        ([NodeArg("x", "tensor(float)", [], "float32")], 8, "scalar"),
        ([NodeArg("x", "seq(tensor(float))", None, "float32")], 8, "not a tensor"),
        ([OPEN], 1, "turned off"),
        ([], 8, "no inputs"),
    ],
)
def test_networks_that_are_not_joined(args: list[NodeArg], most: int, text: str) -> None:
    assert text in str(Network("m", "1", [Session(args=args)], Batching(most)).why_alone)


def test_states_are_not_joined() -> None:
    session = Session()
    session.keeps_states = True  # type: ignore[attr-defined]
    assert "states" in str(Network("m", "1", [session]).why_alone)


def test_a_request_waits_for_others() -> None:
    session = Session()
    network = Network("m", "1", [session], Batching(8, preferred=(4,), delay_s=30))

    async def ask() -> None:
        asked: list[Asked] = []
        for i in range(4):
            assert not session.runs
            asked.append(network.add(numbers(1, 3, first=i), ["y"], 9))
            await asyncio.sleep(0.02)
        await asyncio.gather(*(one.future for one in asked))  # at once: four are enough
        assert asked[0].together == 4

    asyncio.run(ask())
    network.close()


def test_waiting_requests_can_be_withdrawn_and_are_limited() -> None:
    session = Session()
    network = Network("m", "1", [session], Batching(limit=4), queue=2)

    async def ask() -> None:
        session.go.clear()
        running = network.add(numbers(1, 3), ["y"], 9)
        while not network.running:
            await asyncio.sleep(0.001)
        waiting = [network.add(numbers(1, 3), ["y"], 9) for _ in range(2)]
        for feeds, wanted, code in (
            (numbers(1, 3), ["y"], "queue_full"),
            (numbers(5, 3), ["y"], "too_many_rows"),
            (numbers(1, 3), ["z"], "invalid_output"),
        ):
            with pytest.raises(HttpError) as raised:
                network.add(feeds, wanted, 9)
            assert raised.value.code == code
        assert network.cancel(waiting[0])
        assert not network.cancel(running)
        session.go.set()
        await asyncio.gather(running.future, waiting[1].future)
        assert not waiting[0].future.done()

    asyncio.run(ask())
    network.close()
    assert len(session.runs) == 2


def test_a_busy_session_leaves_requests_to_others() -> None:
    busy, free = Session(), Session()
    network = Network("m", "1", [busy, free], Batching(1))

    async def ask() -> None:
        busy.go.clear()
        asked = [network.add(numbers(1, 3), ["y"], 99) for _ in range(20)]
        while not busy.runs and sum(one.future.done() for one in asked) < 19:
            await asyncio.sleep(0.001)
        busy.go.set()
        await asyncio.gather(*(one.future for one in asked))

    asyncio.run(ask())
    network.close()
    assert len(busy.runs) <= 1
    assert len(free.runs) >= 19


def test_a_lost_session_leaves_requests_to_others() -> None:
    gone, there = Session(), Session()
    gone.lost = True
    network = Network("m", "1", [gone, there])

    async def ask() -> None:
        for _ in range(5):
            await network.add(numbers(1, 3), ["y"], 99).future

    asyncio.run(ask())
    network.close()
    assert (len(gone.runs), len(there.runs)) == (0, 5)
    assert not network.lost


def test_closing_finishes_what_was_accepted() -> None:
    session = Session()
    network = Network("m", "1", [session], Batching(delay_s=30))

    async def ask() -> list[Any]:
        session.go.clear()
        asked = [network.add(numbers(1, 3, first=i), ["y"], 99) for i in range(5)]
        closing = asyncio.get_running_loop().run_in_executor(None, network.close)
        while not network.running:
            await asyncio.sleep(0.001)
        with pytest.raises(HttpError, match="unloaded"):
            network.add(numbers(1, 3), ["y"], 99)
        session.go.set()
        await closing
        return await asyncio.gather(*(one.future for one in asked))

    assert len(asyncio.run(ask())) == 5
    assert session.closed


def test_sizes_of_runs_are_few() -> None:
    assert {Batching(24, (3,)).size_of(rows) for rows in range(1, 25)} == {1, 2, 3, 4, 8, 16, 24}
    assert Batching(8).size_of(11) == 11
    with pytest.raises(InvalidInputError, match="preferred"):
        Batching(4, (8,))
    with pytest.raises(InvalidInputError, match="delay"):
        Batching(4, delay_s=-1)


def test_joined_feeds_are_filled_up_and_split() -> None:
    group = [numbers(1, 2), numbers(2, 2, first=5)]
    run = joined(group, 4)["x"]
    np.testing.assert_array_equal(run[3], run[0])
    parts = split([1, 2], [run], 4)
    np.testing.assert_array_equal(parts[1][0], group[1]["x"])
    with pytest.raises(InvalidInputError, match="does not have 4 rows"):
        split([1, 2], [run[:3]], 4)


@pytest.mark.parametrize(
    ("one", "other", "close"),
    [
        (np.float32([1, np.nan, np.inf]), np.float32([1.001, np.nan, np.inf]), True),
        (np.float32([1, 2]), np.float32([1, 2.5]), False),
        (np.int64([1, 2]), np.int64([1, 3]), False),
        (np.float32([1, 2]), np.float32([[1, 2]]), False),
    ],
)
def test_results_that_agree(one: Array, other: Array, close: bool) -> None:
    assert are_close([one], [other]) == close
