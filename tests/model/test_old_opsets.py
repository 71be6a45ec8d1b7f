"""Models of opsets before 7: onnx's converter upgrades them, else the host runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnx_cases import DATA, compare, recorded_tensors

F = TensorProto.FLOAT
X = np.random.default_rng(0).standard_normal((2, 2, 4, 4)).astype(np.float32)
CONSTANTS = {"c": np.float32([1, 2]), "d": np.float32([3, 4])}
EVERY = np.reshape(np.float32([1, 2]), (1, 2, 1, 1))

# operator, inputs, attributes, opset, and what comes out
CASES: dict[str, tuple[str, str, dict[str, Any], int, np.ndarray]] = {
    "add along an axis": ("Add", "x c", {"broadcast": 1, "axis": 1}, 6, X + EVERY),
    "multiply, opset 1": ("Mul", "x c", {"broadcast": 1, "axis": 1}, 1, X * EVERY),
    "slope for each channel": ("PRelu", "x c", {}, 6, np.where(X < 0, X * EVERY, X)),
    "a type by its name": ("Cast", "x", {"to": "INT32"}, 1, X.astype(np.int32)),
    "shape as an attribute": ("Reshape", "x", {"shape": [2, -1]}, 1, X.reshape(2, -1)),
    "limits as attributes": ("Clip", "x", {"min": -0.5, "max": 0.5}, 1, X.clip(-0.5, 0.5)),
    "test mode": ("Dropout", "x", {"is_test": 1}, 1, X),
    "statistics": (
        *("BatchNormalization", "x c d c d", {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}, 1),
        (X - EVERY) / np.sqrt(np.reshape(np.float32([3, 4]), (1, 2, 1, 1)) + 1e-5) * EVERY
        + np.reshape(np.float32([3, 4]), (1, 2, 1, 1)),
    ),
    "default axis": ("Concat", "x x", {}, 1, np.concatenate([X, X], 1)),
    "a norm's order": (
        *("LpPool", "x", {"kernel_shape": [1, 2], "strides": [1, 2], "p": 2.0}, 1),
        np.sqrt((X**2).reshape(2, 2, 4, 2, 2).sum(-1)),
    ),
    "removed since": ("Affine", "x", {"alpha": 2.0, "beta": 1.0}, 1, 2 * X + 1),
}


def old_model(op: str, inputs: str, attributes: dict[str, Any], opset: int) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in inputs.split()]
    given = [helper.make_tensor_value_info("x", F, list(X.shape))]
    kind = TensorProto.INT32 if op == "Cast" else F
    graph = helper.make_graph(
        [helper.make_node(op, inputs.split(), ["y"], **attributes)],
        *("g", given, [helper.make_tensor_value_info("y", kind, None)], tensors),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


# What stands before an addition along axis 1, in operators whose shapes the onnx package does not
# infer: operator, attributes, outputs, and the first of them.
BEFORE: dict[str, tuple[str, dict[str, Any], int, np.ndarray]] = {
    "the same shape": ("Mul", {"broadcast": 1, "axis": 1}, 1, X * EVERY),
    "joined": ("Concat", {"axis": 2}, 1, np.concatenate([X, X], 2)),
    "padded": (
        *("Pad", {"paddings": [0, 0, 1, 0, 0, 0, 0, 2]}, 1),
        np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2))),
    ),
    "another shape": ("Reshape", {"shape": [0, 2, -1]}, 1, X.reshape(2, 2, 16)),
    "cut by sizes": ("Split", {"axis": 3, "split": [1, 3]}, 2, X[..., :1]),
    "cut in halves": ("Split", {"axis": 2}, 2, X[:, :, :2]),
    "larger": (
        *("Upsample", {"height_scale": 2.0, "width_scale": 1.0, "mode": "nearest"}, 1),
        X.repeat(2, 2),
    ),
}


@pytest.mark.parametrize("name", BEFORE)
def test_shapes_follow_through_old_operators(name: str) -> None:
    op, attributes, count, value = BEFORE[name]
    inputs = {"Mul": ["x", "c"], "Concat": ["x", "x"]}.get(op, ["x"])
    outputs = [f"v{number}" for number in range(count)]
    nodes = [
        helper.make_node(op, inputs, outputs, **attributes),
        helper.make_node("Add", ["v0", "c"], ["y"], broadcast=1, axis=1),
    ]
    model = old_model("Add", "x c", {"broadcast": 1, "axis": 1}, 1)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    with vkmnn.InferenceSession(model) as session:
        (result,) = session.run(None, {"x": X})
        assert not session.placement().off_device
    expected = value + EVERY.reshape(1, 2, *(1,) * (value.ndim - 2))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_operators_of_old_opsets(name: str) -> None:
    *case, expected = CASES[name]
    with vkmnn.InferenceSession(old_model(*case)) as session:
        (result,) = session.run(None, {"x": X})
        away = session.placement().off_device
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert bool(away) == (name == "removed since")


def test_they_are_refused_where_nothing_may_run_on_the_host() -> None:
    with pytest.raises(vkmnn.ConversionError, match="opset 6, the oldest supported one is 7"):
        vkmnn.InferenceSession(old_model("Relu", "x", {}, 6), unsupported="raise")


def test_large_weights_of_an_old_model() -> None:
    """Weights read separately from the rest are put back."""
    proto = old_model("Gemm", "m w c", {}, 6)
    weights = np.random.default_rng(1).standard_normal((256, 200)).astype(np.float32)
    graph = proto.graph
    del graph.initializer[:], graph.input[:], graph.node[0].attribute[:]
    graph.node[0].attribute.append(helper.make_attribute("broadcast", 1))
    for name, array in (("first", np.zeros(1 << 16, np.float32)), ("w", weights)):
        graph.initializer.append(numpy_helper.from_array(array, name))
    graph.initializer.append(numpy_helper.from_array(weights[0], "c"))
    graph.input.append(helper.make_tensor_value_info("m", F, [3, 256]))
    x = np.random.default_rng(2).standard_normal((3, 256)).astype(np.float32)
    with vkmnn.InferenceSession(proto.SerializeToString()) as session:
        (result,) = session.run(None, {"m": x})
    np.testing.assert_allclose(result, x @ weights + weights[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_recorded_models_that_onnx_converts_wrongly(rank: int) -> None:
    folder = DATA / "pytorch-converted" / f"test_PReLU_{rank}d_multiparam"
    with vkmnn.InferenceSession(folder / "model.onnx") as session:
        data = folder / "test_data_set_0"
        (x, *_) = recorded_tensors(data, "input")
        name = session.get_inputs()[0].name
        compare(folder.name, session.run(None, {name: x}), recorded_tensors(data, "output"), 1e-4)
        assert not session.placement().off_device


ALONG = "broadcast = 1, axis = 1"
B = np.float32([1, -1]).reshape(1, 2, 1, 1)
# Operators that onnx's converter of versions has no rule for: text, opset, and what comes out.
WITHOUT_RULES: dict[str, tuple[str, str, int, np.ndarray]] = {
    "compared": (
        *("bool", f"{{ a = Less<{ALONG}>(x, b) c = Greater<{ALONG}>(x, b) y = Xor(a, c) }}", 1),
        B != X,
    ),
    "both": (
        *("bool", f"{{ a = Less<{ALONG}>(x, b) c = Not(a) d = Or(a, c) y = And(d, a) }}", 6),
        B > X,
    ),
    "repeated": (
        "float",
        (
            "{ n = Constant<value = float {3.0}>() a = Constant<value = float {2.0}>() "
            "y = Tile(x, n, a) }"
        ),
        1,
        np.tile(X, (1, 1, 3, 1)),
    ),
    "enlarged and cast": (
        "int32",
        (
            '{ a = Upsample<height_scale = 2.0, width_scale = 1.0, mode = "nearest">(x) '
            'y = Cast<to = "INT32">(a) }'
        ),
        1,
        X.repeat(2, 2).astype(np.int32),
    ),
}


@pytest.mark.parametrize("name", WITHOUT_RULES)
def test_operators_that_no_rule_renews(name: str) -> None:
    kind, text, opset, expected = WITHOUT_RULES[name]
    proto = onnx.parser.parse_model(
        f'<ir_version: 3, opset_import: ["": {opset}]> '
        f"net (float[2, 2, 4, 4] x, float[2] b) => ({kind}[i, j, k, l] y) {text}"
    )
    with vkmnn.InferenceSession(proto) as session:
        (found,) = session.run(None, {"x": X, "b": B.reshape(2)})
        assert not session.placement().off_device
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
