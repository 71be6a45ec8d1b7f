"""Equal ops are planned once, and every plan is the same as without that."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import planning
from benchmarks.overhead import layers
from tests.model.networks import NETWORKS, Net, make_feeds
from vkmnn.base.elements import FloatElement
from vkmnn.base.memo import Memo
from vkmnn.core.plan import Plan
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.geometry.fuse import _Chains
from vkmnn.ir import Array, TensorInfo
from vkmnn.opening import Network, OpenDevice, load_network, open_session
from vkmnn.runtime.device import open_device, open_profile
from vkmnn.schedule_config import ScheduleConfig
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import EXECUTIONS
from vkmnn.vulkan.gemm.family import rank
from vkmnn.vulkan.plan.alike import AlikeDispatches
from vkmnn.vulkan.plan.forecast import PlanningBackend
from vkmnn.vulkan.recording import Recording

DEVICES = (("lavapipe-26.2", "f32"), ("nvidia-h200", "f32"), ("nvidia-h200", "f16"))


def plan_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan every op separately: its shapes, its lowering, its dispatches."""
    for kind in EXECUTIONS.values():
        monkeypatch.setattr(kind, "repeatable", False)
    monkeypatch.setattr("vkmnn.shape.alike._OWN", frozenset())
    monkeypatch.setattr("vkmnn.geometry.alike._OWN", frozenset())
    describe = _Chains._describe

    def described(self: Any, inputs: Any, names: Any, chain: list[object]) -> None:
        describe(self, inputs, names, chain)
        chain.append(object())  # so that no chain is like another

    monkeypatch.setattr(_Chains, "_describe", described)


@pytest.mark.parametrize(("profile", "element"), DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_plans_are_the_same(
    name: str, profile: str, element: FloatElement, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = NETWORKS[name].build()
    feeds = [make_feeds(model, size) for size in NETWORKS[name].sizes]
    repeated = list(_recordings(load_network(model), profile, element, feeds))
    plan_alone(monkeypatch)
    for given, recording in zip(feeds, repeated, strict=True):
        (alone,) = _recordings(load_network(model), profile, element, [given])
        assert recording == alone


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_full_tables_change_no_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are discarded if a table is full: that costs time, and nothing else."""
    model = NETWORKS[name].build()
    feeds = [make_feeds(model, size) for size in NETWORKS[name].sizes]
    kept = list(_recordings(load_network(model), "lavapipe-26.2", "f32", feeds))
    start = Memo.__init__
    monkeypatch.setattr(Memo, "__init__", lambda self, limit: start(self, 1))
    assert list(_recordings(load_network(model), "lavapipe-26.2", "f32", feeds)) == kept


@pytest.mark.parametrize("name", planning.NETWORKS)
def test_further_sizes_are_planned_as_the_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data that a session keeps between input shapes changes no plan of many layers."""
    build, sizes = planning.NETWORKS[name]
    model = build()
    feeds = [make_feeds(model, size) for size in sizes[:3]]
    kept = list(_recordings(load_network(model), "lavapipe-26.2", "f32", feeds))
    plan_alone(monkeypatch)
    (alone,) = _recordings(load_network(model), "lavapipe-26.2", "f32", feeds[2:])
    assert kept[2] == alone


def test_operands_that_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """x + x and x + y of the same shapes bind other tensors; so do constants that are one."""
    net = Net("sums")
    x, y = net.input("x", [4, 8]), net.input("y", [4, 8])
    w, v = net.weight(8), net.weight(8)
    total = net.op("Add", net.op("Add", x, x), net.op("Add", x, y))
    for scale, bias in ((w, v), (w, w), (v, v)):
        normed = net.op("LayerNormalization", total, scale, bias)
        total = net.op("Add", total, net.op("Tanh", normed))
    model = net.finish({total: [4, 8]})
    feeds = {name: np.ones((4, 8), np.float32) for name in ("x", "y")}
    (repeated,) = _recordings(load_network(model), "lavapipe-26.2", "f32", [feeds])
    plan_alone(monkeypatch)
    (alone,) = _recordings(load_network(model), "lavapipe-26.2", "f32", [feeds])
    assert repeated == alone


def test_signed_zeros_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes that compare equal are not always the same."""
    net = Net("zeros")
    x = net.input("x", [4, 8])
    one, other = net.constant(0.0), net.constant(-0.0)
    high = net.constant(1.0)
    made = net.op("Mul", net.op("Clip", x, one, high), net.op("Clip", x, other, high))
    model = net.finish({made: [4, 8]})
    feeds = {"x": np.ones((4, 8), np.float32)}
    (repeated,) = _recordings(load_network(model), "lavapipe-26.2", "f32", [feeds])
    plan_alone(monkeypatch)
    (alone,) = _recordings(load_network(model), "lavapipe-26.2", "f32", [feeds])
    assert repeated == alone


def test_layers_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve layers, the first is encoded; another length needs no pipeline."""
    encoded = 0
    tape = AlikeDispatches._tape

    def counted(*arguments: Any) -> Any:
        nonlocal encoded
        encoded += 1
        return tape(*arguments)

    monkeypatch.setattr(AlikeDispatches, "_tape", counted)
    device = open_device("auto")
    backend, graph = VulkanBackend(device), layers(12)
    made, before = [], {}
    for length in (193, 194, 195):
        inputs = {"x": _sized(graph.inputs[0], length)}
        made.append(Plan(graph, inputs, {}, backend, CpuBackend(), run_op))
        if length == 193:
            before = dict(device.counts)
    assert encoded == 3 * 5
    assert device.counts["pipelines"] == before["pipelines"]
    for plan in made:
        plan.close()


def test_products_are_ranked_once_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another input shape with as many rows asks no family of kernels again."""
    ranked = []

    def counted(*arguments: Any) -> Any:
        ranked.append(arguments)
        return rank(*arguments)

    monkeypatch.setattr("vkmnn.vulkan.executions.matmul.rank", counted)
    monkeypatch.setattr("vkmnn.vulkan.gemm.encode.rank", counted)
    model = NETWORKS["gpt2"].build()
    feeds = [make_feeds(model, size) for size in ((1, 16), (2, 8))]
    counts = [len(ranked) for _ in _recordings(load_network(model), "lavapipe-26.2", "f32", feeds)]
    assert counts[0] == counts[1] > 0


def test_literals_are_uploaded_once() -> None:
    """Constants that executions create for their kernels are uploaded only the first time."""
    info = open_device("auto").info
    sources = []
    for value in (1.0, 1.0, 2.0):
        encoder = VulkanEncoder(info)
        tensor = encoder.literal("numbers", np.full(8, value, np.float32))
        sources.append(encoder.recording.packed[tensor].source)
    assert sources[0] is sources[1]
    assert sources[0] is not sources[2]


def _sized(info: TensorInfo, length: int) -> TensorInfo:
    return replace(info, shape=(length, *(info.shape or ())[1:]))


def _recordings(
    network: Network, profile: str, element: FloatElement, feeds: Sequence[Mapping[str, Array]]
) -> Iterator[list[object]]:
    """Yield descriptions of what one session records for each of several inputs."""
    device = open_profile(profile)
    backend = PlanningBackend(device, element)
    opened = OpenDevice(backend, device.info, "high" if element == "f32" else "normal")
    session = open_session(network, ScheduleConfig(), opened).core
    try:
        for given in feeds:
            backend.recordings.clear()
            session.run(given)
            yield [_described(recording) for recording, _ in backend.recordings]
    finally:
        session.close()
        device.close()


def _described(recording: Recording) -> list[object]:
    """Return all of a recording; tensors by their names and kinds, constants by their content."""

    def tensor(one: Tensor) -> object:
        packed = recording.packed.get(one)
        if packed is not None:
            words = np.ascontiguousarray(packed.array(one.name))
            digest = hashlib.sha256(words.tobytes()).hexdigest()
            return packed.key, packed.element, packed.image, words.shape, digest
        root, offset = recording.placement(one)
        return one.name, one.kind, root.name, offset

    dispatches = [
        (
            *(d.shader.name, d.params, d.groups, dict(d.spec), d.label, d.step, d.pipeline),
            *(d.expected, [tensor(one) for one in d.tensors]),
        )
        for d in recording.dispatches
    ]
    written = sorted(one.name for one in recording.written)
    ranges = [(one.name, allowed) for one, allowed in recording.ranges.items()]
    return [dispatches, written, ranges, recording.checks, recording.choices]
