"""Networks quantised by onnxruntime's tools: the same results, in as many dispatches as floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.vulkan.gemm.families.dot import ConvDot

SHAPE = (1, 3, 32, 32)


class Builder:
    """A network, layer by layer."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._rng = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        array = self._rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def conv(
        self, x: str, taken: int, made: int, size: int, stride: int = 1, group: int = 1
    ) -> str:
        w, b = self.weight(made, taken // group, size, size), self.weight(made)
        pads = [size // 2] * 4
        return self.add("Conv", x, w, b, pads=pads, strides=[stride] * 2, group=group)

    def model(self, y: str) -> onnx.ModelProto:
        return helper.make_model(
            helper.make_graph(
                self.nodes,
                "g",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
                [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, 10])],
                self.weights,
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )


def head(net: Builder, x: str, channels: int) -> onnx.ModelProto:
    flat = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(net.add("Gemm", flat, net.weight(10, channels), net.weight(10), transB=1))


def resnet() -> onnx.ModelProto:
    net = Builder()
    x = net.add("Relu", net.conv("x", 3, 8, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 8
    for made, stride in ((8, 1), (16, 2)):
        y = net.add("Relu", net.conv(x, channels, made, 1))
        y = net.add("Relu", net.conv(y, made, made, 3, stride))
        y = net.conv(y, made, 4 * made, 1)
        x = net.add("Relu", net.add("Add", y, net.conv(x, channels, 4 * made, 1, stride)))
        channels = 4 * made
    return head(net, x, channels)


def mobilenet() -> onnx.ModelProto:
    net = Builder()
    low, high = (numpy_helper.from_array(np.float32(v), n) for v, n in ((0, "low"), (6, "high")))
    net.weights += [low, high]

    def clipped(x: str) -> str:
        return net.add("Clip", x, "low", "high")

    x = clipped(net.conv("x", 3, 8, 3, 2))
    for taken, made, stride in ((8, 8, 1), (8, 12, 2), (12, 12, 1)):
        wide = 4 * taken
        y = clipped(net.conv(x, taken, wide, 1))
        y = clipped(net.conv(y, wide, wide, 3, stride, wide))
        y = net.conv(y, wide, made, 1)
        x = net.add("Add", x, y) if (taken, stride) == (made, 1) else y
    return head(net, x, 12)


def pooled_last() -> onnx.ModelProto:
    """A network whose means are its result, as SqueezeNet's are."""
    net = Builder()
    x = net.add("Relu", net.conv("x", 3, 8, 3, 2))
    x = net.add("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = net.add("Relu", net.conv(x, 8, 12, 3))
    x = net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(net.add("Flatten", net.add("GlobalAveragePool", net.conv(x, 12, 10, 1))))


def gated() -> onnx.ModelProto:
    """Sums and products between convolutions, of tensors that are read twice: no part of these."""
    net = Builder()
    x = net.add("Relu", net.conv("x", 3, 8, 3, 2))
    for op in ("Mul", "Add"):
        y = net.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        x = net.add("Relu", net.conv(net.add(op, x, y), 8, 8, 3))
    return head(net, x, 8)


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """A few random images."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._left: Iterator[Any] = iter(
            [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(4)]
        )

    def get_next(self) -> Any:
        return next(self._left, None)


WAYS: dict[str, dict[str, Any]] = {
    # Bytes by signed bytes of 7 bits: processors without VNNI add pairs of products in 16 bits.
    "per channel": {
        "activation_type": QuantType.QUInt8,
        "per_channel": True,
        "reduce_range": True,
    },
    "per tensor": {"activation_type": QuantType.QInt8},
    "operators": {
        "quant_format": QuantFormat.QOperator,
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
    },
}


def quantised(model: onnx.ModelProto, way: str, folder: Path) -> onnx.ModelProto:
    made = folder / "quantised.onnx"
    options = {"quant_format": QuantFormat.QDQ, "weight_type": QuantType.QInt8, **WAYS[way]}
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "float.onnx")
    quantize_static(folder / "float.onnx", made, Samples(), **options)
    return onnx.load(made)


def steps(model: onnx.ModelProto, device: str) -> tuple[Counter[str], np.ndarray[Any, Any]]:
    """Return the ops that run on the device, and their outputs; all must run there."""
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    with InferenceSession(model, device) as session:
        placed = session.placement()
        assert len({op.backend for op in placed}) == 1
        return Counter(op.type for op in placed), session.run(None, {"x": x})[0]


def commands(model: onnx.ModelProto) -> int:
    """Return the dispatches, copies and fills of a run."""
    with InferenceSession(model, "auto") as session:
        before = session.counters()["commands"]
        session.run(None, {"x": np.zeros(SHAPE, np.float32)})
        return session.counters()["commands"] - before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", [resnet, mobilenet])
def test_codes_are_onnxruntimes(network: Any, way: str, tmp_path: Path) -> None:
    model = network()
    made = quantised(model, way, tmp_path)
    session = open_oracle(made)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    (want,) = session.run(None, {"x": x})
    types, got = steps(made, "auto")
    # Sums and means of codes are float arithmetic: a code of the last layer may differ.
    unit = np.diff(np.unique(want)).min()
    assert np.abs(got - want).max() <= 1.01 * unit
    assert (got == want).mean() >= 0.8
    _, on_host = steps(made, "cpu")
    np.testing.assert_array_equal(got, on_host)
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    assert types["QuantizedConvolution"] == convolutions
    assert types["Convolution"] == types["MatMul"] == types["BinaryOp"] == 0
    assert types["QuantizedMatMul"] == 1
    floats, _ = steps(model, "auto")
    assert types.total() <= floats.total()
    assert commands(made) <= commands(model)


@pytest.mark.parametrize("activations", [QuantType.QUInt16, QuantType.QInt16])
@pytest.mark.parametrize("network", [resnet, mobilenet])
def test_activations_of_16_bits_take_a_dispatch_each(
    network: Any, activations: QuantType, tmp_path: Path
) -> None:
    folder = tmp_path
    onnx.save(onnx.shape_inference.infer_shapes(network()), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx", folder / "made.onnx", Samples(), activation_type=activations,
        weight_type=QuantType.QInt8,
    )  # fmt: skip
    made = onnx.load(folder / "made.onnx")
    session = open_oracle(made)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    (want,) = session.run(None, {"x": x})
    types, got = steps(made, "auto")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-3 * np.abs(want).max())
    assert types["Cast"] == 0
    assert types["Elementwise"] <= sum(node.op_type == "QuantizeLinear" for node in made.graph.node)


def stages(depths: tuple[int, ...], width: int) -> onnx.ModelProto:
    """A ResNet of bottlenecks of the given `depths`; (3, 4, 6, 3) of width 64 is ResNet-50."""
    net = Builder()
    x = net.add("Relu", net.conv("x", 3, width, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = width
    for stage, depth in enumerate(depths):
        made = width << stage
        for block in range(depth):
            stride = 2 if block == 0 and stage else 1
            y = net.add("Relu", net.conv(x, channels, made, 1))
            y = net.add("Relu", net.conv(y, made, made, 3, stride))
            y = net.conv(y, made, 4 * made, 1)
            beside = net.conv(x, channels, 4 * made, 1, stride) if block == 0 else x
            x = net.add("Relu", net.add("Add", y, beside))
            channels = 4 * made
    return head(net, x, channels)


def memory_on_the_device(model: onnx.ModelProto) -> tuple[int, int]:
    """Return the bytes of a plan's constants, and of its activations."""
    with InferenceSession(model, "auto") as session:
        session.run(None, {"x": np.zeros(SHAPE, np.float32)})
        memory = session._session.core.memory()
        return int(memory.constants), int(memory.activations)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("depths", "width"),
    [((1, 1, 1), 32), pytest.param((3, 4, 6, 3), 64, marks=pytest.mark.slow)],
)
def test_weights_and_activations_take_a_byte(
    depths: tuple[int, ...], width: int, way: str, tmp_path: Path
) -> None:
    model = stages(depths, width)
    constants, activations = memory_on_the_device(quantised(model, way, tmp_path))
    constants_of_floats, activations_of_floats = memory_on_the_device(model)
    assert constants <= 0.3 * constants_of_floats
    assert activations <= 0.35 * activations_of_floats


@pytest.mark.parametrize("way", WAYS)
def test_means_at_the_end_take_no_dispatch_more(way: str, tmp_path: Path) -> None:
    model = pooled_last()
    made = quantised(model, way, tmp_path)
    types, got = steps(made, "auto")
    _, on_host = steps(made, "cpu")
    np.testing.assert_array_equal(got, on_host)
    assert types["BinaryOp"] == 0
    assert commands(made) <= commands(model)


@pytest.mark.parametrize("way", WAYS)
def test_sums_and_products_keep_bytes(way: str, tmp_path: Path) -> None:
    model = gated()
    made = quantised(model, way, tmp_path)
    _, got = steps(made, "auto")
    _, on_host = steps(made, "cpu")
    # Sums of codes times scales are float arithmetic: a code of the last layer may differ.
    assert (got == on_host).mean() >= 0.8
    assert commands(made) <= commands(model)
    _, activations = memory_on_the_device(made)
    _, activations_of_floats = memory_on_the_device(model)
    assert activations <= 0.35 * activations_of_floats


@pytest.mark.parametrize("way", ["per channel", "per tensor"])
def test_codes_are_the_same_by_dot_products(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a device whose dot products are fast would compute them, here without being fast."""
    made = quantised(stages((1, 1), 16), way, tmp_path)
    _, on_host = steps(made, "cpu")
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", "radeon-rx-6800")
    _, got = steps(made, "auto")
    np.testing.assert_array_equal(got, on_host)
    with InferenceSession(made, "auto") as session:
        session.run(None, {"x": np.zeros(SHAPE, np.float32)})
        kernels = {choice.taken for choice in session._session.core._main.choices}
    assert any(isinstance(kernel, ConvDot) for kernel in kernels)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("network", [resnet, mobilenet])
def test_biases_may_be_floats(network: Any, shared: bool, tmp_path: Path) -> None:
    """As tools write them, and as PyTorch's exporter shares equal ones: through an Identity."""
    model = network()
    source, made = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    if shared:
        for node in [node for node in model.graph.node if node.op_type == "Conv"]:
            name = f"{node.name}:bias"
            model.graph.node.insert(0, helper.make_node("Identity", [node.input[2]], [name]))
            node.input[2] = name
    onnx.save(onnx.shape_inference.infer_shapes(model), source)
    extra = {"QuantizeBias": False}
    quantize_static(source, made, Samples(), **WAYS["per channel"], extra_options=extra)
    codes = onnx.load(made)
    types, got = steps(codes, "auto")
    _, on_host = steps(codes, "cpu")
    session = open_oracle(made)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    (want,) = session.run(None, {"x": x})
    unit = np.diff(np.unique(want)).min()
    for other in (on_host, want):
        assert np.abs(got - other).max() <= 1.01 * unit
        assert (got == other).mean() >= 0.8
    assert types["QuantizedConvolution"] == sum(n.op_type == "Conv" for n in model.graph.node)
    assert types["Convolution"] == types["MatMul"] == 0
    assert commands(codes) <= commands(network())


def test_zero_points_need_no_pipelines_of_their_own(tmp_path: Path) -> None:
    """Codes of every layer begin elsewhere where nothing cuts them off at zero."""

    def chain(layers: int) -> onnx.ModelProto:
        net = Builder()
        x = net.conv("x", 3, 16, 3)
        for _ in range(layers):
            x = net.conv(x, 16, 16, 3)
        return head(net, x, 16)

    def pipelines(layers: int) -> int:
        made = quantised(chain(layers), "per tensor", tmp_path)
        with InferenceSession(made, "auto") as session:
            session.run(None, {"x": np.zeros(SHAPE, np.float32)})
            return int(session.counters()["pipelines"])

    few = pipelines(2)  # of all sessions so far
    assert pipelines(8) <= few + 2
