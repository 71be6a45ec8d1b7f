"""Outputs that feed the next run: swapped, appended in place, or planned again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import vkmnn
from tests.networks.decoders import decoder, grouped_attention
from tests.onnxruntime_oracle import open_oracle
from tests.session.models import model, value
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.plan import Plan
from vkmnn.decoding import state_tensors
from vkmnn.errors import StateLostError
from vkmnn.runtime import Buffer, Device, MemoryKind
from vkmnn.runtime.device import enumerate_devices, open_device

pytest.importorskip("onnxruntime")

PAIRS = {"past.*": "present.*"}


@pytest.fixture(params=["cpu", "auto"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both kinds of device."""
    if request.param == "auto" and not enumerate_devices():
        pytest.skip("no Vulkan device")
    return request.param


@pytest.fixture
def vulkan() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")


class Oracle:
    """The same network in onnxruntime, with caches that it joins itself."""

    def __init__(self, proto: bytes, batch: int = 1) -> None:
        self._session = open_oracle(proto)
        self._pasts = [i for i in self._session.get_inputs() if i.name.startswith("past")]
        self._batch = batch
        self.reset()

    def reset(self) -> None:
        self.past = {
            i.name: np.zeros((self._batch, i.shape[1], 0, i.shape[3]), np.float32)
            for i in self._pasts
        }

    def run(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        logits, *presents = self._session.run(None, {**feeds, **self.past})
        self.past = dict(zip(self.past, presents, strict=True))
        return np.asarray(logits)


def feeds_of(ids: np.ndarray, past: int) -> dict[str, np.ndarray]:
    mask = np.ones((len(ids), past + ids.shape[1]), np.int64)
    if past + ids.shape[1] > 3:
        mask[:, 2] = 0  # padding in the middle
    return {"input_ids": ids, "attention_mask": mask}


def poison(state: vkmnn.SessionState, names: list[str]) -> None:
    for name in names:
        memory = state.memory(name)
        array = memory.numpy().copy()
        array[:, :, state.length :] = np.nan
        memory.copy_from(array)


def check_step(state: vkmnn.SessionState, oracle: Oracle, ids: np.ndarray) -> np.ndarray:
    feeds = feeds_of(ids, state.length)
    want = oracle.run(feeds)
    (got,) = state.run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return want


@pytest.mark.parametrize("fused", [True, False])
def test_a_decoder_plans_nothing_after_its_first_steps(vulkan: None, fused: bool) -> None:
    proto = decoder(fused=fused)
    session, oracle = vkmnn.InferenceSession(proto), Oracle(proto)
    state = session.state(PAIRS, capacity=80)
    ids = np.array([[3, 1, 4, 1, 5]])
    before = {}
    for step in range(64):
        logits = check_step(state, oracle, ids)
        ids = logits[:, -1:].argmax(-1)
        if step == 2:
            before = session.counters()
        if step > 2:
            poison(state, list(oracle.past))
    after = session.counters()
    for name in ("plans", "recordings", "allocations", "pipelines"):
        assert after[name] == before[name], name
    assert state.length == 68
    for name, want in oracle.past.items():
        np.testing.assert_allclose(state.value(name).numpy(), want, rtol=1e-4, atol=1e-4)


def test_it_grows_by_powers_of_two(vulkan: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_tensors, "MIN_ROWS", 8)
    proto = decoder(layers=1)
    session, oracle = vkmnn.InferenceSession(proto), Oracle(proto)
    state = session.state(PAIRS)
    rooms = []
    ids = np.array([[7, 2, 9]])
    for _ in range(32):
        ids = check_step(state, oracle, ids)[:, -1:].argmax(-1)
        rooms.append(state.memory("past.0.key").shape[2])
        poison(state, list(oracle.past))
    assert sorted(set(rooms)) == [8, 16, 32, 64]
    assert session.counters()["plans"] == 1 + 4


def test_batches_chunks_and_new_sequences(vulkan: None) -> None:
    proto = decoder(layers=1, seed=3)
    session, oracle = vkmnn.InferenceSession(proto), Oracle(proto, batch=2)
    state = session.state(PAIRS, capacity=64)
    rng = np.random.default_rng(0)
    for prompt in (4, 1, 9):
        state.reset()
        oracle.reset()
        assert state.length == 0
        for size in (prompt, 1, 3, 1, 1, 5, 1):
            check_step(state, oracle, rng.integers(0, 61, (2, size)))
    made = session.counters()["plans"]
    state.reset()
    oracle.reset()
    for size in (9, 1, 3, 5):
        check_step(state, oracle, rng.integers(0, 61, (2, size)))
    assert session.counters()["plans"] == made


@pytest.mark.parametrize(("depth", "in_place"), [(16, True), (272, False)])
@pytest.mark.parametrize("lengths", [(5, 3), (2, 2), (1, 5, 2)])
def test_texts_of_different_lengths(
    device: str, depth: int, in_place: bool, lengths: tuple[int, ...]
) -> None:
    """New rows follow those of each sequence directly; wide heads have no kernel for that."""
    proto = grouped_attention(depth)
    session, oracle = vkmnn.InferenceSession(proto, device=device), Oracle(proto, len(lengths))
    state = session.state(PAIRS, capacity=16)
    rng = np.random.default_rng(len(lengths))
    counts = np.array(lengths)
    for step in range(5):
        new = 1 if step else int(counts.max())
        counts = counts + bool(step)
        x = rng.standard_normal((len(counts), new, 8 * depth)).astype(np.float32)
        mask = (np.arange(counts.max()) < counts[:, None]).astype(np.int64)
        want = oracle.run({"x": x, "mask": mask})
        (got,) = state.run(None, {"x": x, "mask": mask})
        valid = mask[:, -new:] > 0 if step == 0 else np.ones((len(counts), 1), bool)
        np.testing.assert_allclose(got[valid], want[valid], rtol=1e-4, atol=1e-4)
        for name, past in oracle.past.items():
            for ours, theirs, count in zip(state.value(name).numpy(), past, counts, strict=True):
                np.testing.assert_allclose(ours[:, :count], theirs[:, :count], rtol=1e-4, atol=1e-5)
    if in_place and device == "auto":
        assert session.counters()["plans"] == 2


def test_sequences_start_in_memory_that_is_there(vulkan: None) -> None:
    proto = decoder(layers=2, seed=4)
    session, oracle = vkmnn.InferenceSession(proto), Oracle(proto)
    state = session.state(PAIRS, capacity=40)
    rng = np.random.default_rng(1)
    for size in (1, 1, 4):
        check_step(state, oracle, rng.integers(0, 61, (1, size)))
    before = session.counters()
    for _ in range(3):
        state.reset()
        oracle.reset()
        poison(state, list(oracle.past))
        for size in (4, 1, 4, 1, 1):
            check_step(state, oracle, rng.integers(0, 61, (1, size)))
    after = session.counters()
    for name in ("plans", "recordings", "allocations", "pipelines"):
        assert after[name] == before[name], name
    assert after["submits"] - before["submits"] == 15
    state.reset()
    oracle = Oracle(proto, batch=2)  # other memory
    for size in (3, 1, 1):
        check_step(state, oracle, rng.integers(0, 61, (2, size)))


def test_rows_are_forgotten_and_restored(device: str) -> None:
    proto = decoder(layers=1, seed=5)
    session, oracle = vkmnn.InferenceSession(proto, device), Oracle(proto)
    state = session.state(PAIRS, capacity=40)
    rng = np.random.default_rng(2)
    first = [rng.integers(0, 61, (1, size)) for size in (5, 3)]
    for ids in first:
        check_step(state, oracle, ids)
    saved = {name: state.value(name).numpy().copy() for name in oracle.past}
    state.run(None, feeds_of(np.array([[9, 9, 9]]), 8))
    state.truncate(8)
    assert state.length == 8
    later = rng.integers(0, 61, (1, 2))
    want = check_step(state, oracle, later)
    with pytest.raises(vkmnn.InvalidInputError, match="holds 10 rows and cannot keep 11"):
        state.truncate(11)
    other = session.state(PAIRS, capacity=40)
    with pytest.raises(
        vkmnn.InvalidInputError, match="only caches can be restored, after the first run"
    ):
        other.restore(saved)
    other.run(None, feeds_of(np.array([[1, 2]]), 0))
    other.truncate(0)
    assert other.length == 0
    other.run(None, feeds_of(np.array([[1, 2]]), 0))
    for name in saved:
        with pytest.raises(vkmnn.InvalidInputError, match="cannot take"):
            other.restore({**saved, name: saved[name][..., :1]})
    other.restore(saved)
    assert other.length == 8
    np.testing.assert_allclose(other.run(None, feeds_of(later, 8))[0], want, rtol=1e-4, atol=1e-4)
    assert other.length == 10


def test_state_of_one_size_cannot_be_cut(device: str) -> None:
    state = vkmnn.InferenceSession(detector(), device).state({"h": "hn", "c": "cn"})
    state.run(None, {"x": np.zeros((1, 5), np.float32)})
    assert state.length == 0
    with pytest.raises(vkmnn.InvalidInputError, match="cannot be restored"):
        state.restore({})


def test_several_states_of_a_session(vulkan: None) -> None:
    proto = decoder(layers=1)
    session = vkmnn.InferenceSession(proto)
    states = [session.state(PAIRS, capacity=32) for _ in range(2)]
    oracles = [Oracle(proto) for _ in range(2)]
    for step in range(6):
        for number, (state, oracle) in enumerate(zip(states, oracles, strict=True)):
            check_step(state, oracle, np.array([[step * 7 + number]]))


def test_a_full_state_says_so(device: str) -> None:
    proto = decoder(layers=1)
    state = vkmnn.InferenceSession(proto, device).state(PAIRS, capacity=6)
    state.run(None, feeds_of(np.array([[1, 2, 3, 4]]), 0))
    state.run(None, feeds_of(np.array([[1, 2]]), 4))
    for _ in range(2):
        with pytest.raises(vkmnn.InvalidInputError, match="full: it holds 6 of 6 rows"):
            state.run(None, feeds_of(np.array([[1]]), 6))
    state.reset()
    state.run(None, feeds_of(np.array([[1, 2]]), 0))
    state.run(None, feeds_of(np.array([[1]]), 2))
    with pytest.raises(vkmnn.VkmnnError):  # a mask that does not fit
        state.run(None, feeds_of(np.array([[1]]), 5))
    state.run(None, feeds_of(np.array([[1]]), 3))


def test_state_is_read_when_it_is_asked_for(device: str) -> None:
    proto = decoder(layers=1)
    oracle = Oracle(proto)
    state = vkmnn.InferenceSession(proto, device).state(PAIRS)
    for past in (0, 2, 3):
        feeds = feeds_of(np.array([[5, 6]] if past == 0 else [[7]]), past)
        want = oracle.run(feeds)
        present, logits = state.run(["present.0.value", "logits"], feeds)
        np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(present, oracle.past["past.0.value"], rtol=1e-4, atol=1e-4)
    with pytest.raises(vkmnn.InvalidInputError, match="no output 'z'"):
        state.run(["z"], feeds_of(np.array([[7]]), 4))


def unsafe() -> Any:
    """Return rows joined, then sorted: spare memory could not hold the result."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("CumSum", ["present", "axis"], ["sums"], reverse=1),
        helper.make_node("ReduceSum", ["sums", "axes"], ["y"], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(np.array(0), "axis"),
        numpy_helper.from_array(np.array([0]), "axes"),
    ]
    inputs = [value("past", ["p", 3]), value("x", ["s", 3])]
    return model(nodes, inputs, [value("y", [3]), value("present", ["t", 3])], constants)


def test_what_cannot_grow_in_place_is_planned_anew(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = vkmnn.InferenceSession(unsafe(), device).state({"past": "present"})
    rows = np.zeros((0, 3), np.float32)
    for number in range(5):
        x = np.full((1 + number % 2, 3), number + 1, np.float32)
        rows = np.concatenate([rows, x])
        (y,) = state.run(None, {"x": x})
        np.testing.assert_allclose(y, np.cumsum(rows[::-1], 0)[::-1].sum(0), rtol=1e-5)
        np.testing.assert_array_equal(state.value("past").numpy(), rows)
    assert caplog.text.count("planned anew") == (device == "auto")


def sums() -> Any:
    """Return sums over rows, in every way that replaces a tail: sum, largest, product, softmax."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("ReduceSum", ["present", "axes"], ["sum"], keepdims=0),
        helper.make_node("ReduceMax", ["present"], ["max"], axes=[0], keepdims=1),
        helper.make_node("ReduceMin", ["present"], ["min"], axes=[0], keepdims=1),
        helper.make_node("ReduceProd", ["present"], ["prod"], axes=[0], keepdims=1),
        helper.make_node("Softmax", ["present"], ["soft"], axis=0),
        helper.make_node("Transpose", ["present"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["turned", "soft"], ["mixed"]),
        helper.make_node("Exp", ["turned"], ["all"]),
    ]
    constants = [numpy_helper.from_array(np.array([0]), "axes")]
    inputs = [value("past", ["p", 3]), value("x", ["s", 3])]
    outputs = [value(name, [None] * rank) for name, rank in
               (("sum", 1), ("max", 2), ("min", 2), ("prod", 2), ("mixed", 2), ("all", 2),
                ("present", 2))]  # fmt: skip
    return model(nodes, inputs, outputs, constants)


def test_sums_over_rows_leave_the_tail_out(device: str) -> None:
    state = vkmnn.InferenceSession(sums(), device).state({"past": "present"}, capacity=40)
    rng = np.random.default_rng(1)
    rows = np.zeros((0, 3), np.float32)
    for number in range(7):
        x = rng.standard_normal((1 + number % 3, 3)).astype(np.float32)
        rows = np.concatenate([rows, x])
        names = ["sum", "max", "min", "prod", "mixed", "all"]
        got = dict(zip(names, state.run(names, {"x": x}), strict=True))
        soft = np.exp(rows) / np.exp(rows).sum(0)
        want = {
            "sum": rows.sum(0),
            "max": rows.max(0, keepdims=True),
            "min": rows.min(0, keepdims=True),
            "prod": rows.prod(0, keepdims=True),
            "mixed": rows.T @ soft,
            "all": np.exp(rows.T),
        }
        for name in names:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)
        if device == "auto" and number > 0:
            memory = state.memory("past")
            assert memory.shape == (40, 3)
            memory.numpy()[state.length :] = np.nan


def apart() -> Any:
    """Return an op that keeps rows separate, or sums them; such ops declare only their axes."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("TopK", ["present", "two"], ["largest", "places"], axis=1),
        helper.make_node("Tile", ["largest", "twice"], ["tiled"]),
        helper.make_node("CumSum", ["tiled", "one"], ["sums"]),
        helper.make_node("Einsum", ["sums", "present"], ["y"], equation="ra,rb->ab"),
    ]
    constants = [
        numpy_helper.from_array(np.array([2]), "two"),
        numpy_helper.from_array(np.array([1, 2]), "twice"),
        numpy_helper.from_array(np.array(1), "one"),
    ]
    inputs = [value("past", ["p", 3]), value("x", ["s", 3])]
    return model(nodes, inputs, [value("y", [4, 3]), value("present", ["t", 3])], constants)


def test_ops_that_declare_their_axes_grow(device: str, caplog: pytest.LogCaptureFixture) -> None:
    state = vkmnn.InferenceSession(apart(), device).state({"past": "present"}, capacity=20)
    rng = np.random.default_rng(3)
    rows = np.zeros((0, 3), np.float32)
    for number in range(5):
        x = rng.standard_normal((1 + number % 2, 3)).astype(np.float32)
        rows = np.concatenate([rows, x])
        (y,) = state.run(["y"], {"x": x})
        largest = -np.sort(-rows, 1)[:, :2]
        want = np.cumsum(np.tile(largest, (1, 2)), 1).T @ rows
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    assert "planned anew" not in caplog.text


def late() -> Any:
    """Return rows from the length on, which is the first row if the caches are full."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("Shape", ["present"], ["total"], start=0, end=1),
        helper.make_node("Sub", ["room", "total"], ["start"]),
        helper.make_node("Slice", ["present", "start", "end", "axis"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axis"], ["y"], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(np.array([8]), "room"),
        numpy_helper.from_array(np.array([2**31 - 1]), "end"),
        numpy_helper.from_array(np.array([0]), "axis"),
    ]
    inputs = [value("past", ["p", 3]), value("x", ["s", 3])]
    return model(nodes, inputs, [value("y", [3]), value("present", ["t", 3])], constants)


def test_rows_that_the_length_cuts_off_are_planned_anew(device: str) -> None:
    state = vkmnn.InferenceSession(late(), device).state({"past": "present"}, capacity=8)
    rows = np.zeros((0, 3), np.float32)
    for number in range(6):
        x = np.full((1, 3), 10.0**number, np.float32)
        rows = np.concatenate([rows, x])
        (y,) = state.run(["y"], {"x": x})
        np.testing.assert_allclose(y, rows[8 - len(rows) :].sum(0))


def detector() -> Any:
    """Return a state of fixed size, as in networks for voice activity: h = tanh(h + x)."""
    nodes = [
        helper.make_node("Add", ["h", "x"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["hn"]),
        helper.make_node("Add", ["c", "hn"], ["cn"]),
        helper.make_node("ReduceMax", ["hn"], ["y"], keepdims=0),
    ]
    inputs = [value("x", ["b", 5]), value("h", ["b", 5]), value("c", ["b", 5])]
    return model(nodes, inputs, [value("y", []), value("hn", ["b", 5]), value("cn", ["b", 5])])


def test_state_of_fixed_size_is_swapped(device: str) -> None:
    session = vkmnn.InferenceSession(detector(), device)
    rng = np.random.default_rng(2)
    first = rng.standard_normal((2, 5)).astype(np.float32)
    state = session.state({"h": "hn", "c": "cn"}, initial={"h": first})
    counts = {}
    for _ in range(2):
        h, c = first, np.zeros((2, 5), np.float32)
        for step in range(9):
            x = rng.standard_normal((2, 5)).astype(np.float32)
            h = np.tanh(h + x)
            c = c + h
            (y,) = state.run(None, {"x": x})
            np.testing.assert_allclose(y, h.max(), rtol=1e-4)
            if step == 2:
                counts = session.counters()
        np.testing.assert_allclose(state.value("c").numpy(), c, rtol=1e-4, atol=1e-5)
        after = session.counters()
        assert after.get("recordings") == counts.get("recordings")
        state.reset()


def _noted(close: Callable[[Any], None], closed: list[Any]) -> Callable[[Any], None]:
    def noted(self: Any) -> None:
        closed.append(self)
        close(self)

    return noted


@pytest.mark.parametrize("fails", ["raises", "cannot be"])
def test_a_recording_that_fails_leaves_nothing_open(
    vulkan: None, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Swapped state needs two recordings: if the second fails, the first is closed as well."""
    session = vkmnn.InferenceSession(detector())
    state = session.state({"h": "hn", "c": "cn"})
    x = {"x": np.ones((2, 5), np.float32)}
    state.run(None, x)
    made: list[Any] = []
    closed: list[Any] = []

    def bound(self: Plan, *arguments: Any) -> Any:
        if made:
            if fails == "raises":
                raise vkmnn.OutOfDeviceMemoryError("for the test")
            return None
        made.extend((self, real(self, *arguments)))
        for kind in (Plan, type(made[1])):
            patch.setattr(kind, "close", _noted(kind.close, closed))
        return made[1]

    real = Plan.bound_segment
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "bound_segment", bound)
        with suppress(vkmnn.OutOfDeviceMemoryError):
            state.run(None, x)
    assert {id(one) for one in made} <= {id(one) for one in closed}
    for _ in range(2):
        state.run(None, x)


def test_names_are_checked(device: str) -> None:
    session = vkmnn.InferenceSession(decoder(layers=1), device)
    with pytest.raises(vkmnn.InvalidInputError, match="no input matches"):
        session.state({"cache.*": "present.*"})
    with pytest.raises(vkmnn.InvalidInputError, match=r"no output 'future\.0\.key'"):
        session.state({"past.*": "future.*"})
    with pytest.raises(vkmnn.InvalidInputError, match="not a state input"):
        session.state(PAIRS, initial={"x": np.zeros(1)})
    with pytest.raises(vkmnn.InvalidInputError, match="the capacity of a state is 0"):
        session.state(PAIRS, capacity=0)
    state = session.state(PAIRS)
    with pytest.raises(vkmnn.InvalidInputError, match="before the first run"):
        state.value("past.0.key")
    with pytest.raises(vkmnn.InvalidInputError, match="not a state input"):
        state.value("x")
    with pytest.raises(vkmnn.InvalidInputError, match=r"no input 'past\.0\.key'"):
        state.run(None, {"past.0.key": np.zeros(1)})
    state.close()
    with pytest.raises(vkmnn.InvalidInputError, match="closed"):
        state.run(None, feeds_of(np.array([[1]]), 0))


# --- what fails, and odd arguments ---------------------------------------------------------------


def _fails_at(patch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Let an allocation fail; return the number of allocations so far."""
    real, calls = Device.allocate, [0]

    def allocate(self: Device, nbytes: int, kind: MemoryKind) -> Buffer:
        calls[0] += 1
        if calls[0] == at:
            raise vkmnn.OutOfDeviceMemoryError("for the test")
        return real(self, nbytes, kind)

    patch.setattr(Device, "allocate", allocate)
    return calls


def test_a_failed_allocation_leaves_a_state_as_it_was(
    vulkan: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each allocation of a prompt, of steps and of growth fails once; the call is made again."""
    monkeypatch.setattr(state_tensors, "MIN_ROWS", 4)
    proto = decoder(layers=1)
    session = vkmnn.InferenceSession(proto)
    inputs = [np.array([[3, 1, 4]]), *(np.array([[number]]) for number in (5, 9, 2, 6))]
    at, failed = 1, 0
    while True:
        state, oracle, left = session.state(PAIRS, capacity=40), Oracle(proto), at
        for ids in inputs:
            length = state.length
            want = oracle.run(feeds_of(ids, length))
            with pytest.MonkeyPatch.context() as patch:
                calls = _fails_at(patch, left)
                try:
                    (got,) = state.run(None, feeds_of(ids, length))
                except vkmnn.OutOfDeviceMemoryError:
                    assert state.length == length
                    failed += 1
                    (got,) = state.run(None, feeds_of(ids, length))
            left -= calls[0]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        state.close()
        if left > 0:
            break
        at += 5
    assert failed > 5


@pytest.mark.parametrize("call", ["value", "truncate", "restore", "reset"])
def test_other_calls_that_fail_leave_a_state_usable(device: str, call: str) -> None:
    proto = decoder(layers=1)
    state, oracle = vkmnn.InferenceSession(proto, device).state(PAIRS), Oracle(proto)
    for ids in ([[1, 2, 3]], [[4]]):
        check_step(state, oracle, np.array(ids))
    rows = {name: np.array(state.value(name)) for name in oracle.past}
    calls: dict[str, Any] = {
        "value": lambda: state.value("past.0.key"),
        "truncate": lambda: state.truncate(2),
        "restore": lambda: state.restore(rows),
        "reset": state.reset,
    }
    real = DeviceTensor.copy_rows_from
    for at in (1, 2, 3):
        made = [0]

        def copy(self: DeviceTensor, *args: Any, at: int = at, made: list[int] = made) -> None:
            made[0] += 1
            if made[0] == at:
                raise vkmnn.OutOfDeviceMemoryError("for the test")
            real(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeviceTensor, "copy_rows_from", copy)
            with suppress(vkmnn.OutOfDeviceMemoryError):
                calls[call]()
        if state.length == 2:  # it did not fail
            oracle.past = {name: rows[name][:, :, :2] for name in rows}
        elif state.length == 0:
            oracle.reset()
        else:
            assert state.length == 4
        check_step(state, oracle, np.array([[7]]))
        state.restore(rows)
        oracle.past = rows.copy()
    check_step(state, oracle, np.array([[7]]))


def grower(named: bool = True) -> bytes:
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["present"], ["y"], keepdims=0),
    ]
    present = value("present", [1, "total" if named else None, 2])
    inputs = [value("past", [1, "rows", 2]), value("x", [1, "n", 2])]
    return model(nodes, inputs, [present, value("y", [])])


@pytest.mark.parametrize("named", [True, False])
def test_initial_rows_count_from_the_start(device: str, named: bool) -> None:
    session = vkmnn.InferenceSession(grower(named), device)
    first = {"past": np.ones((1, 3, 2), np.float32)}
    with pytest.raises(vkmnn.InvalidInputError, match=r"have 3 rows, .* room for 2"):
        session.state({"past": "present"}, capacity=2, initial=first)
    state = session.state({"past": "present"}, capacity=6, initial=first)
    for _ in range(2):
        assert state.length == 3
        np.testing.assert_array_equal(np.array(state.value("past")), first["past"])
        for total in (4, 5):
            (y,) = state.run(["y"], {"x": np.ones((1, 1, 2), np.float32)})
            assert (float(y), state.length) == (2 * total, total)
        state.truncate(0)
        (y,) = state.run(["y"], {"x": np.ones((1, 1, 2), np.float32)})
        assert (float(y), state.length) == (2, 1)
        state.reset()
    with pytest.raises(vkmnn.InvalidInputError, match="cannot be forgotten"):
        state.truncate(1)


ODD: dict[str, Any] = {"text": "8", "a fraction": 1.5, "a truth": True, "an array": np.array([1]),
                       "a list": [1], "negative": -1}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_numbers_are_checked(device: str, odd: str) -> None:
    session = vkmnn.InferenceSession(grower(), device)
    state = session.state({"past": "present"}, capacity=np.int64(4))  # type: ignore[arg-type]
    state.run(None, {"x": np.ones((1, 2, 2), np.float32)})
    with pytest.raises(vkmnn.InvalidInputError, match="the capacity of a state is"):
        session.state({"past": "present"}, capacity=ODD[odd])
    with pytest.raises(vkmnn.InvalidInputError, match="the length to keep is"):
        state.truncate(ODD[odd])
    assert state.length == 2
    for call in (session.profile, session.tune):
        with pytest.raises(vkmnn.InvalidInputError, match="the number of runs is"):
            call({}, runs=ODD[odd])
    with pytest.raises(vkmnn.InvalidInputError, match="the shape of 'x'"):
        session.tensor("x", (1, ODD[odd], 2))
    with pytest.raises(vkmnn.InvalidInputError, match="the shape of 'x'"):
        session.prepare([{"past": (1, 0, 2), "x": (1, ODD[odd], 2)}])


@pytest.mark.parametrize("odd", [None, 5, "x", [5], [{"x": "abc"}], [{"x": None}], [{"x": 3}],
                                 {"x": (1, 1, 2)}, [{5: (1,)}]], ids=str)  # fmt: skip
def test_prepare_says_what_it_takes(device: str, odd: Any) -> None:
    with pytest.raises(vkmnn.InvalidInputError):
        vkmnn.InferenceSession(grower(), device).prepare(odd)


@pytest.mark.parametrize("odd", [None, 5, [1], {"past": 5}, {"past": "x"}, {5: 5}, {}], ids=str)
def test_restore_and_initial_say_what_they_take(device: str, odd: Any) -> None:
    session = vkmnn.InferenceSession(grower(), device)
    state = session.state({"past": "present"})
    state.run(None, {"x": np.ones((1, 2, 2), np.float32)})
    with pytest.raises(vkmnn.InvalidInputError):
        state.restore(odd)
    assert state.length == 2
    if odd:
        with pytest.raises(vkmnn.InvalidInputError):
            session.state({"past": "present"}, initial=odd)
        with pytest.raises(vkmnn.InvalidInputError):
            session.state(odd)


@pytest.mark.parametrize("odd", [None, 5, [1.0], "x"], ids=str)
def test_tensors_take_arrays(device: str, odd: Any) -> None:
    tensor = vkmnn.InferenceSession(grower(), device).upload(np.ones(1, np.float32))
    with pytest.raises(vkmnn.InvalidInputError, match="cannot take"):
        tensor.copy_from(odd)
    np.testing.assert_array_equal(np.array(tensor), [1])


def test_what_does_not_fit_is_refused_before_it_is_copied(
    vulkan: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = vkmnn.InferenceSession(grower())
    wide = np.broadcast_to(np.float32(1), (1 << 40,))
    monkeypatch.setattr(np, "ascontiguousarray", lambda *_: pytest.fail("it has been copied"))
    with pytest.raises(vkmnn.VkmnnError, match="exceeds"):
        session.upload(wide)


def test_a_state_that_was_lost_says_so(vulkan: None) -> None:
    open_device().close()
    with vkmnn.InferenceSession(grower(), on_device_lost="rebuild") as session:
        x = {"x": np.ones((1, 2, 2), np.float32)}
        states = [session.state({"past": "present"}) for _ in range(2)]
        for state in states:
            state.run(None, x)
        open_device().mark_lost("for the test")
        for state in states:
            for _ in range(2):
                with pytest.raises(StateLostError, match="lost with its device"):
                    state.run(None, x)
            assert state.lost
        again = session.state({"past": "present"})
        assert float(again.run(["y"], x)[0]) == 4
        assert not session.lost
