"""Operators of onnxruntime's own domain, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.converter.onnx import load_model
from vkmnn.ir import DType, Graph

Build = Callable[..., onnx.ModelProto]
Agree = Callable[..., Graph]

RANDOM = np.random.default_rng(5)


def rand(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def contrib(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


@pytest.mark.parametrize(
    ("op", "names"),
    [("Gelu", "x"), ("BiasGelu", "xb"), ("FastGelu", "x"), ("FastGelu", "xb"), ("QuickGelu", "x")],
)
def test_activations(op: str, names: str, build: Build, agree: Agree) -> None:
    inputs = {
        name: value for name, value in (("x", rand(2, 3, 5)), ("b", rand(5))) if name in names
    }
    agree(build([contrib(op, list(names), ["y"])], inputs, ["y"], com_microsoft=1), inputs)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_params": [0.2]},
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ],
)
def test_fused_conv(attributes: dict[str, object], build: Build, agree: Agree) -> None:
    x = {"x": rand(1, 2, 6, 5)}
    constants = {"w": rand(3, 2, 3, 3), "b": rand(3)}
    node = contrib("FusedConv", ["x", "w", "b"], ["y"], **attributes)
    agree(build([node], x, ["y"], constants, com_microsoft=1), x)


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int, build: Build, agree: Agree) -> None:
    x = {"x": rand(3, 5)}
    agree(build([contrib("Trilu", ["x"], ["y"], upper=upper)], x, ["y"], com_microsoft=1), x)


@pytest.mark.parametrize("bias", ["", "e"])
def test_skip_layer_normalization(bias: str, build: Build, agree: Agree) -> None:
    inputs = {"x": rand(2, 3, 8), "s": rand(2, 3, 8)}
    constants = {"g": rand(8), "b": rand(8), "e": rand(8)}
    node = contrib(
        "SkipLayerNormalization", ["x", "s", "g", "b", bias], ["y", "", "", "t"], epsilon=1e-4
    )
    agree(build([node], inputs, ["y", "t"], constants, com_microsoft=1), inputs)


def test_skip_rms_normalization(build: Build, agree: Agree) -> None:
    inputs = {"x": rand(2, 3, 8), "s": rand(2, 3, 8)}
    node = contrib("SkipSimplifiedLayerNormalization", ["x", "s", "g"], ["y"])
    agree(build([node], inputs, ["y"], {"g": rand(8)}, com_microsoft=1), inputs)


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_norms_in_onnx_domain_before_opset_17(op: str, build: Build, agree: Agree) -> None:
    x = {"x": rand(2, 3, 8)}
    constants = {"g": rand(8)} | ({"b": rand(8)} if op == "LayerNormalization" else {})
    node = helper.make_node(op, ["x", *constants], ["y"], axis=-1)
    agree(build([node], x, ["y"], constants, opset=13), x)


def test_types_are_known_behind_contrib_operators(build: Build) -> None:
    """Nothing but the vocabulary says what a contrib operator returns."""
    nodes = [contrib("Gelu", ["x"], ["h"]), helper.make_node("Mean", ["h", "h"], ["y"])]
    graph = load_model(build(nodes, {"x": rand(2, 3)}, ["y"], com_microsoft=1))
    assert (graph.infos["h"].dtype, graph.infos["h"].shape) == (DType.FLOAT32, (2, 3))


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embedding_with_its_norm(
    segments: bool, given: bool, mask: bool, build: Build, agree: Agree
) -> None:
    feeds = {"ids": RANDOM.integers(0, 7, (2, 5)).astype(np.int32)}
    constants = {"words": rand(7, 8), "places": rand(9, 8), "scale": rand(8), "shift": rand(8)}
    names = ["ids", "", "words", "places", "", "scale", "shift", "", ""]
    if segments:
        feeds["kinds"] = RANDOM.integers(0, 2, (2, 5)).astype(np.int32)
        constants["table"] = rand(2, 8)
        names[1], names[4] = "kinds", "table"
    if mask:
        feeds["mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
        names[7] = "mask"
    if given:
        feeds["at"] = RANDOM.integers(0, 9, (2, 5)).astype(np.int32)
        names[8] = "at"
    outputs = {"y": (1, None), "kept": (6, None), "sum": (1, None)}
    node = contrib("EmbedLayerNormalization", names, list(outputs), epsilon=1e-5)
    agree(build([node], feeds, outputs, constants, com_microsoft=1), feeds)


@pytest.mark.parametrize("skip", [(4, 8), (1, 4, 8), (2, 4, 8)])
@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skips_of_fewer_axes(op: str, skip: tuple[int, ...], build: Build, agree: Agree) -> None:
    feeds = {"x": rand(2, 4, 8), "skip": rand(*skip)}
    constants = {"scale": rand(8)} | ({"shift": rand(8)} if op[4] == "L" else {})
    node = contrib(op, [*feeds, *constants], ["y", "", "", "sum"])
    agree(build([node], feeds, ["y", "sum"], constants, com_microsoft=1), feeds)
