"""If with a known condition: the branch replaces it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession, ModelError, UnsupportedOpError
from vkmnn.ir import Array

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
F, B = TensorProto.FLOAT, TensorProto.BOOL


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto], outputs: str, constants: dict[str, Array] | None = None
) -> onnx.GraphProto:
    """Return the graph of a branch, whose outputs are floats."""
    values = [helper.make_tensor_value_info(name, F, None) for name in outputs.split()]
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    return helper.make_graph(list(nodes), "branch", [], values, tensors)


def choice(
    condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto, outputs: str = "y"
) -> onnx.NodeProto:
    return node("If", condition, outputs, then_branch=then, else_branch=otherwise)


def build(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Array],
    outputs: str = "y",
    shape: Sequence[int | str] = (2, 3),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    body = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", F, shape)],
        [helper.make_tensor_value_info(name, F, None) for name in outputs.split()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(body, opset_imports=opsets, ir_version=8, functions=list(functions))


def check(model: onnx.ModelProto, expected: Sequence[Array] = (), x: Array = X) -> None:
    """Compare with the expected results, else with onnxruntime.

    onnxruntime accepts no branch that returns a tensor of the outer graph.
    """
    if not expected:
        oracle = open_oracle(model)
        expected = oracle.run(None, {"x": x})
    with InferenceSession(model, device="cpu") as session:
        results = session.run(None, {"x": x})
    for result, want in zip(results, expected, strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=1e-6)


RELU, NEG = graph([node("Relu", "x", "b")], "b"), graph([node("Neg", "x", "b")], "b")


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_constant_conditions(condition: bool, shape: tuple[int, ...]) -> None:
    check(build([choice("c", RELU, NEG)], {"c": np.full(shape, condition)}))


def test_a_condition_by_a_constant_node() -> None:
    value = numpy_helper.from_array(np.array(False))
    check(build([node("Constant", "", "c", value=value), choice("c", RELU, NEG)], {}))


@pytest.mark.parametrize("condition", [True, False])
def test_values_from_outside_and_names_that_clash(condition: bool) -> None:
    """Both branches call their tensors as the graph around them calls others."""
    then = graph([node("Add", "x w", "t"), node("Mul", "t k", "u")], "u", {"k": np.float32(3)})
    otherwise = graph([node("Sub", "h w", "t"), node("Exp", "t", "u")], "u")
    nodes = [
        node("Abs", "x", "h"),
        choice("c", then, otherwise, "r"),
        node("Neg", "r", "u2"),
        choice("d", graph([node("Sqrt", "h", "t")], "t"), NEG, "s"),
        node("Add", "u2 s", "y"),
    ]
    constants = {"c": np.array(condition), "d": np.array(True), "w": np.float32(0.5)}
    check(build(nodes, constants))


@pytest.mark.parametrize("condition", [True, False])
def test_outputs_that_no_node_of_the_branch_makes(condition: bool) -> None:
    """An initializer of the branch, one of the graph, a graph input, one tensor twice."""
    then = graph([node("Relu", "x", "b")], "k b b", {"k": np.float32([7, 8])})
    otherwise = graph([node("Neg", "x", "b")], "w b h")
    nodes = [node("Abs", "x", "h"), choice("c", then, otherwise, "p y z")]
    constants = {"c": np.array(condition), "w": np.float32([1, 2])}
    p = np.float32([7, 8] if condition else [1, 2])
    y, z = (np.maximum(X, 0),) * 2 if condition else (-X, abs(X))
    model = build([*nodes, node("Exp", "p", "q")], constants, "p q y z")
    check(model, [p, np.exp(p), y, z])


@pytest.mark.parametrize("conditions", [(a, b) for a in (0, 1) for b in (0, 1)])
def test_branches_within_branches(conditions: tuple[int, int]) -> None:
    inner = choice("d", graph([node("Add", "t x", "i")], "i"), graph([], "t"), "j")
    then = graph([node("Mul", "x k", "t"), inner, node("Exp", "j", "o")], "o", {"k": X[0]})
    nodes = [choice("c", then, graph([inner], "j"), "y"), node("Neg", "x", "t")]
    constants = {name: np.array(bool(v)) for name, v in zip("cd", conditions, strict=True)}
    t = X * X[0] if conditions[0] else -X
    j = t + X if conditions[1] else t
    y = np.exp(j) if conditions[0] else j
    check(build(nodes[::-1], constants, "y t"), [y, -X])


def test_nodes_in_any_order() -> None:
    """What a branch reads from outside may stand behind the If in the file."""
    nodes = [choice("c", graph([node("Neg", "h", "b")], "b"), RELU), node("Abs", "x", "h")]
    model = build(nodes, {"c": np.array(True)})
    with InferenceSession(model, device="cpu") as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], -abs(X))


def squeezed() -> list[onnx.NodeProto]:
    """PyTorch's squeeze: an If on the size of an axis."""
    then = graph([node("Squeeze", "h axis", "b")], "b")
    return [
        node("Relu", "x", "h"),
        node("Shape", "h", "s"),
        node("Gather", "s axis", "d"),
        node("Equal", "d one", "c"),
        choice("c", then, graph([node("Identity", "h", "b")], "b")),
    ]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("others", [3, "n"])
def test_conditions_from_shapes(size: int, others: int | str) -> None:
    """The size that decides is known, also where others are not."""
    constants = {"axis": np.array([1]), "one": np.array([1])}
    model = build(squeezed(), constants, shape=(others, size))
    x = np.ones((3, size), np.float32)
    check(model, [x.reshape(3) if size == 1 else x], x)


def test_a_condition_from_a_size_that_is_not_known() -> None:
    model = build(squeezed(), {"axis": np.array([1]), "one": np.array([1])}, shape=(2, "n"))
    with pytest.raises(UnsupportedOpError, match="constant conditions are resolved"):
        InferenceSession(model, device="cpu", unsupported="raise")
    for size in (1, 3):
        check(model, x=np.ones((2, size), np.float32))


@pytest.mark.parametrize("condition", [True, False])
def test_branches_in_functions_and_functions_in_branches(condition: bool) -> None:
    twice = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 17)]
    )
    flag = onnx.AttributeProto(name="value_float", ref_attr_name="by", type=1)
    scale = node("Constant", "", "f")
    scale.attribute.append(flag)
    then = graph([scale, node("Mul", "t f", "p")], "p")
    body = [
        node("Neg", "a", "t"),
        node("Greater", "k z", "c"),
        choice("c", then, graph([node("Exp", "t", "p")], "p"), "r"),
    ]
    opsets = [helper.make_opsetid("", 17)]
    chosen = helper.make_function("local", "Chosen", ["a", "k", "z"], ["r"], body, opsets, ["by"])
    within = graph([node("Twice", "x", "b", domain="local")], "b")
    nodes = [
        node("Chosen", "x k z", "u", domain="local", by=2.5),
        node("Chosen", "u z k", "v", domain="local", by=0.5),
        choice("d", within, NEG, "w"),
        node("Sum", "u v w", "y"),
    ]
    constants = {
        "k": np.float32(condition),
        "z": np.float32(0.5),
        "d": np.array(condition),
    }
    check(build(nodes, constants, functions=[twice, chosen]))


def test_a_refused_node_in_a_branch_that_is_not_taken_does_not_matter() -> None:
    odd = graph([node("RandomNormalLike", "x", "b")], "b")
    check(build([choice("c", RELU, odd)], {"c": np.array(True)}))
    with pytest.raises(UnsupportedOpError, match="RandomNormalLike"):
        InferenceSession(
            build([choice("c", odd, RELU)], {"c": np.array(True)}), "cpu", unsupported="raise"
        )


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (graph([node("Relu", "x", "b")], "b b"), "2 outputs"),
        (graph([node("Relu", "nowhere", "b")], "b"), "'nowhere'"),
        (graph([], "nowhere"), "'nowhere'"),
        (graph([node("Relu", "x", "b"), node("Neg", "x", "b")], "b"), "produced twice"),
        (graph([node("Relu", "y", "b")], "b"), "cycle"),
    ],
)
def test_impossible_branches(then: onnx.GraphProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        InferenceSession(build([choice("c", then, RELU)], {"c": np.array(True)}), device="cpu")


def test_a_condition_of_several_elements() -> None:
    model = build([choice("c", RELU, NEG)], {"c": np.array([True, False])})
    with pytest.raises(ModelError, match="2 elements"):
        InferenceSession(model, device="cpu")


def _hiding() -> onnx.FunctionProto:
    """A function whose branch defines an `x`, while the caller uses the same name."""
    then = graph([node("Neg", "a", "x"), node("Mul", "a x", "t")], "t")
    otherwise = graph([node("Relu", "a", "e")], "e")
    return helper.make_function(
        "local",
        "hiding",
        ["a", "c"],
        ["y"],
        [choice("c", then, otherwise)],
        [helper.make_opsetid("", 17)],
    )


def test_names_of_a_branch_do_not_hide_what_is_given_to_its_function() -> None:
    call = node("hiding", "x true", "y", domain="local")
    check(build([call], {"true": np.array(True)}, functions=[_hiding()]), [-X * X])


@pytest.mark.parametrize("version", [17, 16], ids=["same opset", "another opset"])
@pytest.mark.parametrize("sign", [1, -1])
def test_functions_called_in_branches_of_an_unknown_condition(version: int, sign: int) -> None:
    """On the host, calls are replaced if the opsets agree; otherwise the functions are included."""
    opset = [helper.make_opsetid("", version), helper.make_opsetid("local", 1)]
    half = helper.make_function(
        "local", "half", ["a"], ["b"], [node("Add", "a a", "s"), node("Neg", "s", "b")], opset
    )
    outer = helper.make_function(
        "local",
        "outer",
        ["x", "c"],
        ["y"],
        [
            choice(
                "c",
                graph([node("half", "x", "h", domain="local"), node("Abs", "h", "t")], "t"),
                graph([node("half", "x", "t", domain="local")], "t"),
            )
        ],
        opset,
    )
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Greater", "m zero", "c"),
        node("outer", "x c", "y", domain="local"),
    ]
    model = build(nodes, {"zero": np.array(0, np.float32)}, functions=[outer, half])
    x = sign * np.abs(X)
    check(model, [np.abs(2 * x) if sign > 0 else -2 * x], x)
    with InferenceSession(model, device="cpu") as session:
        assert [op.type for op in session.placement().off_device] == ["If"]
