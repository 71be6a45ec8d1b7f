"""Nodes without a kernel: they run on the host, between parts that are planned by themselves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession, Interpreter
from vkmnn.host import engines

F, L, B, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(
        op, inputs.split(), outputs.split(), name=f"{op}_{outputs}", **attributes
    )


def value(name: str, kind: int | onnx.TypeProto, shape: Any = None) -> onnx.ValueInfoProto:
    if isinstance(kind, int):
        return helper.make_tensor_value_info(name, kind, shape)
    return helper.make_value_info(name, kind)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 21,
    **domains: int,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(name.replace("_", "."), n) for name, n in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def oracle(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    session = open_oracle(proto)
    return list(session.run(None, feeds))


def check(proto: onnx.ModelProto, *feeds: dict[str, Any], device: str = "auto") -> Any:
    """Run on each of the feeds, twice, compare with onnxruntime, and return the placement."""
    with InferenceSession(proto, device) as session:
        for given in (*feeds, *feeds):
            for ours, theirs in zip(session.run(None, given), oracle(proto, given), strict=True):
                assert_same(ours, theirs)
        return session.placement()


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif theirs is None or theirs.dtype == object:
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=["auto", "onnx", "onnxruntime"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VKMNN_HOST_ENGINE", request.param)
    return str(request.param)


def found_and_gathered() -> onnx.ModelProto:
    """Positive elements, found on the host: the following ops have shapes that depend on data."""
    nodes = [
        node("Relu", "x", "r"),
        node("Binarizer", "r", "b", domain="ai.onnx.ml", threshold=0.0),
        node("NonZero", "b", "z"),
        node("Transpose", "z", "t"),
        node("GatherND", "x t", "g"),
        node("Exp", "g", "y"),
        node("Shape", "t", "s"),
        node("ConstantOfShape", "s", "o"),
    ]
    inputs, outputs = [value("x", F, ["a", "b"])], [value("y", F), value("o", F)]
    return model(nodes, inputs, outputs, ai_onnx_ml=1)


def test_a_node_in_between(engine: str) -> None:
    """The numbers of elements differ from run to run, and one is none at all."""
    feeds = [{"x": X}, {"x": -X}, {"x": X[:, :2].copy()}, {"x": -abs(X)}]
    placement = check(found_and_gathered(), *feeds)
    away = [op for op in placement if op.backend in ("onnx", "onnxruntime")]
    assert [op.type for op in away] == ["ai.onnx.ml::Binarizer"]
    assert away[0].backend == ("onnx" if engine == "onnx" else "onnxruntime")
    assert "trees, encoders and scalers" in away[0].reason
    assert placement.copies > 2
    assert placement.off_device == tuple(away)


def test_copies_are_counted() -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("Binarizer", "r", "b", domain="ai.onnx.ml", threshold=0.0),
        node("Neg", "b", "y"),
    ]
    proto = model(nodes, [value("x", F, ["a", "b"])], [value("y", F)], ai_onnx_ml=1)
    placement = check(proto, {"x": np.ones((5, 6), np.float32)})
    assert placement.copies == 2
    assert placement.copied_bytes == 2 * 4 * 30
    assert "240 bytes" in str(placement)


def test_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vkmnn"), InferenceSession(found_and_gathered()):
        pass
    assert "1 op runs on the host, in onnxruntime" in caplog.text


def test_raise_and_require_device() -> None:
    with pytest.raises(vkmnn.UnsupportedOpError, match="Binarizer"):
        InferenceSession(found_and_gathered(), unsupported="raise")
    with pytest.raises(vkmnn.PlacementError, match="Binarizer"):
        InferenceSession(found_and_gathered(), require_device=True)
    with pytest.raises(vkmnn.InvalidInputError, match="cpu"):
        InferenceSession(found_and_gathered(), unsupported="no")  # type: ignore[arg-type]


def test_plans_are_kept() -> None:
    """Steps are planned once per shape: NonZero's results have one for each count."""
    with InferenceSession(found_and_gathered()) as session:
        for row in ([1, 0], [0, 1], [1, 1], [1, 1]):
            session.run(None, {"x": np.float32([row])})
        # one of the first part, one that finds places, and then one for each count
        assert session._session.core.plan_count == 4


def test_profile_tune_and_memory() -> None:
    with InferenceSession(found_and_gathered()) as session:
        profile = session.profile({"x": X}, 2)
        assert {"ai.onnx.ml::Binarizer", "GatherND", "UnaryOp"} <= {entry.type for entry in profile}
        assert profile.wall_us > 0
        steps = [span.step for span in profile.timeline if span.step is not None]
        assert max(steps) < len(profile.entries)
        assert session.tune({"x": X}, 1) is not None
        assert session.memory().activations > 0


def test_the_other_face() -> None:
    interpreter = Interpreter(found_and_gathered())
    session = interpreter.create_session({"device": "cpu"})
    given = interpreter.get_session_input(session)
    interpreter.resize_tensor(session, given, X.shape)
    interpreter.resize_session(session)
    given.copy_from(X)
    interpreter.run_session(session)
    result = interpreter.get_session_output(session, "y")
    np.testing.assert_allclose(result.copy_to(), np.exp(X[X > 0]), rtol=1e-5)
    assert result.shape == (int((X > 0).sum()),)


def test_a_shape_that_the_same_part_computes(engine: str) -> None:
    """No node is unknown, but the length of Range follows from the largest element."""
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Cast", "m", "n", to=L),
        node("Range", "zero n one", "y"),
        node("Mul", "x x", "z"),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1)}
    proto = model(nodes, [value("x", F, ["a", "b"])], [value("y", L), value("z", F)], constants)
    placement = check(proto, {"x": X * 4}, {"x": X * 8}, {"x": X * 4})
    assert not placement.off_device
    with InferenceSession(proto) as session:
        for factor in (1, 2, 1, -1):
            session.run(None, {"x": np.full((1, 1), factor, np.float32)})
        assert session._session.core.plan_count == 4  # one of the maximum, three lengths


def branch(name: str, *nodes: onnx.NodeProto, kind: int = F) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [value(nodes[-1].output[0], kind)])


def test_if_on_data(engine: str) -> None:
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("Abs", "x", "h"),
        node(
            "If",
            "c",
            "b",
            then_branch=branch("t", node("Add", "h w", "p")),
            else_branch=branch("e", node("Slice", "h one two", "q")),
        ),
        node("Neg", "b", "y"),
    ]
    constants = {
        "zero": np.float32(0),
        "w": np.float32([1, 2, 3, 4]),
        "one": np.int64([1]),
        "two": np.int64([2]),
    }
    proto = model(nodes, [value("x", F, [3, 4])], [value("y", F)], constants)
    placement = check(proto, {"x": abs(X)}, {"x": -abs(X)})
    assert "If" in {op.type for op in placement}


def loop_body() -> onnx.GraphProto:
    nodes = [
        node("Add", "acc step", "next"),
        node("ReduceMax", "next", "most", keepdims=0),
        node("Less", "most limit", "go"),
        node("Identity", "next", "seen"),
    ]
    inputs = [value("i", L, []), value("cond", B, []), value("acc", F, None)]
    return helper.make_graph(
        nodes, "body", inputs, [value("go", B), value("next", F), value("seen", F)]
    )


def test_loop_with_values_from_outside(engine: str) -> None:
    nodes = [
        node("Abs", "x", "step"),
        node("Loop", "m start x", "last all", body=loop_body()),
        node("Sqrt", "last", "y"),
        node("ReduceSum", "all", "z", keepdims=0),
    ]
    constants = {"m": np.int64(9), "start": np.array(True), "limit": np.float32(4)}
    proto = model(nodes, [value("x", F, ["a"])], [value("y", F), value("z", F)], constants)
    x = np.float32([0.5, 1, 0.75])
    check(proto, {"x": x}, {"x": x * 3}, {"x": x[:1]})


def test_sequences_inside_and_outside(engine: str) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F, None))
    nodes = [
        node("Relu", "x", "r"),
        node("SequenceInsert", "s r", "t"),
        node("SequenceLength", "t", "n"),
        node("ConcatFromSequence", "t", "c", axis=0),
        node("Exp", "c", "y"),
    ]
    proto = model(
        nodes,
        [value("x", F, ["a"]), value("s", kind)],
        [value("y", F), value("n", L), value("t", kind)],
    )
    x = np.float32([1, -2])
    check(proto, {"x": x, "s": [x, x[:1]]}, {"x": x, "s": [x]})
    with InferenceSession(proto) as session:
        assert [arg.type for arg in session.get_inputs()] == ["tensor(float)", "seq(tensor(float))"]
        assert session.get_outputs()[2].type == "seq(tensor(float))"
        with pytest.raises(vkmnn.InvalidInputError, match="input 's' is tensor"):
            session.run(None, {"x": x, "s": [np.int64([1])]})
        with pytest.raises(vkmnn.InvalidInputError, match="input 's' is seq"):
            session.run(None, {"x": x, "s": x})


def test_strings(engine: str) -> None:
    nodes = [node("StringConcat", "a b", "c"), node("Shape", "c", "n"), node("Add", "n n", "m")]
    constants = {"b": np.array(["x", "yz"], object)}
    proto = model(
        nodes, [value("a", S, ["n"])], [value("c", S), value("m", L), value("b", S)], constants
    )
    check(proto, {"a": np.array(["ä", ""], object)})
    with InferenceSession(proto) as session:
        (text, *_) = session.run(None, {"a": np.array(["ab", "c"])})
        assert text.tolist() == ["abx", "cyz"]
        assert text.dtype == object


def test_optionals(engine: str) -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, None))
    nodes = [node("OptionalHasElement", "o", "h"), node("Not", "h", "y")]
    proto = model(nodes, [value("o", kind)], [value("y", B)])
    with InferenceSession(proto) as session:
        assert session.run(None, {"o": None})[0] == np.array(True)
        assert session.run(None, {"o": X})[0] == np.array(False)


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4", "DOUBLE"])
def test_elements_without_storage(name: str) -> None:
    """Values go through a type that only the host has, and come back."""
    kind = TensorProto.DataType.Value(name)
    nodes = [
        node("Mul", "x x", "a"),
        node("Cast", "a", "b", to=kind),
        node("Reshape", "b shape", "c"),
        node("Cast", "c", "d", to=F),
        node("Neg", "d", "y"),
    ]
    proto = model(nodes, [value("x", F, [3, 4])], [value("y", F)], {"shape": np.int64([-1])})
    with InferenceSession(proto) as session:
        (y,) = session.run(None, {"x": X})
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    want = (X * X).astype(dtype).astype(np.float32)
    np.testing.assert_allclose(y, -want.reshape(-1), rtol=1e-6)


def test_weights_of_other_types() -> None:
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, [4], [1.0, 2.0, 0.5, -1.0])
    proto = model(
        [node("Cast", "w", "f", to=F), node("Mul", "x f", "y")],
        [value("x", F, [3, 4])],
        [value("y", F)],
    )
    proto.graph.initializer.append(tensor)
    with InferenceSession(proto) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], X * [1, 2, 0.5, -1])


def test_functions_and_inner_graphs(engine: str) -> None:
    """A branch calls one of the model's own functions."""
    twice = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 21)]
    )
    call = helper.make_node("Twice", ["x"], ["p"], domain="local")
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Cast", "s", "c", to=B),
        node("If", "c", "y", then_branch=branch("t", call), else_branch=branch("e", call)),
    ]
    proto = model(nodes, [value("x", F, [3, 4])], [value("y", F)], local=1)
    proto.functions.append(twice)
    with InferenceSession(proto) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], 2 * X)


def test_a_group_of_several_operator_sets() -> None:
    """The body of a function is written in another operator set than the model."""
    nodes = [
        node("NonZero", "x", "a"),
        node("Bernoulli", "x", "b", seed=1.0),
        node("NonZero", "b", "c"),
    ]
    proto = model(nodes, [value("x", F, [3, 4])], [value("a", L), value("c", L)], opset=15)
    with InferenceSession(proto) as session:
        first, second = session.run(None, {"x": np.ones((3, 4), np.float32)})
    assert first.shape == (2, 12)
    assert second.shape[0] == 2


def test_a_node_that_one_evaluator_does_not_take_leaves_it_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Choosy(engines.OnnxRuntime):
        def __init__(self, proto: onnx.ModelProto, room: int | None) -> None:
            if any(one.op_type == "StringConcat" for one in proto.graph.node):
                raise engines.EngineError("no StringConcat")
            super().__init__(proto, room)

    monkeypatch.setitem(engines.ENGINES, "onnxruntime", Choosy)
    nodes = [
        node("Unique", "x", "sorted"),
        node("StringConcat", "sorted sorted", "twice"),
        node("StringConcat", "twice x", "thrice"),
        node("Unique", "thrice", "y"),
    ]
    text = TensorProto.STRING
    outputs = [value("y", text), value("sorted", text)]
    proto = model(nodes, [value("x", text, ["N"])], outputs, opset=20)
    with InferenceSession(proto) as session:
        found = session.run(None, {"x": np.array(["b", "a"], object)})
        where = [(one.type, one.backend) for one in session.placement().ops]
    assert list(map(list, found)) == [["aab", "bba"], ["a", "b"]]
    concats = [("StringConcat", "onnx")] * 2
    assert where == [("Unique", "onnxruntime"), *concats, ("Unique", "onnxruntime")]


def test_other_domains() -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("BiasGelu", "r w", "g", domain="com.microsoft"),
        node("Binarizer", "g", "b", domain="ai.onnx.ml", threshold=0.5),
        node("Neg", "b", "y"),
    ]
    constants = {"w": np.float32([1, 2, 3, 4])}
    kinds = {"ai_onnx_ml": 3, "com_microsoft": 1}
    proto = model(nodes, [value("x", F, [3, 4])], [value("y", F)], constants, **kinds)
    check(proto, {"x": X})


def test_errors_of_the_host_are_typed(engine: str) -> None:
    nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceAt", "s p", "y")]
    proto = model(nodes, [value("x", F, ["a"]), value("p", L, [])], [value("y", F)])
    with InferenceSession(proto) as session:
        with pytest.raises(vkmnn.HostError, match="SequenceAt"):
            session.run(None, {"x": X[0], "p": np.array(5)})
        assert session.run(None, {"x": X[0], "p": np.array(1)})[0].tolist() == X[0].tolist()


def test_outputs_are_the_callers() -> None:
    nodes = [node("NonZero", "x", "z"), node("Identity", "x", "i")]
    proto = model(nodes, [value("x", F, [2])], [value("z", L), value("i", F), value("k", F)])
    proto.graph.initializer.append(numpy_helper.from_array(np.float32([7]), "k"))
    x = np.float32([1, 2])
    with InferenceSession(proto) as session:
        for _ in range(2):
            z, i, k = session.run(None, {"x": x})
            assert (i.tolist(), k.tolist()) == ([1, 2], [7])
            for array in (z, i, k):
                array.fill(0)
    assert x.tolist() == [1, 2]


def test_rebuilt_sessions_and_closed_ones() -> None:
    session = InferenceSession(found_and_gathered())
    session.run(None, {"x": X})
    session.close()
    with pytest.raises(vkmnn.InvalidInputError, match="closed"):
        session.run(None, {"x": X})
    with pytest.raises(vkmnn.InvalidInputError, match="closed"):
        session.placement()


def test_lstm_gru_and_rnn(engine: str) -> None:
    rng = np.random.default_rng(1)

    def weights(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) * 0.3

    nodes = [
        node("LSTM", "x lw lr lb", "ly lh lc", hidden_size=5, direction="bidirectional"),
        node("GRU", "x gw gr", "gy", hidden_size=5),
        node("RNN", "x rw rr", "ry", hidden_size=5),
        node("ReduceMean", "ly", "a", keepdims=0),
        node("Concat", "gy ry", "b", axis=1),
        node("Tanh", "b", "y"),
    ]
    constants = {
        "lw": weights(2, 20, 3),
        "lr": weights(2, 20, 5),
        "lb": weights(2, 40),
        "gw": weights(1, 15, 3),
        "gr": weights(1, 15, 5),
        "rw": weights(1, 5, 3),
        "rr": weights(1, 5, 5),
    }
    outputs = [value(name, F) for name in ("y", "a", "lh", "lc")]
    proto = model(nodes, [value("x", F, ["t", "n", 3])], outputs, constants)
    feeds = [{"x": rng.standard_normal((t, n, 3)).astype(np.float32)} for t, n in ((7, 2), (1, 3))]
    check(proto, *feeds)


def test_integers_beyond_32_bits(caplog: pytest.LogCaptureFixture) -> None:
    """They are computed with numpy, exactly, and the next run is on the device again."""
    nodes = [node("Add", "a b", "s"), node("Mul", "s s", "y")]
    proto = model(nodes, [value("a", L, ["n"]), value("b", L, ["n"])], [value("y", L)])
    with InferenceSession(proto) as session:
        for first, away in (([1, 2], 0), ([2**40, 2], 2), ([70_000, 2], 2), ([5, 2], 0)):
            feeds = {"a": np.int64(first), "b": np.int64([1, 1])}
            (result,) = session.run(None, feeds)
            with np.errstate(over="ignore"):  # 64 bits wrap
                np.testing.assert_array_equal(result, (feeds["a"] + feeds["b"]) ** 2)
            assert len(session.placement().off_device) == away
    assert "this run is computed on CPU" in caplog.text
    with (
        InferenceSession(proto, require_device=True) as session,
        pytest.raises(vkmnn.IntegerRangeError, match="1099511627776"),
    ):
        session.run(None, {"a": np.int64([2**40, 2]), "b": np.int64([1, 1])})


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("given", ["m yes", "m ", " yes"])
def test_loops_without_limit_or_condition_and_of_no_iterations(
    engine: str, count: int, given: str
) -> None:
    """Scan outputs are stacked along a new axis, and of no iterations have length 0."""
    body = helper.make_graph(
        [
            node("Add", "a a", "b"),
            node("Add", "i one", "j"),
            node("Less", "j stop", "go"),
            node("Identity", "b", "s"),
        ],
        "body",
        [value("i", L, []), value("c", B, []), value("a", F, [2, 1])],
        [value("go", B), value("b", F, [2, 1]), value("s", F, [2, 1])],
    )
    loop = helper.make_node("Loop", [*given.split(" "), "x"], ["last", "all"], body=body)
    constants = {"one": np.int64(1)}
    inputs = [value("x", F, [2, 1]), value("m", L, []), value("yes", B, []), value("stop", L, [])]
    proto = model([loop, node("Neg", "all", "y")], inputs, [value("last", F), value("y", F)])
    for name, array in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    x = np.float32([[1], [2]])
    feeds = {
        "x": x,
        "m": np.array(count if given != " yes" else 99),
        "yes": np.array(count > 0),
        "stop": np.array(count if given != "m " else 99),
    }
    with InferenceSession(proto) as session:
        last, stacked = session.run(None, feeds)
    done = max(count, 0)
    assert stacked.shape == (done, 2, 1)
    np.testing.assert_allclose(last, x * 2**done)
    np.testing.assert_allclose(stacked, [-x * 2 ** (n + 1) for n in range(done)] or stacked)


def deciding() -> onnx.ModelProto:
    """An If with matrix products in its branches, one of which holds another If and a NonZero."""
    inner = node(
        "If",
        "d",
        "i",
        then_branch=branch("it", node("MatMul", "p w", "ip")),
        else_branch=branch("ie", node("Neg", "p", "iq")),
    )
    then = helper.make_graph(
        [node("MatMul", "h w", "p"), inner, node("NonZero", "i", "n"), node("Relu", "i", "t")],
        "then",
        [],
        [value("t", F), value("n", L)],
    )
    otherwise = helper.make_graph(
        [node("MatMul", "h v", "q"), node("Shape", "x", "o")],
        "otherwise",
        [],
        [value("q", F), value("o", L)],
    )
    nodes = [
        node("Abs", "x", "h"),
        node("If", "c", "b m", then_branch=then, else_branch=otherwise),
        node("Exp", "b", "y"),
    ]
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.standard_normal((4, 4)).astype(np.float32) * 0.3,
        "v": rng.standard_normal((4, 2)).astype(np.float32) * 0.3,
    }
    inputs = [value("x", F, ["n", 4]), value("c", B, []), value("d", B, [])]
    return model(nodes, inputs, [value("y", F), value("m", L)], constants)


def test_branches_with_heavy_work_run_on_the_device() -> None:
    feeds = [
        {"x": X[:n].copy(), "c": np.array(c), "d": np.array(d)}
        for n in (3, 1)
        for c in (True, False)
        for d in (True, False)
    ]
    placement = check(deciding(), *feeds)
    assert {op.type for op in placement.off_device} <= {"NonZero", "If"}
    names = {op.name for op in placement if op.type == "MatMul"}
    assert any("/then/" in name for name in names)
    assert any("/else/" in name for name in names)
    check(deciding(), *feeds, device="cpu")
    with InferenceSession(deciding()) as session:
        session.run(None, feeds[0])
        assert session.profile(feeds[0], 1).wall_us > 0


def test_conditions_of_several_elements_on_the_device() -> None:
    proto = deciding()
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    with InferenceSession(proto) as session:
        feeds = {"x": X, "c": np.array([True, False]), "d": np.array(True)}
        with pytest.raises(vkmnn.HostError, match="2 elements"):
            session.run(None, feeds)
        feeds["c"] = np.array([False])
        assert session.run(None, feeds)[0].shape == (3, 2)


def classifier(head: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A classifier as scikit-learn's converter writes it: no types between its nodes."""
    nodes = [*head, node("ZipMap", "p", "y", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])]
    table = helper.make_sequence_type_proto(
        helper.make_map_type_proto(L, helper.make_tensor_type_proto(F, []))
    )
    outputs = [value("label", L, None), value("y", table)]
    return model(nodes, [value("x", F, [None, 4])], outputs, ai_onnx_ml=1)


TREES = helper.make_node(
    "TreeEnsembleClassifier",
    ["x"],
    ["label", "p"],
    domain="ai.onnx.ml",
    nodes_treeids=[0, 0, 0],
    nodes_nodeids=[0, 1, 2],
    nodes_featureids=[1, 0, 0],
    nodes_values=[0.1, 0.0, 0.0],
    nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
    nodes_truenodeids=[1, 0, 0],
    nodes_falsenodeids=[2, 0, 0],
    class_treeids=[0, 0],
    class_nodeids=[1, 2],
    class_ids=[0, 2],
    class_weights=[1.0, 1.0],
    classlabels_int64s=[0, 1, 2],
    post_transform="NONE",
)
LINEAR = [
    helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=list(np.linspace(-1, 1, 12)),
        intercepts=[0.1, 0.0, -0.2],
        classlabels_ints=[0, 1, 2],
        multi_class=1,
        post_transform="LOGISTIC",
    ),
    node("Normalizer", "scores", "p", domain="ai.onnx.ml", norm="L1"),
]


@pytest.mark.parametrize("head", [[TREES], LINEAR], ids=["trees", "linear"])
def test_classifiers_whose_types_nothing_infers(head: list[onnx.NodeProto]) -> None:
    """onnx has no inference for most of ai.onnx.ml; a map needs to know what it is made of."""
    proto = classifier(head)
    with InferenceSession(proto) as session:
        for _ in range(2):
            label, tables = session.run(None, {"x": X})
            expected, others = oracle(proto, {"x": X})
            np.testing.assert_array_equal(label, expected)
            assert tables == others


def _counting_loop(constants: dict[str, np.ndarray]) -> onnx.NodeProto:
    """A Loop that doubles `start` while it is below a bound."""
    body = helper.make_graph(
        [
            node("Add", "v v", "w"),
            node("ReduceMax", "w", "top", keepdims=0),
            node("Less", "top bound", "on"),
        ],
        "body",
        [value("i", L, []), value("c", B, []), value("v", F, [4])],
        [value("on", B, []), value("w", F, [4])],
    )
    constants |= {"bound": np.float32(9), "start": np.float32([1, -2, 0.5, 1])}
    constants |= {"most": np.array(50), "yes": np.array(True)}
    return node("Loop", "most yes start", "doubled", body=body)


def test_nodes_on_constants_are_computed_once() -> None:
    constants: dict[str, np.ndarray] = {}
    nodes = [_counting_loop(constants), node("Mul", "x doubled", "y")]
    proto = model(nodes, [value("x", F, ["n", 4])], [value("y", F, ["n", 4])], constants)
    assert not check(proto, {"x": X}, {"x": X[:1]}).off_device


def test_sequences_of_constants_are_computed_once() -> None:
    nodes = [
        node("SplitToSequence", "table", "parts", axis=0, keepdims=1),
        node("SequenceAt", "parts one", "part"),
        node("Add", "x part", "y"),
    ]
    constants = {"table": np.arange(12, dtype=np.float32).reshape(3, 4), "one": np.array(1)}
    proto = model(nodes, [value("x", F, ["n", 4])], [value("y", F, ["n", 4])], constants)
    assert not check(proto, {"x": X}).off_device


def test_an_output_that_the_host_makes_of_constants() -> None:
    constants: dict[str, np.ndarray] = {}
    nodes = [_counting_loop(constants), node("Relu", "x", "y")]
    outputs = [value("doubled", F, [4]), value("y", F, ["n", 4])]
    proto = model(nodes, [value("x", F, ["n", 4])], outputs, constants)
    assert not check(proto, {"x": X}).off_device


def test_random_numbers_are_drawn_in_every_run() -> None:
    nodes = [node("RandomNormal", "", "noise", shape=[3, 4]), node("Add", "x noise", "y")]
    proto = model(nodes, [value("x", F, ["n", 4])], [value("y", F, ["n", 4])])
    with InferenceSession(proto) as session:
        first, second = (session.run(None, {"x": X})[0] for _ in range(2))
        assert [op.type for op in session.placement().off_device] == ["RandomNormal"]
    assert not np.array_equal(first, second)


def test_what_fails_on_constants_fails_in_the_run() -> None:
    nodes = [
        node("SplitToSequence", "table", "parts", axis=0, keepdims=1),
        node("SequenceAt", "parts nine", "part"),
        node("Add", "x part", "y"),
    ]
    constants = {"table": np.zeros((3, 4), np.float32), "nine": np.array(9)}
    proto = model(nodes, [value("x", F, ["n", 4])], [value("y", F, ["n", 4])], constants)
    with InferenceSession(proto) as session, pytest.raises(vkmnn.VkmnnError):
        session.run(None, {"x": X})


def test_scans_of_empty_slices_over_other_axes_do_not_end_the_process() -> None:
    # onnxruntime divides by the size of a slice where it transposes.
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        scan (float[N] s, float[N, M] x) => (float[N] z, float[N, K] y) {
            z, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                body = inner (float[N] a, float[N] e) => (float[N] c, float[N] d) {
                    c = Add(a, e)
                    d = Tanh(c)
                }> (s, x)
        }"""
    )
    with InferenceSession(model) as session:
        z, y = session.run(None, {"s": np.ones(2, np.float32), "x": np.ones((2, 3), np.float32)})
        assert z.tolist() == [4, 4]
        assert y.shape == (2, 3)
        empty = {"s": np.ones(0, np.float32), "x": np.ones((0, 3), np.float32)}
        z, y = session.run(None, empty)  # the reference evaluator takes it
        assert z.shape == (0,)
        assert y.shape == (0, 3)


@pytest.mark.parametrize("kind", ["sequence", "strings", "optional"])
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_inputs_that_no_op_reads_stay_with_the_host(kind: str, device: str) -> None:
    given: Any = {"sequence": [X], "strings": np.array(["a", "b"], object), "optional": None}[kind]
    floats = helper.make_tensor_type_proto(F, None)
    proto = {
        "sequence": helper.make_sequence_type_proto(floats),
        "strings": helper.make_tensor_type_proto(TensorProto.STRING, [2]),
        "optional": helper.make_optional_type_proto(floats),
    }[kind]
    other = helper.make_value_info("other", proto)
    shape = list(X.shape)
    for nodes, ends in (([node("Relu", "x", "y")], ["y"]), ([], []), ([], ["x"])):
        outputs = [*(value(name, F, shape) for name in ends), other]
        built = model(nodes, [value("x", F, shape), other], outputs, {})
        feeds = {"x": X, "other": given}
        with InferenceSession(built, device=device) as session:
            *arrays, last = session.run(None, feeds)
            for array in arrays:
                np.testing.assert_array_equal(array, np.maximum(X, 0) if nodes else X)
            assert type(last) is type(given)
            assert session.profile(feeds, runs=1).runs == 1
