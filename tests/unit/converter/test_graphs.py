"""Names, order, constants, functions and types of converted graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn.converter.onnx import NodeContext, converter, load_model
from vkmnn.converter.onnx.registry import find_converter
from vkmnn.errors import PluginError
from vkmnn.ir import DType, Graph
from vkmnn.ir.ops import BinaryAttrs, UnaryAttrs

Build = Callable[..., onnx.ModelProto]
Evaluate = Callable[[Graph, list[np.ndarray]], list[np.ndarray]]
X = {"x": np.array([[-1.5, 0.0, 2.0], [3.0, -4.0, 0.5]], np.float32)}


def node(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


# --- names -------------------------------------------------------------------------------------


def test_unnamed_and_equal_names_become_unique(build: Build) -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Neg", ["a"], ["b"], name="twice"),
        node("Abs", ["b"], ["c"], name="twice"),
        node("Neg", ["c"], ["d"]),
        node("Relu", ["d"], ["y"], name="Neg_3"),
    ]
    names = [op.name for op in load_model(build(nodes, X, ["y"])).ops]
    assert names == ["Relu_0", "twice", "twice_1", "Neg_3", "Neg_3_1"]


def test_ops_name_their_source(build: Build) -> None:
    graph = load_model(build([node("Mean", ["x", "x"], ["y"], name="avg")], X, ["y"]))
    assert [op.source for op in graph.ops] == ["avg (Mean)"] * 2
    assert [op.name for op in graph.ops] == ["avg/BinaryOp", "avg"]


def test_helper_tensors_do_not_clash_with_the_models(build: Build) -> None:
    nodes = [
        node("Neg", ["x"], ["avg/BinaryOp"], name="constant"),
        node("Mean", ["x", "avg/BinaryOp"], ["y"], name="avg"),
    ]
    graph = load_model(build(nodes, X, ["y"]))
    graph.validate()
    assert [op.outputs[0] for op in graph.ops] == ["avg/BinaryOp", "avg/BinaryOp_1", "y"]


def test_small_constants_are_shared(build: Build) -> None:
    nodes = [
        node("ReduceSum", ["x", "axes"], ["a"]),
        node("Squeeze", ["a"], ["b"]),
        node("Unsqueeze", ["b", "axes"], ["c"]),
        node("Mean", ["c", "c"], ["d"]),
        node("Mean", ["d", "d"], ["y"]),
    ]
    graph = load_model(build(nodes, X, ["y"], {"axes": np.array([1])}))
    assert sorted(graph.constants) == ["axes", "constant"]


# --- order -------------------------------------------------------------------------------------


def test_nodes_are_sorted(build: Build, evaluate: Evaluate) -> None:
    nodes = [
        node("Add", ["b", "a"], ["y"], name="last"),
        node("Exp", ["a"], ["b"], name="middle"),
        node("Abs", ["x"], ["a"], name="first"),
    ]
    graph = load_model(build(nodes, X, ["y"]))
    assert [op.name for op in graph.ops] == ["first", "middle", "last"]
    size = np.abs(X["x"])
    np.testing.assert_allclose(evaluate(graph, [X["x"]])[0], size + np.exp(size), rtol=1e-6)


def test_sorted_models_keep_their_order(build: Build) -> None:
    nodes = [node("Neg", ["x"], [f"t{index}"], name=f"n{index}") for index in range(20)]
    nodes.append(node("Sum", [f"t{index}" for index in range(20)], ["y"], name="sum"))
    names = [op.name for op in load_model(build(nodes, X, ["y"])).ops]
    assert names[:20] == [f"n{index}" for index in range(20)]


# --- inputs, outputs, constants ----------------------------------------------------------------


def test_symbols_of_inputs_are_kept(build: Build) -> None:
    inputs = {"x": (TensorProto.FLOAT, ["N", 3, None, -1]), "z": (TensorProto.INT32, None)}
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["z"], ["w"])]
    graph = load_model(build(nodes, inputs, {"y": (1, None), "w": (6, None)}))
    assert [(info.dtype, info.shape) for info in graph.inputs] == [
        (DType.FLOAT32, ("N", 3, None, None)),
        (DType.INT32, None),
    ]


def test_initializer_that_is_an_input_becomes_a_constant(build: Build) -> None:
    model = build([node("Add", ["x", "w"], ["y"])], X | {"w": np.ones(3, np.float32)}, ["y"])
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    graph = load_model(model)
    assert [info.name for info in graph.inputs] == ["x"]
    assert list(graph.constants) == ["w"]


def test_unread_initializers_are_left_out(build: Build) -> None:
    model = build([node("Relu", ["x"], ["y"])], X, ["y"], {"w": np.ones(3, np.float32)})
    model.graph.initializer.add(name="odd", data_type=TensorProto.COMPLEX64, dims=[0])
    assert load_model(model).constants == {}


def test_inputs_and_constants_as_outputs(build: Build, evaluate: Evaluate) -> None:
    outputs = {"x": (1, None), "w": (7, None), "c": (7, None), "k": (1, None)}
    nodes = [
        node("Identity", ["w"], ["c"]),
        node("Constant", [], ["k"], value_float=2.5),
    ]
    graph = load_model(build(nodes, X, outputs, {"w": np.arange(3)}))
    assert graph.ops == []
    x, w, c, k = evaluate(graph, [X["x"]])
    np.testing.assert_array_equal(x, X["x"])
    np.testing.assert_array_equal(w, c)
    assert (k.shape, k.dtype, float(k)) == ((), np.float32, 2.5)


def test_output_without_type_gets_the_inferred_one(build: Build) -> None:
    model = build([node("Shape", ["x"], ["y"])], X, ["y"])
    model.graph.output[0].ClearField("type")
    info = load_model(model).outputs[0]
    assert (info.dtype, info.shape) == (DType.INT64, (2,))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_int": 7}, np.array(7)),
        ({"value_ints": [1, 2]}, np.array([1, 2])),
        ({"value_floats": [1.5]}, np.array([1.5], np.float32)),
        ({"value": numpy_helper.from_array(np.zeros((0, 2), np.int8))}, np.zeros((0, 2), np.int8)),
        ({"value": numpy_helper.from_array(np.array(True))}, np.array(True)),
    ],
)
def test_constants(build: Build, attributes: dict[str, object], expected: np.ndarray) -> None:
    code = helper.np_dtype_to_tensor_dtype(expected.dtype)
    graph = load_model(build([node("Constant", [], ["y"], **attributes)], {}, {"y": (code, None)}))
    assert graph.constants["y"].dtype == expected.dtype
    np.testing.assert_array_equal(graph.constants["y"], expected)


def test_absent_optional_inputs_and_outputs(build: Build) -> None:
    nodes = [
        node("Clip", ["x", "", "high"], ["a"]),
        node("Clip", ["a", "", ""], ["b"]),
        node("TopK", ["b", "k"], ["", "i"]),
    ]
    constants = {"high": np.array(1, np.float32), "k": np.array([2])}
    graph = load_model(build(nodes, X, {"i": (TensorProto.INT64, None)}, constants))
    assert graph.ops[0].attrs == UnaryAttrs("CLIP", -np.inf, 1.0)
    assert graph.ops[1].attrs == UnaryAttrs("CLIP", -np.inf, np.inf)
    assert graph.ops[2].outputs == ["", "i"]


def test_lying_value_info_is_not_believed(build: Build) -> None:
    model = build([node("Shape", ["x"], ["s"]), node("Neg", ["s"], ["y"])], X, {"y": (7, None)})
    model.graph.value_info.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [9, 9]))
    info = load_model(model).infos["s"]
    assert (info.dtype, info.shape) == (DType.INT64, (2,))


def test_value_info_fills_what_inference_leaves_open(build: Build) -> None:
    inputs = X | {"shape": (TensorProto.INT64, [None])}
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("Relu", ["r"], ["y"])]
    model = build(nodes, inputs, ["y"])
    model.graph.value_info.append(helper.make_tensor_value_info("r", 1, ["A", 2, 3]))
    infos = load_model(model).infos
    assert infos["r"].shape == infos["y"].shape == ("A", 2, 3)


# --- functions ---------------------------------------------------------------------------------


def scaled(opset: int = 17) -> onnx.FunctionProto:
    """b = relu(a) · factor + 1, with factor 2 unless given; a by-product is returned as well."""
    nodes = [
        node("Relu", ["a"], ["r"]),
        node("Constant", [], ["f"]),
        node("Mul", ["r", "f"], ["m"], name="times"),
        node("Constant", [], ["one"], value_float=1.0),
        node("Add", ["m", "one"], ["b"]),
    ]
    nodes[1].attribute.add(name="value_float", ref_attr_name="factor", type=1)
    return helper.make_function(
        "my",
        "Scaled",
        ["a", "unused"],
        ["b", "m"],
        nodes,
        [helper.make_opsetid("", opset)],
        attribute_protos=[helper.make_attribute("factor", 2.0)],
    )


def test_local_functions_are_expanded(build: Build, evaluate: Evaluate) -> None:
    nodes = [
        node("Scaled", ["x"], ["h"], domain="my", name="one"),
        node("Scaled", ["h", "x"], ["y", "m"], domain="my", name="two", factor=0.5),
    ]
    model = build(nodes, X, {"y": (1, None), "m": (1, None)}, functions=[scaled()], my=1)
    graph = load_model(model)
    y, m = evaluate(graph, [X["x"]])
    h = np.maximum(X["x"], 0) * 2 + 1
    np.testing.assert_allclose(m, h * 0.5)
    np.testing.assert_allclose(y, h * 0.5 + 1)
    assert [op.name for op in graph.ops][:3] == ["one/Relu_0", "one/times", "one/Add_4"]
    assert {op.source for op in graph.ops} == {"one (Scaled)", "two (Scaled)"}


def test_functions_keep_their_own_opset(build: Build, evaluate: Evaluate) -> None:
    """Softmax flattens before opset 13; the function is written in 12, the model in 17."""
    body = helper.make_function(
        "my",
        "Old",
        ["a"],
        ["b"],
        [node("Softmax", ["a"], ["b"], axis=1)],
        [helper.make_opsetid("", 12)],
    )
    nodes = [node("Old", ["x"], ["y"], domain="my"), node("Softmax", ["x"], ["z"], axis=1)]
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    model = build(nodes, {"x": x}, {"y": (1, None), "z": (1, None)}, functions=[body], my=1)
    y, z = evaluate(load_model(model), [x])
    np.testing.assert_allclose(y.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(z.sum(), 4, rtol=1e-6)


def test_function_that_returns_its_input(build: Build, evaluate: Evaluate) -> None:
    body = helper.make_function("my", "Same", ["a"], ["a"], [], [helper.make_opsetid("", 17)])
    model = build([node("Same", ["x"], ["y"], domain="my")], X, ["y"], functions=[body], my=1)
    np.testing.assert_array_equal(evaluate(load_model(model), [X["x"]])[0], X["x"])


def test_function_bodies_of_onnx(build: Build, evaluate: Evaluate) -> None:
    graph = load_model(
        build([node("Shrink", ["x"], ["y"], name="shrink", lambd=2.5, bias=0.5)], X, ["y"])
    )
    assert all(op.name.startswith("shrink/") for op in graph.ops)
    x = X["x"]
    expected = np.where(x > 2.5, x - 0.5, np.where(x < -2.5, x + 0.5, 0))
    np.testing.assert_allclose(evaluate(graph, [x])[0], expected, rtol=1e-6)


# --- registry ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("registrations")
def test_converters_are_chosen_by_version() -> None:
    def first(context: NodeContext) -> None: ...

    def third(context: NodeContext) -> None: ...

    converter("Thing", since=2, domain="my")(first)
    converter("Thing", since=5, domain="my")(third)
    chosen = [find_converter("Thing", "my", opset) for opset in (1, 2, 4, 5, 99)]
    assert chosen == [None, first, first, third, third]
    assert find_converter("Thing", "", 5) is None


@pytest.mark.usefixtures("registrations")
def test_second_registration_is_refused() -> None:
    converter("Thing")(lambda context: None)
    converter("Thing", since=2)(lambda context: None)
    with pytest.raises(
        PluginError, match=r"converter of .*Thing since opset 1 is already registered"
    ):
        converter("Thing", domain="ai.onnx")(lambda context: None)


@pytest.mark.usefixtures("registrations")
def test_own_converter(build: Build, evaluate: Evaluate) -> None:
    @converter("GeluTimes", domain="my.domain")
    def gelu_times(context: NodeContext) -> None:
        x = context.input(0)
        gelu = context.emit("UnaryOp", [x], UnaryAttrs("RELU"))
        factor = context.constant(context.float("factor", 2.0), context.dtype(x))
        context.finish("BinaryOp", [gelu, factor], BinaryAttrs("MUL"))

    nodes = [
        node("GeluTimes", ["x"], ["h"], domain="my.domain"),
        node("Cast", ["h"], ["d"], to=TensorProto.DOUBLE),
        node("GeluTimes", ["d"], ["y"], domain="my.domain", factor=3.0),
    ]
    graph = load_model(build(nodes, X, {"y": (TensorProto.DOUBLE, None)}, my_domain=1))
    np.testing.assert_allclose(evaluate(graph, [X["x"]])[0], np.maximum(X["x"], 0) * 6)
