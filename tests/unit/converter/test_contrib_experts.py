"""Mixtures of experts in onnxruntime's domain, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.converter.onnx import load_model
from vkmnn.ir import Graph

Build = Callable[..., onnx.ModelProto]
Agree = Callable[..., Graph]
RANDOM = np.random.default_rng(5)
EXPERTS, WIDTH, INNER = 5, 32, 64


def rand(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def layers(double: bool, third: bool = False) -> dict[str, np.ndarray]:
    inner = INNER * (2 if double else 1)
    made = {"w1": rand(EXPERTS, inner, WIDTH) / 6, "b1": rand(EXPERTS, inner),
            "w2": rand(EXPERTS, WIDTH, INNER) / 8, "b2": rand(EXPERTS, WIDTH)}  # fmt: skip
    if third:
        made |= {"w3": rand(EXPERTS, INNER, WIDTH) / 6, "b3": rand(EXPERTS, INNER)}
    return made


def mixture(names: list[str], op: str = "MoE", **attributes: Any) -> onnx.NodeProto:
    attributes = {"k": 2, **attributes}
    return helper.make_node(
        op, ["x", "router", *names], ["y"], domain="com.microsoft", **attributes
    )


@pytest.mark.parametrize(
    ("activation", "more"),
    [
        ("relu", {}),
        ("gelu", {"k": 1}),
        ("silu", {"k": 3, "normalize_routing_weights": 1}),
        ("identity", {"k": EXPERTS}),
        ("swiglu", {"swiglu_fusion": 1}),
        ("swiglu", {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0,
                    "swiglu_limit": 0.7}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(7, WIDTH), (2, 3, WIDTH), (1, WIDTH)])
@pytest.mark.parametrize("biased", [True, False])
def test_experts(
    activation: str, more: dict[str, Any], shape: tuple[int, ...], biased: bool, build: Build,
    agree: Agree,
) -> None:  # fmt: skip
    weights = layers(activation == "swiglu")
    tokens = int(np.prod(shape[:-1]))
    feeds = {"x": rand(*shape), "router": rand(tokens, EXPERTS)}
    names = ["w1", "b1", "w2", "b2"] if biased else ["w1", "", "w2"]
    constants = {name: weights[name] for name in names if name}
    node = mixture(names, activation_type=activation, **more)
    agree(build([node], feeds, ["y"], constants, com_microsoft=1), feeds)


def swish(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("form", ["fc3 silu", "fc3 swiglu", "halves"])
def test_gates_that_onnxruntime_leaves_to_gpus(
    form: str, build: Build, evaluate: Callable[..., Any]
) -> None:
    third = form != "halves"
    weights = layers(not third, third)
    feeds = {"x": rand(4, WIDTH), "router": rand(4, EXPERTS)}
    more = {"activation_type": form.split()[-1] if third else "swiglu",
            "swiglu_fusion": 0 if third else 2}  # fmt: skip
    graph = load_model(build([mixture(list(weights), **more)], feeds, ["y"], weights,
                             com_microsoft=1))  # fmt: skip
    actual = evaluate(graph, list(feeds.values()))[0]
    expected = np.zeros((4, WIDTH))
    for row, scores in enumerate(feeds["router"]):
        best = np.argsort(-scores)[:2]
        shares = np.exp(scores[best]) / np.exp(scores).sum()
        for expert, share in zip(best, shares, strict=True):
            one = {name: array[expert].astype(np.float64) for name, array in weights.items()}
            made = one["w1"] @ feeds["x"][row] + one["b1"]
            if third:
                gated = swish(made) * (one["w3"] @ feeds["x"][row] + one["b3"])
            else:
                gated = swish(made[:INNER]) * made[INNER:]
            expected[row] += share * (one["w2"] @ gated + one["b2"])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("mixing", [False, True])
@pytest.mark.parametrize("normalised", [0, 1])
def test_experts_in_codes(
    bits: int,
    block: int,
    zeros: bool,
    mixing: bool,
    normalised: int,
    build: Build,
    agree: Agree,
    evaluate: Callable[..., Any],
) -> None:
    constants: dict[str, np.ndarray] = {}
    for number, (columns, depth) in ((1, (2 * INNER, WIDTH)), (2, (WIDTH, INNER))):
        blocks = depth // block if block else 1
        groups = (blocks,) if block else ()
        constants[f"w{number}"] = RANDOM.integers(
            0, 256, (EXPERTS, columns, depth * bits // 8), dtype=np.uint8
        )
        constants[f"s{number}"] = RANDOM.uniform(0.001, 0.02, (EXPERTS, columns, *groups)).astype(
            np.float32
        ) * (1 if bits == 4 else 1 / 16)
        shape = (columns, -(-blocks * bits // 8)) if block else (-(-columns * bits // 8),)
        constants[f"z{number}"] = RANDOM.integers(0, 256, (EXPERTS, *shape), dtype=np.uint8)
    feeds = {"x": rand(3, WIDTH), "router": rand(3, EXPERTS)}
    names = ["w1", "s1", "", "w2", "s2", "", "", "", "", *([] if not zeros else ["z1", "z2", ""])]
    if mixing:
        feeds["mixing"] = RANDOM.uniform(0.1, 1, (3, EXPERTS)).astype(np.float32)
        names = [*names, *[""] * (12 - len(names)), "mixing"]
    more = {"block_size": block} if block else {}
    node = mixture(names, "QMoE", expert_weight_bits=bits, activation_type="swiglu",
                   swiglu_fusion=1, normalize_routing_weights=normalised, weights_prepacked=0,
                   **more)  # fmt: skip
    used = {name: array for name, array in constants.items() if name in names}
    model = build([node], feeds, ["y"], used, com_microsoft=1)
    if bits == 8 and block:  # onnxruntime rounds what goes in to 8 bits, too
        graph = load_model(model)
        if not mixing:
            _agree_with_numbers(graph, feeds, used, block, build, evaluate)
    else:
        graph = agree(model, feeds)
    assert sum(op.type == "ExpertMatMul" for op in graph.ops) == 2


def _agree_with_numbers(
    graph: Graph, feeds: dict[str, np.ndarray], codes: dict[str, np.ndarray], block: int,
    build: Build, evaluate: Callable[..., Any],
) -> None:  # fmt: skip
    """Compare with MoE of the dequantised 8-bit values."""
    weights = {}
    for number in "12":
        zeros = codes.get(f"z{number}", np.array(128)).astype(np.float32)
        wide = np.repeat(zeros, block, -1) if zeros.ndim else zeros
        scales = np.repeat(codes[f"s{number}"], block, -1)
        weights[f"w{number}"] = (codes[f"w{number}"] - wide) * scales
    node = mixture(["w1", "", "w2"], activation_type="swiglu", swiglu_fusion=1,
                   normalize_routing_weights=1)  # fmt: skip
    plain = load_model(build([node], feeds, ["y"], weights, com_microsoft=1))
    values = list(feeds.values())
    np.testing.assert_allclose(
        evaluate(graph, values)[0], evaluate(plain, values)[0], rtol=1e-4, atol=1e-5
    )
