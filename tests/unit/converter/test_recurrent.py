"""LSTM, GRU and RNN nodes: compared with onnxruntime, or with equivalents if it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.ir import Array

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
STEPS, BATCH, INPUTS, UNITS = 5, 3, 4, 7

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "without bias": {"bias": False},
    "one of each": {"sizes": (1, 1, 1, 1)},
    "lengths": {"lengths": [3, 5, 0]},
    "first states": {"first": True, "lengths": [1, 2, 5]},
    "clip": {"clip": 0.1, "first": True},
    "computed weights": {"constant": False},
    "last only": {"outputs": ["", "h"]},
    "alphas": {"functions": ("HardSigmoid", "LeakyRelu", "Elu"), "alphas": (0.25, 0.125, 0.5)},
    "betas": {"functions": ("Sigmoid", "Affine", "ScaledTanh"), "alphas": (0.5, 0.75)},
    "no alphas": {"functions": ("HardSigmoid", "Softsign", "Elu")},
    "any case": {"functions": ("sigmoid", "TANH", "relu")},
    "opset 22": {"opset": 22},
}
OWN = {
    "LSTM": {
        "peepholes": {"peepholes": True, "first": True},
        "clipped peepholes": {"peepholes": True, "clip": 0.25},
        "coupled": {"input_forget": 1},
        "cell only": {"outputs": ["", "", "c"]},
    },
    "GRU": {
        "product reset": {"linear_before_reset": 1},
        "clipped product": {"linear_before_reset": 1, "clip": 0.125, "lengths": [2, 0, 5]},
    },
    "RNN": {},
}


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-0.8, 0.8, shape).astype(np.float32)


def make(
    cell: str,
    direction: str = "forward",
    *,
    sizes: tuple[int, int, int, int] = (STEPS, BATCH, INPUTS, UNITS),
    bias: bool = True,
    lengths: list[int] | None = None,
    first: bool = False,
    peepholes: bool = False,
    constant: bool = True,
    functions: tuple[str, ...] = (),
    alphas: tuple[float, ...] = (),
    outputs: list[str] | None = None,
    opset: int = 14,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model of one node, and feeds."""
    steps, batch, width, units = sizes
    sides, gates = 2 if direction == "bidirectional" else 1, GATES[cell]
    lstm = cell == "LSTM"
    x, states = draw(0, steps, batch, width), [draw(i, sides, batch, units) for i in (1, 2)]
    if attributes.get("layout"):
        x, states = x.swapaxes(0, 1), [state.swapaxes(0, 1) for state in states]
    weights = {"w": draw(3, sides, gates * units, width), "r": draw(4, sides, gates * units, units)}
    weights |= {"b": draw(5, sides, 2 * gates * units)} if bias else {}
    weights |= {"p": draw(6, sides, 3 * units)} if peepholes else {}
    feeds = {"x": np.ascontiguousarray(x)}
    feeds |= {"n": np.int32(lengths)} if lengths is not None else {}
    feeds |= {"h0": np.ascontiguousarray(states[0])} if first else {}
    feeds |= {"c0": np.ascontiguousarray(states[1])} if first and lstm else {}
    feeds |= {} if constant else weights
    there = {**feeds, **weights}
    names = [name if name in there else "" for name in ("x", "w", "r", "b", "n", "h0", "c0", "p")]
    if functions:
        chosen = functions[: FUNCTIONS[cell]]
        attributes["activations"] = list(chosen) * sides
        attributes |= {"activation_alpha": list(alphas) * sides} if alphas else {}
        attributes |= {"activation_beta": [0.25, 0.5] * sides} if "Affine" in chosen else {}
    made = outputs or (["y", "h", "c"] if lstm else ["y", "h"])
    inputs = names if lstm else names[:6]
    node = helper.make_node(
        cell, inputs, made, hidden_size=units, direction=direction, **attributes
    )
    graph = helper.make_graph(
        [node],
        cell,
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made if name],
        [numpy_helper.from_array(a, name) for name, a in weights.items() if name not in feeds],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return proto, feeds


def run(proto: onnx.ModelProto, feeds: dict[str, Array], device: str = "cpu") -> list[Array]:
    with InferenceSession(proto, device=device, unsupported="raise") as session:
        return session.run(None, feeds)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("cell", "case"), [(cell, case) for cell in GATES for case in {**CASES, **OWN[cell]}]
)
def test_beside_onnxruntime(cell: str, case: str, direction: str) -> None:
    pytest.importorskip("onnxruntime")
    given = {**CASES, **OWN[cell]}[case]
    if cell != "LSTM" and "c" in given.get("outputs", ()):
        pytest.skip("it has no cell")
    if cell == "RNN" and case == "any case":
        pytest.skip("onnxruntime's RNN wants names as ONNX spells them")
    proto, feeds = make(cell, direction, **given)
    oracle = open_oracle(proto)
    for result, expected in zip(run(proto, feeds), oracle.run(None, feeds), strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("cell", GATES)
def test_batches_first(cell: str, direction: str) -> None:
    """Layout 1 swaps axes, and nothing else; onnxruntime has none."""
    given = {"first": True, "lengths": [4, 1, 5]}
    every, *last = run(*make(cell, direction, **given))
    other, *others = run(*make(cell, direction, layout=1, **given))
    np.testing.assert_array_equal(other, every.transpose(2, 0, 1, 3))
    for one, two in zip(last, others, strict=True):
        np.testing.assert_array_equal(two, one.swapaxes(0, 1))


@pytest.mark.parametrize(("cell", "opset"), [("LSTM", 1), ("RNN", 1), ("GRU", 3)])
def test_oldest_opsets(cell: str, opset: int) -> None:
    new = run(*make(cell, "bidirectional", first=True))
    kept = {} if cell == "RNN" else {"output_sequence": 1}
    proto, feeds = make(cell, "bidirectional", first=True, opset=opset, **kept)
    with InferenceSession(proto, device="cpu") as session:
        old = session.run(None, feeds)
        assert {op.backend for op in session.placement().ops} == {"CPU"}
    for one, two in zip(new, old, strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_is_not_a_recurrent_node() -> None:
    for given in (
        {"functions": ("Sigmoid", "Sine", "Tanh")},
        {"activations": ["Sigmoid"]},
        {"direction": "sideways"},
    ):
        with pytest.raises(vkmnn.VkmnnError):
            run(*make("LSTM", **given))
    proto, feeds = make("LSTM", lengths=[3, 9, 1])
    with pytest.raises(vkmnn.InvalidInputError, match="outside 0 to 5"):
        run(proto, feeds)
