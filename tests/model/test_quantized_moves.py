"""Quantised networks whose values are joined, split and moved between convolutions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.model.test_quantized_networks import (
    SHAPE,
    WAYS,
    Builder,
    commands,
    memory_on_the_device,
    quantised,
    steps,
)
from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.schedule_config import PrecisionName


class Moving(Builder):
    """A network with constants that determine how tensors move."""

    def constant(self, values: Any, dtype: type = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def gated(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))

    def doubled(self, x: str) -> str:
        factors = self.constant([1, 1, 2, 2], np.float32)
        ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.add("Resize", x, "", factors, **ways)

    def halves(self, x: str, size: int) -> list[str]:
        names = [f"{x}_{half}" for half in "ab"]
        inputs = [x, self.constant([size, size])]
        self.nodes.append(helper.make_node("Split", inputs, names, f"Split{x}", axis=1))
        return names

    def made(self, *results: str) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in results]
        x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
        graph = helper.make_graph(self.nodes, "g", x, infos, self.weights)
        imports = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def unet() -> onnx.ModelProto:
    """Two levels, joined with the tensors before each pooling."""
    net = Moving()
    a = net.add("Relu", net.conv("x", 3, 8, 3))
    b = net.add("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    b = net.add("Relu", net.conv(b, 8, 16, 3))
    c = net.add("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2])
    c = net.add("Relu", net.conv(c, 16, 32, 3))
    up = net.add("Concat", net.doubled(c), b, axis=1)
    up = net.add("Relu", net.conv(up, 48, 16, 3))
    up = net.add("Concat", net.doubled(up), a, axis=1)
    up = net.add("Relu", net.conv(up, 24, 8, 3))
    return net.made(net.conv(up, 8, 4, 1))


def yolo() -> onnx.ModelProto:
    """Parts that take different paths, parallel poolings, two heads whose results are joined."""
    net = Moving()
    x = net.gated(net.conv("x", 3, 16, 3, 4))
    left, right = net.halves(x, 8)
    y = net.add("Add", right, net.gated(net.conv(right, 8, 8, 3)))
    x = net.gated(net.conv(net.add("Concat", left, right, y, axis=1), 24, 16, 1))
    p = net.gated(net.conv(x, 16, 16, 3, 2))
    wide = net.add("MaxPool", p, kernel_shape=[5, 5], pads=[2] * 4)
    p = net.gated(net.conv(net.add("Concat", p, wide, axis=1), 32, 16, 1))
    up = net.gated(net.conv(net.add("Concat", net.doubled(p), x, axis=1), 32, 16, 1))
    rows = net.constant([1, 6, -1])
    heads = [net.add("Reshape", net.conv(f, 16, 6, 1), rows) for f in (up, p)]
    return net.made(net.add("Concat", *heads, axis=2))


def ssd() -> onnx.ModelProto:
    """Boxes and classes of two sizes of images, with channels last."""
    net = Moving()
    x = net.add("Relu", net.conv("x", 3, 16, 3, 4))
    features = x, net.add("Relu", net.conv(x, 16, 16, 3, 2))
    results = []
    for numbers in (4, 3):
        rows = net.constant([1, -1, numbers])
        parts = [net.conv(f, 16, 2 * numbers, 3) for f in features]
        parts = [net.add("Transpose", y, perm=[0, 2, 3, 1]) for y in parts]
        parts = [net.add("Reshape", y, rows) for y in parts]
        results.append(net.add("Concat", *parts, axis=1))
    return net.made(*results)


def moved() -> onnx.ModelProto:
    """Channels in another order, pads, parts and blocks between convolutions."""
    net = Moving()
    x = net.add("Relu", net.conv("x", 3, 8, 3, 2))
    pads = net.constant([0, 0, 1, 1, 0, 0, 1, 1])
    for way in ("constant", "reflect"):
        padded = net.add("Pad", x, pads, mode=way)
        x = net.add("Relu", net.conv(padded, 8, 8, 3))
    order = net.constant([3, 1, 2, 7, 6, 5, 4, 0])
    x = net.add("Relu", net.conv(net.add("Gather", x, order, axis=1), 8, 8, 3))
    part = net.add("Slice", x, *(net.constant([value]) for value in (0, 16, 2)))
    x = net.add("SpaceToDepth", net.add("Relu", net.conv(part, 8, 8, 3)), blocksize=2)
    return net.made(net.conv(x, 32, 4, 1))


def decoder() -> onnx.ModelProto:
    """Convolutions between which pixels are doubled."""
    net = Moving()
    x = net.add("Relu", net.conv("x", 3, 16, 3, 4))
    for _ in range(3):
        x = net.add("Relu", net.conv(net.doubled(x), 16, 16, 3))
    return net.made(net.conv(x, 16, 4, 1))


def smooth() -> onnx.ModelProto:
    """Convolutions between which pixels are interpolated, by one and by two axes."""
    net = Moving()
    x = net.add("Relu", net.conv("x", 3, 16, 3, 4))
    for factors, mode in (([2, 2], "linear"), ([1, 2], "linear"), ([1.5, 1], "cubic")):
        scales = net.constant([1, 1, *factors], np.float32)
        x = net.add("Relu", net.conv(net.add("Resize", x, "", scales, mode=mode), 16, 16, 3))
    return net.made(net.conv(x, 16, 4, 1))


# What is more than the float network's: tensors that two ops read in different scales are rounded
# in a dispatch of their own; pads of the float network are part of the convolutions after them.
MORE = {unet: 1, yolo: 1, ssd: 0, moved: 2}
# Activations, as a part of the float network's. Those of `moved` and `ssd` are largest where
# channels change their lanes and where results are floats.
MEMORY = {unet: 0.27, yolo: 0.25, ssd: 0.25, moved: 1.0}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", MORE)
def test_codes_that_move_stay_codes(network: Any, way: str, tmp_path: Path) -> None:
    model = network()
    made = quantised(model, way, tmp_path)
    session = open_oracle(made, optimised=False)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    want = session.run(None, {"x": x})
    for device in ("auto", "cpu"):
        with InferenceSession(made, device) as ours:
            got = ours.run(None, {"x": x})
        for one, wanted in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, wanted)
    types, _ = steps(made, "auto")
    assert types["Cast"] == types["Convolution"] == 0
    assert commands(made) <= commands(model) + MORE[network]
    assert memory_on_the_device(made)[1] <= memory_on_the_device(model)[1] * MEMORY[network]


def test_what_is_joined_is_the_same_on_other_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where parts begin at other addresses, and one dispatch copies many regions."""
    for network in (unet, yolo, moved):
        made = quantised(network(), "per channel", tmp_path)
        _, on_host = steps(made, "cpu")
        for profile in ("radeon-rx-6800", "intel-arc-a770"):
            monkeypatch.setenv("VKMNN_DEVICE_PROFILE", profile)
            np.testing.assert_array_equal(steps(made, "auto")[1], on_host)
            monkeypatch.delenv("VKMNN_DEVICE_PROFILE")


@pytest.mark.parametrize("network", [unet, yolo])
def test_joined_codes_stay_bytes_beside_fp16(network: Any, tmp_path: Path) -> None:
    made = quantised(network(), "per channel", tmp_path)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    results, memory = [], []
    precisions: tuple[PrecisionName, ...] = ("high", "normal")
    for precision in precisions:
        with InferenceSession(made, "auto", precision=precision) as session:
            results.append(session.run(None, {"x": x})[0])
            memory.append(int(session._session.core.memory().activations))
    np.testing.assert_array_equal(*results)
    assert memory[1] <= memory[0]


def strips(channels: int, size: int) -> onnx.ModelProto:
    """Two convolutions whose results are joined by an op in one scale, and read by a third."""
    net = Moving()
    x = net.conv("x", 3, channels, 3, 32 // size)
    parts = [net.add("Relu", net.conv(x, channels, channels, 3)) for _ in range(3)]
    joined = net.add("Concat", *parts, axis=1)
    return net.made(net.conv(net.add("Relu", net.conv(joined, 3 * channels, 4, 1)), 4, 4, 1))


@pytest.mark.parametrize(
    ("channels", "size", "most"),
    [
        (8, 16, 0.3),
        (4, 8, 0.3),
        (4, 2, 1.0),  # no part but the last fills a place where a device can bind it
        (6, 8, 1.0),  # blocks of channels do not stay whole
    ],
)
def test_joined_codes_take_no_dispatch_more(
    channels: int, size: int, most: float, tmp_path: Path
) -> None:
    model = strips(channels, size)
    made = quantised(model, "per channel", tmp_path)
    np.testing.assert_array_equal(steps(made, "auto")[1], steps(made, "cpu")[1])
    assert commands(made) <= commands(model)
    assert memory_on_the_device(made)[1] <= memory_on_the_device(model)[1] * most


@pytest.mark.parametrize("way", ["per channel", "per tensor"])
@pytest.mark.parametrize("network", [decoder, smooth])
def test_pixels_are_resized_as_bytes(network: Any, way: str, tmp_path: Path) -> None:
    model = network()
    made = quantised(model, way, tmp_path)
    np.testing.assert_array_equal(steps(made, "auto")[1], steps(made, "cpu")[1])
    assert commands(made) <= commands(model)
    assert memory_on_the_device(made)[1] <= memory_on_the_device(model)[1] * 0.25
