"""Waves of dispatches: dependencies, number of barriers, number of bytes."""

from __future__ import annotations

import pytest

from tests.op.vulkan.harness import device
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType, TensorInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.plan import schedule as schedule_module
from vkmnn.vulkan.plan.schedule import order, schedule
from vkmnn.vulkan.storage import storage_bytes

COPY = kernels.copy(load="buffer")


class Recorded:
    """An encoder, and tensors by name; a dispatch reads one tensor and writes another.

    "x" is made of `room` elements, which no later dispatch reads: so many may be alive later.
    """

    def __init__(self, *copies: tuple[str, str], room: int = 4096, **elements: int) -> None:
        self.encoder = VulkanEncoder(device().info)
        self.recording = self.encoder.recording
        self.elements = {"room": room, **elements}
        self.tensors: dict[str, Tensor] = {}
        for source, target in (("input", "room"), ("room", "x"), *copies):
            pair = (self.tensor(source), self.tensor(target))
            self.encoder.dispatch(COPY, pair, kernels.CopyParams(n4=1), (1, 1, 1))

    def tensor(self, name: str) -> Tensor:
        shape = (self.elements.get(name, 4),)
        return self.tensors.setdefault(name, Tensor(TensorInfo(name, DType.FLOAT32, shape)))

    def waves(self) -> list[list[int]]:
        roots = {self.recording.root(tensor) for tensor in self.recording.written}
        sizes = {root: storage_bytes(root) for root in roots}
        waves = order(self.recording.dispatches, self.recording, sizes)
        assert waves[:2] == [[0], [1]]
        return [[number - 2 for number in wave] for wave in waves[2:]]


def test_a_chain_stays():
    assert Recorded(("x", "a"), ("a", "b"), ("b", "y")).waves() == [[0], [1], [2]]


def test_a_chain_is_not_searched_for_waves(monkeypatch: pytest.MonkeyPatch):
    """What waits for what comes right before it has no other order."""
    monkeypatch.setattr(schedule_module, "_waves", None)
    recorded = Recorded(("x", "a"), ("a", "b"), ("b", "c"))
    assert recorded.waves() == [[0], [1], [2]]
    schedule(recorded.recording, [5])
    assert [dispatch.step for dispatch in recorded.recording.dispatches] == list(range(5))


def test_branches_run_beside_each_other():
    copies = [("x", "a"), ("a", "b"), ("x", "c"), ("c", "d")]
    assert Recorded(*copies).waves() == [[0, 2], [1, 3]]


def test_a_shortcut_waits_for_its_turn():
    """The dispatch needed last comes last: its result uses memory from then on."""
    shortcut, branch = [("x", "s"), ("s", "y")], [("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")]
    assert Recorded(*shortcut, *branch, s=64, y=128).waves() == [[2], [0, 3], [1, 4], [5]]


def test_reads_come_before_a_later_write():
    assert Recorded(("x", "a"), ("x", "b"), ("y", "x")).waves() == [[0, 1], [2]]


def test_writes_keep_their_order():
    assert Recorded(("x", "a"), ("y", "a")).waves() == [[0], [1]]


def test_parts_of_one_tensor_are_apart():
    recording = Recorded(("x", "whole"), ("x", "left"), ("x", "right"), whole=256)
    encoder = recording.encoder
    del encoder.recording.dispatches[2]
    encoder.alias(recording.tensor("left"), recording.tensor("whole"))
    encoder.alias(recording.tensor("right"), recording.tensor("whole"), 512)
    assert recording.waves() == [[0, 1]]


@pytest.mark.parametrize("room", [4096, 600])
def test_bytes_stay_within_those_of_the_order(room):
    copies = [("x", "a"), ("a", "b"), ("x", "c"), ("c", "d"), ("b", "e"), ("d", "f")]
    waves = Recorded(*copies, room=room, a=512, c=512).waves()
    assert any({0, 2} <= set(wave) for wave in waves) == (room == 4096)
    assert sorted(number for wave in waves for number in wave) == list(range(6))


@pytest.mark.parametrize("ends", [[6], [4, 6]])
def test_segments_keep_their_dispatches(ends):
    recording = Recorded(("x", "a"), ("x", "b"), ("a", "c"), ("b", "d")).recording
    before = list(recording.dispatches)
    schedule(recording, ends)
    first = 0
    for end in ends:
        names = [{d.tensors for d in which[first:end]} for which in (before, recording.dispatches)]
        assert names[0] == names[1]
        first = end
    steps = [d.step for d in recording.dispatches]
    assert steps[:4] == [0, 1, 2, 2]
    assert steps == sorted(steps)


def test_what_is_compared_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Readers of one tensor are not compared; beyond the limit, dispatches keep their order."""
    readers = [("x", f"a{number}") for number in range(50)]
    monkeypatch.setattr(schedule_module, "MAX_COMPARISONS", 60)
    assert Recorded(*readers).waves() == [list(range(50))]
    writers = [("x", "a")] * 12
    assert Recorded(*writers).waves() == [[number] for number in range(12)]
    recording = Recorded(*writers).recording
    assert schedule_module._nodes(recording.dispatches, recording) is None


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_wave_chooses_from_the_first(candidates: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule_module, "MAX_CANDIDATES", candidates)
    copies = [copy for n in range(4) for copy in (("x", f"a{n}"), (f"a{n}", f"b{n}"))]
    recording = Recorded(*copies).recording
    nodes = schedule_module._nodes(recording.dispatches, recording)
    assert nodes is not None
    waves = schedule_module._waves(nodes, {}, 0)
    assert sorted(number for wave in waves for number in wave) == list(range(10))
    assert max(map(len, waves)) == candidates
