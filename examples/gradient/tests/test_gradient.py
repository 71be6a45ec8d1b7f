"""Gradient nodes against differences of the function itself, computed in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vkmnn
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vkmnn import InferenceSession, ModelError, UnsupportedOpError

from vkmnn_gradient import expand_gradients

_TRAINING = "ai.onnx.preview.training"
_STEP = 1e-3


def _model(nodes: str, opset: int, xs: dict[str, Any], fed: tuple[str, ...] = ()) -> Any:
    """Return a model of `nodes`, which make y of xs, and of its Gradient."""
    inputs = ", ".join(f"float[{','.join(map(str, x.shape))}] {name}" for name, x in xs.items())
    more = "".join(f", float[{','.join(map(str, xs[n[:-1]].shape))}] {n}" for n in fed)
    outputs = ", ".join(f"float d{name}" for name in xs)
    graph = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "{_TRAINING}": 1]>'
        f"g ({inputs}{more}) => (float y, {outputs}) {{ {nodes} }}"
    )
    for output in graph.graph.output:
        output.type.tensor_type.ClearField("shape")
    made = [f"d{name}" for name in xs]
    read = list(fed or xs)
    graph.graph.node.append(
        helper.make_node("Gradient", read, made, "grad", domain=_TRAINING, xs=list(xs), y="y")
    )
    return graph


def _differences(nodes: str, opset: int, xs: dict[str, Any]) -> list[Any]:
    """Return the derivatives of the sum of y by central differences."""
    inputs = ", ".join(f"double[{','.join(map(str, x.shape))}] {name}" for name, x in xs.items())
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (double y) {{ {nodes} }}'
    evaluator = ReferenceEvaluator(onnx.parser.parse_model(text))
    found = []
    for name, x in xs.items():
        slope = np.zeros(x.shape)
        for place in np.ndindex(x.shape):
            ends = []
            for sign in (1, -1):
                moved = {key: value.astype(np.float64) for key, value in xs.items()}
                moved[name] = moved[name].copy()
                moved[name][place] += sign * _STEP
                ends.append(np.sum(np.asarray(evaluator.run(None, moved)[0])))
            slope[place] = (ends[0] - ends[1]) / (2 * _STEP)
        found.append(slope)
    return found


A, B, ROW, SCALAR = (2, 3), (3, 5), (3,), ()
CASES = [
    ("y = Add(a, b)", (A, ROW)),
    ("y = Sub(b, a)", (A, (1, 1))),
    ("y = Mul(a, b)", ((7, 1, 3), (5, 1))),
    ("y = Div(a, b)", (A, SCALAR)),
    ("y = Pow(a, b)", (A, ROW)),
    ("y = Sum(a, b, a)", (A, ROW)),
    ("y = Mean(a, b)", (A, ROW)),
    ("c = Neg(a) y = Mul(c, a)", (A,)),
    ("c = MatMul(a, b) y = Tanh(c)", (A, B)),
    ("c = MatMul(a, b) y = Mul(c, c)", ((7, 2, 3), B)),
    ("y = Gemm<alpha = 0.5, beta = 2.0>(a, b, c)", (A, B, (5,))),
    ("y = Gemm<transA = 1, alpha = 3.0>(a, b)", ((3, 2), B)),
    ("y = Gemm<transB = 1>(a, b)", (A, (5, 3))),
    ("d = Gemm<transA = 1, transB = 1>(a, b, c) y = Mul(d, d)", ((3, 2), (5, 3), (2, 1))),
    ("c = Transpose(a) d = Mul(c, b) y = Exp(d)", (A, (3, 1))),
    ("c = Transpose<perm = [1, 2, 0]>(a) y = Mul(c, b)", ((2, 3, 5), (3, 5, 2))),
    ("c = Flatten(a) y = Mul(c, b)", ((2, 3, 5), (2, 15))),
    ("c = ReduceSum(a) y = Mul(c, c)", (A,)),
    ("c = ReduceMean<keepdims = 0>(a) y = Mul(c, c)", (A,)),
    ("c = Softmax(a) y = Mul(c, b)", (A, A)),
    ("c = Greater(a, b) y = Where(c, a, b)", (A, ROW)),
    ("s = Shape(b) c = Expand(a, s) y = Mul(c, b)", ((2, 1), (7, 2, 3))),
    ("s = Shape(b) c = Reshape(a, s) y = Mul(c, b)", ((2, 3), (6,))),
    *(
        (f"c = {op}(a) y = Mul(c, a)", (A,))
        for op in (
            *("Abs", "Cos", "Erf", "Exp", "LeakyRelu<alpha = 0.2>", "Log", "Reciprocal", "Relu"),
            *("Sigmoid", "Sin", "Softplus", "Sqrt", "Tanh", "Identity"),
        )
    ),
]


def _feeds(shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    rng = np.random.default_rng(len(shapes))
    return {
        name: rng.uniform(0.5, 2.0, shape).astype(np.float32)
        for name, shape in zip("abc", shapes, strict=False)
    }


@pytest.mark.parametrize(("nodes", "shapes"), CASES, ids=lambda value: str(value)[:30])
def test_rules(nodes: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    xs = _feeds(shapes)
    expected = _differences(nodes, 17, xs)
    with InferenceSession(expand_gradients(_model(nodes, 17, xs)), "cpu") as session:
        _, *gradients = session.run(None, xs)
    for gradient, slope in zip(gradients, expected, strict=True):
        assert gradient.shape == slope.shape
        np.testing.assert_allclose(gradient, slope, rtol=2e-4, atol=2e-4)


NETWORK = "h = Gemm(a, b) r = Tanh(h) s = Mul(r, r) y = ReduceSum<keepdims = 0>(s)"


@pytest.mark.skipif(not vkmnn.devices(), reason="no Vulkan device")
def test_on_the_device() -> None:
    xs = _feeds((A, B))
    with InferenceSession(
        expand_gradients(_model(NETWORK, 17, xs)), require_device=True
    ) as session:
        _, *gradients = session.run(None, xs)
    for gradient, slope in zip(gradients, _differences(NETWORK, 17, xs), strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=2e-4, atol=2e-4)


def test_at_other_values() -> None:
    xs = _feeds((A, ROW))
    nodes = "c = Mul(a, b) y = Exp(c)"
    other = {"ax": xs["a"] / 2, "bx": xs["b"] / 3}
    model = _model(nodes, 17, xs, ("ax", "bx"))
    with InferenceSession(expand_gradients(model), "cpu") as session:
        y, *gradients = session.run(None, {**xs, **other})
    expected = _differences(nodes, 17, {"a": other["ax"], "b": other["bx"]})
    np.testing.assert_allclose(y, np.exp(xs["a"] * xs["b"]), rtol=1e-5)
    for gradient, slope in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=2e-4, atol=2e-4)


def test_second_derivatives() -> None:
    x = np.linspace(-1, 1, 7, dtype=np.float32)
    model = _model("c = Tanh(a) y = Mul(c, c)", 12, {"a": x})
    again = helper.make_node("Gradient", ["a"], ["dda"], domain=_TRAINING, xs=["a"], y="da")
    model.graph.node.append(again)
    model.graph.output.append(helper.make_empty_tensor_value_info("dda"))
    with InferenceSession(expand_gradients(model), "cpu") as session:
        *_, second = session.run(None, {"a": x})
    tanh = np.tanh(x.astype(np.float64))
    bell = 1 - tanh**2
    np.testing.assert_allclose(second, 2 * bell**2 - 4 * tanh**2 * bell, rtol=1e-4, atol=1e-5)


def test_what_y_does_not_depend_on_has_the_gradient_0() -> None:
    xs = _feeds((A, ROW))
    with InferenceSession(expand_gradients(_model("y = Exp(a)", 17, xs)), "cpu") as session:
        *_, gradient = session.run(None, xs)
    assert gradient.tolist() == [0, 0, 0]


def test_unknown_gradients_are_refused_by_name() -> None:
    xs = _feeds((A,))
    model = _model("y = Hardmax(a)", 17, xs)
    with pytest.raises(UnsupportedOpError, match="gradient of Hardmax"):
        InferenceSession(expand_gradients(model), "cpu")


def test_a_y_that_nothing_makes() -> None:
    xs = _feeds((A,))
    model = _model("y = Exp(a)", 17, xs)
    model.graph.node[-1].attribute[1].s = b"nowhere"
    with pytest.raises(ModelError, match="nowhere"):
        InferenceSession(expand_gradients(model), "cpu")


RECORDED = Path(onnx.__file__).parent / "backend" / "test" / "data" / "simple"


@pytest.mark.parametrize("name", ["test_gradient_of_add", "test_gradient_of_add_and_mul"])
def test_recorded_by_onnx(name: str) -> None:
    folder = RECORDED / name
    data = folder / "test_data_set_0"

    def tensors(kind: str) -> list[Any]:
        files = sorted(data.glob(f"{kind}_*.pb"))
        return [
            numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in files
        ]

    model = expand_gradients(onnx.load(folder / "model.onnx"))
    with InferenceSession(model, "cpu") as session:
        names = [value.name for value in session.get_inputs()]
        found = session.run(None, dict(zip(names, tensors("input"), strict=True)))
    for result, expected in zip(found, tensors("output"), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
