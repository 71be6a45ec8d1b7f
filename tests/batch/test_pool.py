"""SessionPool: results are those of a loop around `run`, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.faces.conftest import dense_model
from vkmnn.base.threads import Workers
from vkmnn.batch import Failed, SessionPool
from vkmnn.batch import pool as pool_module
from vkmnn.batch.flow import Flow, Work
from vkmnn.errors import (
    DeviceLostError,
    InvalidInputError,
    OutOfDeviceMemoryError,
    VkmnnError,
)
from vkmnn.runtime.device_info import DeviceType


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pool") / "dense.onnx"
    onnx.save(dense_model(), path)
    return path


def feeds(count: int, rows: int = 1) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((rows, 4)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("device", ["cpu", "all"])
@pytest.mark.parametrize("batch", [1, 8])
def test_results_are_those_of_a_loop(dense: Path, device: str, batch: int) -> None:
    items = feeds(21) + feeds(3, rows=2)
    with SessionPool(dense, device) as pool:
        assert pool.can_batch
        found = list(pool.map(items, batch))
        for made, item in zip(found, items, strict=True):
            for one, other in zip(made, pool.sessions[0].run(None, item), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)


def test_runs_are_batches_and_the_last_is_smaller(
    dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SessionPool(dense, "cpu", output_names=["z"]) as pool:
        sizes, submit = [], pool.sessions[0].submit

        def counted(fed: Any, names: Any) -> Any:
            sizes.append(fed["x"].shape[0])
            return submit(fed, names)

        monkeypatch.setattr(pool.sessions[0], "submit", counted)
        assert all(len(one) == 1 for one in pool.map(feeds(19), 8))
        assert sorted(sizes) == [3, 8, 8]


def test_samples_get_the_first_axis(dense: Path) -> None:
    items = [{"x": one["x"][0]} for one in feeds(5)]
    with SessionPool(dense, "cpu") as pool:
        found = [one[0].shape for one in pool.map(items, 2)]
    assert found == [(3,)] * 5


def test_a_fixed_first_axis_runs_alone(tmp_path: Path) -> None:
    model = dense_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "m.onnx")
    with SessionPool(tmp_path / "m.onnx", "cpu") as pool:
        assert not pool.can_batch
        assert len(list(pool.map(feeds(5), 4))) == 5


def test_an_output_without_the_axis_runs_alone(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    items = feeds(4)
    with SessionPool(path, "cpu") as pool:
        found = [float(one[0]) for one in pool.map(items, 4)]
    np.testing.assert_allclose(found, [one["x"].sum() for one in items], atol=1e-5)


def test_errors_are_those_of_their_items(dense: Path) -> None:
    items: list[Any] = feeds(9)
    items[4] = {"x": np.zeros((1, 5), np.float32)}
    items[7] = {"y": items[7]["x"]}
    items[8] = 3
    with SessionPool(dense, "cpu") as pool:
        found = list(pool.map(items, 4, on_error="keep"))
        failed = [n for n, one in enumerate(found) if isinstance(one, Failed)]
        assert failed == [4, 7, 8]
        assert found[4].item is items[4]
        assert all(isinstance(found[n].error, InvalidInputError) for n in failed)
        with pytest.raises(InvalidInputError):
            list(pool.map(items, 4))


def test_unordered_results_come_with_their_items(dense: Path) -> None:
    slow = threading.Event()

    def prepare(number: int) -> dict[str, Any]:
        if number == 0:
            slow.wait(10)
        return {"x": np.full((1, 4), number, np.float32)}

    with SessionPool(dense, "cpu", output_names=["y"]) as pool:
        stream = pool.map(range(40), prepare=prepare, ordered=False, pairs=True)
        first, _ = next(stream)
        slow.set()
        assert first != 0
        assert sorted([first, *(item for item, _ in stream)]) == list(range(40))
        want = pool.sessions[0].run(["y"], prepare(7))[0]
        got = dict(pool.map(range(9), prepare=prepare, pairs=True))[7][0]
        np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("ordered", [True, False])
def test_memory_is_bounded(ordered: bool) -> None:
    """The number of items that were read and not yielded is; whoever reads slowly stops all."""
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in range(100_000):
            read = number + 1
            yield number

    work = Work(lambda one: one, lambda one: one % 5, [list, list], 8, 2, 3)
    stream = Flow(work, ordered).outcomes(items())
    for count in range(1, 400):
        next(stream)
        assert read - count <= work.most_alive
    time.sleep(0.05)
    assert read - 399 <= work.most_alive
    stream.close()  # type: ignore[attr-defined]


def test_rare_shapes_hold_nobody_up() -> None:
    work = Work(None, lambda one: one == 0, [list], 8, 1, 2)
    found = [item for item, _ in Flow(work).outcomes(range(500))]
    assert found == list(range(500))


def test_lanes_share_the_items() -> None:
    taken: list[list[int]] = [[], []]
    both = threading.Barrier(2, timeout=60)

    def lane(number: int) -> Any:
        def run(values: list[int]) -> list[int]:
            if not taken[number]:
                both.wait()
            taken[number] += values
            return values

        return run

    work = Work(None, lambda one: 0, [lane(0), lane(1)], 4, 1, 1)
    assert [one for _, one in Flow(work).outcomes(range(40))] == list(range(40))
    assert min(map(len, taken)) >= 4


@pytest.mark.parametrize("kind", [InvalidInputError, OutOfDeviceMemoryError])
def test_runs_that_are_repeated_are_counted_and_logged_once(
    kind: type[VkmnnError], caplog: pytest.LogCaptureFixture
) -> None:
    """Many items may take too much memory where each has enough."""

    def lane(values: list[int]) -> list[int]:
        if len(values) > 1 and values[0] < 8:
            raise kind("too many")
        return values

    flow = Flow(Work(None, lambda one: 0, [lane], 4, 1, 1))
    assert [made for _, made in flow.outcomes(range(20))] == list(range(20))
    assert flow.repeated == 2
    assert [one.getMessage() for one in caplog.records] == [
        "a run of 4 items failed, and is repeated item by item: too many"
    ]


def test_memory_that_a_single_item_lacks_ends_the_map() -> None:
    def lane(values: list[int]) -> list[int]:
        raise OutOfDeviceMemoryError("full")

    with pytest.raises(OutOfDeviceMemoryError):
        list(Flow(Work(None, lambda one: 0, [lane], 4, 1, 1)).outcomes(range(20)))


def test_threads_are_started_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one takes as long as reading a small picture."""
    starts: list[str] = []
    real = Workers.submit
    monkeypatch.setattr(
        Workers, "submit", lambda self, *given: starts.append("") or real(self, *given)
    )
    slow = Work(lambda one: time.sleep(1e-4) or one, lambda one: 0, [list], 8, 2, 2)
    assert len(list(Flow(slow).outcomes(range(800)))) == 800
    assert len(starts) < 400


def test_a_lost_device_ends_the_map() -> None:
    def lose(values: list[int]) -> list[int]:
        raise DeviceLostError("gone")

    with pytest.raises(DeviceLostError):
        list(Flow(Work(None, lambda one: 0, [lose], 4, 1, 1)).outcomes(range(40)))


def test_closing_and_leaving(dense: Path) -> None:
    before = threading.active_count()
    pool = SessionPool(dense, "cpu")
    stream = pool.map(iter(feeds(1000)), on_error="keep")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    open_one = pool.map(feeds(1000), on_error="keep")
    next(open_one)
    pool.close()
    with pytest.raises(InvalidInputError, match="closed"):
        list(open_one)
    with pytest.raises(InvalidInputError, match="closed"):
        pool.map([])
    assert threading.active_count() <= before


def test_an_error_of_the_iterable_is_raised(dense: Path) -> None:
    def items() -> Iterator[Any]:
        yield feeds(1)[0]
        raise RuntimeError("the source")

    with SessionPool(dense, "cpu") as pool, pytest.raises(RuntimeError, match="the source"):
        list(pool.map(items()))


@pytest.mark.parametrize(
    "arguments",
    [{"batch": 0}, {"batch": True}, {"in_flight": 0}, {"on_error": "ignore"}],
)
def test_bad_arguments(dense: Path, arguments: dict[str, Any]) -> None:
    with SessionPool(dense, "cpu") as pool, pytest.raises(InvalidInputError):
        pool.map([], **arguments)


def test_nothing_of_it_is_imported_early() -> None:
    code = "import sys, vkmnn; print(*(n for n in sys.modules if n.startswith('vkmnn.batch')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


def test_software_devices_are_used_only_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*types: DeviceType) -> list[str | int]:
        infos = [SimpleNamespace(index=n, type=one) for n, one in enumerate(types)]
        monkeypatch.setattr(pool_module, "enumerate_devices", lambda driver: infos)
        return pool_module.selected_devices("all")

    cpu, card = DeviceType.CPU, DeviceType.DISCRETE
    assert listed(cpu, card, DeviceType.INTEGRATED, cpu) == [1, 2]
    assert listed(cpu) == [0]
    assert listed() == ["auto"]
    assert pool_module.selected_devices(["cpu", 1]) == ["cpu", 1]


def test_bad_pools(dense: Path) -> None:
    for arguments in ({"devices": []}, {"output_names": "y"}, {"output_names": ["nope"]}):
        with pytest.raises(InvalidInputError):
            vkmnn.SessionPool(dense, **{"devices": "cpu", **arguments})
