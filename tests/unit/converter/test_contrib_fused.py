"""Operators into which onnxruntime's optimiser fuses several, against it or their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.converter.onnx import load_model
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import UnsupportedOpError
from vkmnn.ir import Array, Graph

Build = Callable[..., onnx.ModelProto]
Agree = Callable[..., Graph]

RANDOM = np.random.default_rng(11)


def rand(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def contrib(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


def computed(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The numpy backend's results for a model: some of these have no kernel for CPUs elsewhere."""
    graph = load_model(model)
    values: dict[str, Array] = {**graph.constants, **feeds}
    for op in graph.ops:
        results = run_op(op, [values[name] if name else None for name in op.inputs])
        values.update(zip(op.outputs, results, strict=True))
    return [values[info.name] for info in graph.outputs]


ACTIVATIONS = {
    "Relu": {}, "Tanh": {}, "Sigmoid": {}, "Softplus": {}, "Softsign": {},
    "Elu": {"activation_alpha": 0.7}, "LeakyRelu": {"activation_alpha": 0.2},
    "ThresholdedRelu": {"activation_alpha": 0.4},
    "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
    "Selu": {"activation_alpha": 1.5, "activation_gamma": 1.1},
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fused_gemm(activation: str, build: Build, agree: Agree) -> None:
    inputs, constants = {"a": rand(4, 3), "c": rand(4, 1)}, {"b": rand(5, 3)}
    more = {"transB": 1, "alpha": 0.5, "beta": 2.0, **ACTIVATIONS[activation]}
    node = contrib("FusedGemm", ["a", "b", "c"], ["y"], activation=activation, **more)
    agree(build([node], inputs, ["y"], constants, com_microsoft=1), inputs)


@pytest.mark.parametrize("op", ["FusedMatMul", "TransposeMatMul"])
def test_fused_matmul(op: str, build: Build, agree: Agree) -> None:
    inputs = {"a": rand(2, 4, 3), "b": rand(2, 5, 4)}
    node = contrib(op, ["a", "b"], ["y"], transA=1, transB=1, alpha=0.25)
    agree(build([node], inputs, ["y"], com_microsoft=1), inputs)


@pytest.mark.parametrize("turned", ["transBatchA", "transBatchB"])
def test_batches_come_after_rows(turned: str, build: Build, agree: Agree) -> None:
    rows = (4, 2, 3, 5) if turned == "transBatchA" else (2, 3, 4, 5)
    columns = (5, 2, 3, 7) if turned == "transBatchB" else (2, 3, 5, 7)
    inputs = {"a": rand(*rows), "b": rand(*columns)}
    node = contrib("FusedMatMul", ["a", "b"], ["y"], **{turned: 1})
    agree(build([node], inputs, ["y"], com_microsoft=1), inputs)


def test_fused_matmul_activation(build: Build) -> None:
    inputs = {"a": rand(2, 4, 3), "b": rand(2, 3, 5)}
    node = contrib("FusedMatMulActivation", ["a", "b"], ["y"], alpha=0.5, activation="Relu")
    (result,) = computed(build([node], inputs, ["y"], com_microsoft=1), inputs)
    np.testing.assert_allclose(
        result, np.maximum(0.5 * inputs["a"] @ inputs["b"], 0), rtol=1e-5, atol=1e-6
    )


def gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


@pytest.mark.parametrize("bias", ["", "b"])
def test_gemm_fast_gelu(bias: str, build: Build) -> None:
    inputs, constants = {"x": rand(2, 4, 3)}, {"w": rand(3, 5), "b": rand(5)}
    node = contrib("GemmFastGelu", ["x", "w", bias], ["y"])
    used = {name: constants[name] for name in ("w", bias) if name}
    (result,) = computed(build([node], inputs, ["y"], used, com_microsoft=1), inputs)
    total = inputs["x"] @ constants["w"] + (constants["b"] if bias else 0)
    np.testing.assert_allclose(result, gelu(total), rtol=1e-5, atol=1e-6)


def test_bias_add(build: Build) -> None:
    inputs = {"x": rand(2, 4, 6), "skip": rand(2, 4, 6)}
    node = contrib("BiasAdd", ["x", "b", "skip"], ["y"])
    bias = rand(6)
    (result,) = computed(build([node], inputs, ["y"], {"b": bias}, com_microsoft=1), inputs)
    np.testing.assert_allclose(result, inputs["x"] + bias + inputs["skip"], rtol=1e-6)


def test_bias_split_gelu(build: Build) -> None:
    inputs, bias = {"x": rand(2, 4, 6)}, rand(6)
    node = contrib("BiasSplitGelu", ["x", "b"], ["y"])
    (result,) = computed(build([node], inputs, ["y"], {"b": bias}, com_microsoft=1), inputs)
    left, right = np.split(inputs["x"] + bias, 2, axis=-1)
    np.testing.assert_allclose(result, left * gelu(right), atol=2e-3)  # erf, not tanh


def normalised(x: np.ndarray, groups: int, epsilon: float) -> np.ndarray:
    """Normalise groups of channels, the last axis."""
    parts = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    return np.asarray((parts - mean) / np.sqrt(variance + epsilon)).reshape(x.shape)


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_group_norm(activation: int, last: int, build: Build) -> None:
    x, scale, bias = rand(2, 3, 5, 8), rand(8), rand(8)
    fed = {"x": x if last else np.ascontiguousarray(x.transpose(0, 3, 1, 2))}
    attributes = {"groups": 4, "activation": activation, "epsilon": 1e-3, "channels_last": last}
    node = contrib("GroupNorm", ["x", "s", "b"], ["y"], **attributes)
    model = build([node], fed, ["y"], {"s": scale, "b": bias}, com_microsoft=1)
    expected = normalised(x, 4, 1e-3) * scale + bias
    if activation:
        expected = expected / (1 + np.exp(-expected))
    (result,) = computed(model, fed)
    got = result if last else result.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("skip", [(2, 3, 5, 8), (2, 8), (2, 1, 1, 8)])
@pytest.mark.parametrize("bias", ["", "e"])
def test_skip_group_norm(skip: tuple[int, ...], bias: str, build: Build) -> None:
    inputs = {"x": rand(2, 3, 5, 8), "skip": rand(*skip)}
    constants = {"g": rand(8), "b": rand(8), "e": rand(8)}
    node = contrib(
        "SkipGroupNorm", ["x", "g", "b", "skip", bias], ["y", "t"], groups=2, activation=0
    )
    used = {name: constants[name] for name in ("g", "b", bias) if name}
    result, total = computed(build([node], inputs, ["y", "t"], used, com_microsoft=1), inputs)
    shape = skip if len(skip) == 4 else (2, 1, 1, 8)
    expected = inputs["x"] + inputs["skip"].reshape(shape) + (constants["e"] if bias else 0)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    whole = normalised(expected, 2, 1e-5) * constants["g"] + constants["b"]
    np.testing.assert_allclose(result, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule: str, build: Build, agree: Agree) -> None:
    inputs = {name: rand(1, 4, 6) for name in "qkv"} | {"state": rand(1, 2, 3, 3)}
    decay = {"decay": -abs(rand(1, 4, 2))} if "gated" in rule else {}
    beta = {"beta": abs(rand(1, 4, 2)) / 4} if "delta" in rule else {}
    names = [*"qkv", "state", *(decay or [""]), *(beta or [""])]
    node = contrib(
        "LinearAttention", names, ["y", "s"], q_num_heads=2, kv_num_heads=2, update_rule=rule
    )
    feeds = {**inputs, **decay, **beta}
    agree(build([node], feeds, ["y", "s"], com_microsoft=1), feeds)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("bias", ["", "b"])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(
    taps: int, bias: str, state: bool, activation: str, build: Build, agree: Agree
) -> None:
    feeds = {"x": rand(2, 5, 3)} | ({"past": rand(2, 5, taps - 1)} if state else {})
    constants = {"w": rand(5, 1, taps)} | ({"b": rand(5)} if bias else {})
    names = ["x", "w", bias, "past" if state else ""]
    node = contrib("CausalConvWithState", names, ["y", "s"], activation=activation)
    agree(build([node], feeds, ["y", "s"], constants, com_microsoft=1), feeds)


def test_other_layouts_of_causal_convolutions_are_left_to_others(build: Build) -> None:
    node = contrib("CausalConvWithState", ["x", "w"], ["y", "s"], channels_last=1)
    model = build([node], {"x": rand(2, 3, 5)}, ["y"], {"w": rand(5, 1, 2)}, com_microsoft=1)
    with pytest.raises(UnsupportedOpError, match="channels_last"):
        load_model(model)
