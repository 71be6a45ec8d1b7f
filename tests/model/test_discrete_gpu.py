"""Networks on a device that seems to be a discrete GPU: its rules, its memory, no bounds checks.

The software device runs what a GPU would run: kernels ranked for GPUs, weights and activations in
memory that the host cannot see, inputs and outputs through staging.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.model.networks import NETWORKS, Net, make_feeds
from tests.model.oracle import assert_agree
from tests.model.test_light import FOLDER, QUICK, with_random_weights
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime import device as devices
from vkmnn.runtime import drivers
from vkmnn.runtime.device_info import DeviceType
from vkmnn.runtime.drivers.vulkan import device as vulkan_device
from vkmnn.runtime.drivers.vulkan import memory as vulkan_memory
from vkmnn.runtime.drivers.vulkan.features import query
from vkmnn.runtime.drivers.vulkan.memory import VISIBLE
from vkmnn.runtime.drivers.vulkan_driver import VulkanDriver
from vkmnn.runtime.memory import MemoryKind
from vkmnn.runtime.recorder import CommandBuffer, CommandRecorder
from vkmnn.vulkan import backend


@pytest.fixture(scope="module")
def discrete(validation: bool) -> Iterator[bool]:
    """Let devices seem discrete; return whether networks run under the validation layer."""
    patch = pytest.MonkeyPatch()
    allocate = vulkan_memory.allocate_memory

    def seen_as_discrete(*arguments: Any) -> Any:
        found = query(*arguments)
        if found is not None:
            found.info = replace(found.info, type=DeviceType.DISCRETE)
        return found

    def hidden(
        device: Any, handles: Any, requirements: Any, kind: MemoryKind, cell: Any
    ) -> tuple[Any, int]:
        memory, flags = allocate(device, handles, requirements, kind, cell)
        local = kind in (MemoryKind.DEVICE, MemoryKind.WEIGHTS)
        return memory, flags & ~VISIBLE if local else flags

    patch.setattr("vkmnn.runtime.drivers.vulkan_driver.query", seen_as_discrete)
    patch.setattr(vulkan_memory, "allocate_memory", hidden)
    patch.setattr(drivers, "_loaded", {"vulkan": VulkanDriver()})
    patch.setattr(devices, "_devices", {})
    opened = devices.open_device("auto", driver="vulkan", validation=validation)
    assert opened.info.type is DeviceType.DISCRETE
    assert isinstance(opened.driver_device, vulkan_device.VulkanDevice)
    yield validation
    opened.close()
    patch.undo()


# Largest difference by precision, as a part of the range.
LIMITS = {"high": 1e-4, "normal": 1e-2}


def session(
    model: onnx.ModelProto, validation: bool, precision: str = "high"
) -> vkmnn.InferenceSession:
    return vkmnn.InferenceSession(
        model, driver="vulkan", validation=validation, require_device=True, precision=precision
    )


# Convolutional networks take the same kernels: they take turns with the precisions.
IN_TURN = ("resnet", "mobilenet_v2", "squeezenet", "unet", "detector", "espcn")
OTHER_TURN = [pytest.mark.soak, pytest.mark.elsewhere("test: the network at the other precision")]


def is_in_turn(name: str, precision: str) -> bool:
    return name not in IN_TURN or list(LIMITS)[IN_TURN.index(name) % 2] == precision


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(name, precision, marks=[] if is_in_turn(name, precision) else OTHER_TURN)
        for name in NETWORKS
        for precision in LIMITS
    ],
)
def test_small_network(name: str, precision: str, discrete: bool):
    model = NETWORKS[name].build()
    oracle = open_oracle(model)
    with session(model, discrete, precision) as opened:
        for size in NETWORKS[name].sizes[:2]:
            feeds = make_feeds(model, size)
            expected = oracle.run(None, feeds)
            for _ in range(2):  # leftovers of a run must not affect the next
                results = opened.run(None, feeds)
                assert_agree(results, expected, LIMITS[precision], f"{name} {size}")


@pytest.mark.parametrize("name", QUICK)
def test_light_network(name: str, discrete: bool):
    model = with_random_weights(onnx.load(FOLDER / f"light_{name}.onnx"))
    with session(model, discrete) as opened:
        (info,) = opened.get_inputs()
        assert info.shape is not None
        x = np.random.default_rng(1).standard_normal(info.shape, dtype=np.float32)
        results = opened.run(None, {info.name: x})
    assert_agree(results, open_oracle(model).run(None, {info.name: x}), what=name)


def test_large_results_are_copied(discrete: bool, monkeypatch: pytest.MonkeyPatch):
    """What kernels would store to host memory in pieces is stored on the device, and copied."""
    net = Net("results")
    x = net.input("x", ("N", 1, 256, 256))
    model = net.finish({net.relu(x): ("N", 1, 256, 256)})
    copied: list[int] = []
    place = backend.VulkanBackend.place

    def noted(self: backend.VulkanBackend, *arguments: Any) -> Any:
        memory = place(self, *arguments)
        copied.append(len(memory.readback))
        return memory

    monkeypatch.setattr(backend.VulkanBackend, "place", noted)
    with session(model, discrete) as opened:
        for images in (1, 2, 1):  # of 256 KiB, the limit of such a device
            feed = np.random.default_rng(images).standard_normal((images, 1, 256, 256), np.float32)
            (result,) = opened.run(None, {"x": feed})
            np.testing.assert_array_equal(result, np.maximum(feed, 0))
    assert copied[:2] == [0, 1]


@pytest.mark.parametrize("precision", LIMITS)
def test_inverted_residuals(precision: str, discrete: bool, monkeypatch: pytest.MonkeyPatch):
    """Depthwise convolutions inside the projections after them, in a network with all around it."""
    net = Net("blocks")
    x, channels = net.input("x", ("N", 16, 14, 14)), 16
    for outputs, kernel, stride in ((16, 3, 1), (24, 3, 2), (24, 5, 1), (37, 5, 2)):
        hidden = 6 * channels
        y = net.op("HardSwish", net.conv_norm(x, channels, hidden, 1))
        y = net.relu(net.conv_norm(y, hidden, hidden, kernel, stride, group=hidden))
        y = net.conv_norm(y, hidden, outputs, 1)
        x = net.op("Add", x, y) if (stride, outputs) == (1, channels) else y
        channels = outputs
    model = net.finish({x: ("N", 37, 4, 4)})
    taken: list[str] = []
    encode = backend.VulkanBackend.encode

    def noted(self: backend.VulkanBackend, segments: Any) -> Any:
        recording, ends = encode(self, segments)
        taken.extend(dispatch.shader.name for dispatch in recording.dispatches)
        return recording, ends

    monkeypatch.setattr(backend.VulkanBackend, "encode", noted)
    oracle = open_oracle(model)
    with session(model, discrete, precision) as opened:
        for images in (1, 3):
            random = np.random.default_rng(images)
            feeds = {"x": random.standard_normal((images, 16, 14, 14), dtype=np.float32)}
            for _ in range(2):
                assert_agree(opened.run(None, feeds), oracle.run(None, feeds), LIMITS[precision])
            assert sum("separable" in name for name in taken) >= 3
            taken.clear()


# At most, with branches that run side by side; in the order of the network it takes more. Devices
# of 16 cores compute 3 x 3 convolutions by Winograd's way, in three levels.
BARRIERS = {"inception_v1": 45, "inception_v2": 70, "resnet50": 74}


SIMILAR = pytest.mark.elsewhere("test: inception_v1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[SIMILAR] if name != "inception_v1" else []) for name in BARRIERS],
)
def test_barriers(name: str, discrete: bool, monkeypatch: pytest.MonkeyPatch):
    counts: list[int] = []
    finish = CommandRecorder.finish

    def counted(recorder: CommandRecorder) -> CommandBuffer:
        counts.append(recorder.barrier_count)
        return finish(recorder)

    monkeypatch.setattr(CommandRecorder, "finish", counted)
    model = FOLDER / f"light_{name}.onnx"
    found = []
    for is_kept in (True, False):
        with monkeypatch.context() as patch:
            if is_kept:
                patch.setattr(backend, "schedule", lambda recorder, ends: None)
            with vkmnn.InferenceSession(model, driver="vulkan", validation=discrete) as opened:
                (info,) = opened.get_inputs()
                assert info.shape is not None
                opened.run(None, {info.name: np.zeros(info.shape, np.float32)})
                found.append((max(counts), opened.memory()))
        counts.clear()
    (kept, memory), (waves, after) = found
    assert waves <= BARRIERS[name] < kept
    assert after.activations <= 1.1 * min(memory.activations, after.lower_bound)
