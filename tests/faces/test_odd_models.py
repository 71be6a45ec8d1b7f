"""Odd models: each gives the right result, or a typed error that names the place and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn import InferenceSession
from vkmnn.errors import VkmnnError

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
LONG = "a" * 1_000_000

Model = onnx.ModelProto


def info(name: str, shape: Sequence[int] | None = (2, 3), kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs=("x",), outputs=("y",), constants=None, opset: int = 18) -> Model:
    """Return a model; inputs that are names have X's shape, outputs that are names none."""
    graph = helper.make_graph(
        nodes,
        "odd",
        [info(value) if isinstance(value, str) else value for value in inputs],
        [info(value, None) if isinstance(value, str) else value for value in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op: str, inputs: str, outputs: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name="here", **attributes)


def twofold(op: str) -> onnx.GraphProto:
    """A branch without inputs that returns one tensor twice."""
    return helper.make_graph([node(op, "x", "b")], "branch", [], [info("b"), info("b")])


def many(op: str, count: int, **attributes: object) -> Model:
    names = [f"x{number}" for number in range(count)]
    return model([node(op, " ".join(names), **attributes)], names)


def sparse() -> onnx.SparseTensorProto:
    proto = onnx.SparseTensorProto(dims=[2, 3])
    proto.values.CopyFrom(numpy_helper.from_array(np.float32([5, 7]), "w"))
    proto.indices.CopyFrom(numpy_helper.from_array(np.array([1, 5]), "i"))
    return proto


def sparse_initializer() -> Model:
    made = model([node("Add", "x w")])
    made.graph.sparse_initializer.append(sparse())
    return made


def called(body: Sequence[onnx.NodeProto], *more: onnx.FunctionProto) -> Model:
    """Return a model that calls a function of its own, from a to b."""
    made = model([helper.make_node("f", ["x"], ["y"], name="here", domain="my")])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    made.functions.append(helper.make_function("my", "f", ["a"], ["b"], body, imports))
    made.functions.extend(more)
    made.opset_import.add(domain="my", version=1)
    return made


def call(name: str) -> onnx.NodeProto:
    return helper.make_node(name, ["a"], ["b"], domain="my")


def function(name: str, body: onnx.NodeProto) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    return helper.make_function("my", name, ["a"], ["b"], [body], imports)


def doubling(depth: int) -> list[onnx.FunctionProto]:
    """Return functions that call the next one twice."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    made = []
    for level in range(depth):
        names = (f"f{level}" if level else "f", f"f{level + 1}")
        body = [helper.make_node(names[1], [a], [b], domain="my") for a, b in ("at", "tb")]
        if level == depth - 1:
            body = [helper.make_node("Neg", ["a"], ["b"])]
        made.append(helper.make_function("my", names[0], ["a"], ["b"], body, imports))
    return made


def looped(functions: Sequence[onnx.FunctionProto]) -> Model:
    """Return a model that calls a function in a Loop of two turns."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("f", ["s"], ["t"], domain="my"),
        ],
        "body",
        [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), info("s")],
        [info("on", (), TensorProto.BOOL), info("t")],
    )
    loop = helper.make_node("Loop", ["m", "", "x"], ["y"], name="here", body=body)
    made = model([loop], constants={"m": np.array(2)})
    made.functions.extend(functions)
    made.opset_import.add(domain="my", version=1)
    return made


def nested_ifs(depth: int, constant: bool) -> Model:
    """Return a model of an If in an If in an If …, whose innermost branch is Relu."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["b0"])], "b", [], [info("b0", None)]
    )
    for level in range(1, depth):
        other = helper.make_node("Neg", ["x"], [f"e{level}"])
        other_graph = helper.make_graph([other], "e", [], [info(f"e{level}", None)])
        inner = helper.make_node(
            "If", ["c"], [f"b{level}"], then_branch=graph, else_branch=other_graph
        )
        graph = helper.make_graph([inner], "b", [], [info(f"b{level}", None)])
    top = graph.node[0]
    top.output[0] = "y"
    top.name = "here"
    if constant:
        return model([top], constants={"c": np.array(True)})
    return model([top], ["x", info("c", (), TensorProto.BOOL)])


def opsets(*versions: int) -> Model:
    made = model([node("Relu", "x")])
    del made.opset_import[:]
    for version in versions:
        made.opset_import.add(domain="", version=version)
    return made


def damaged(change: Callable[[TensorProto], object]) -> Model:
    made = model([node("Add", "x w")], constants={"w": X})
    change(made.graph.initializer[0])
    return made


def twice(made: Model) -> Model:
    again = TensorProto()
    again.CopyFrom(made.graph.initializer[0])
    made.graph.initializer.append(again)
    return made


PAIRS = ",".join(a + b for i, a in enumerate("abcdefghij") for b in "abcdefghij"[i + 1 :])
CHAIN = ",".join(chr(97 + i) + chr(98 + i) for i in range(20)) + "->au"
ONES = np.ones((2, 2), np.float32)

# name: (model, feeds, results)
RIGHT = {
    "names with NUL": (
        lambda: model([node("Relu", "a\0b", "c\0d")], ["a\0b"], ["c\0d"]),
        {"a\0b": X},
        [np.maximum(X, 0)],
    ),
    "names of a million characters": (
        lambda: model([node("Relu", LONG, LONG + "y")], [LONG], [LONG + "y"]),
        {LONG: X},
        [np.maximum(X, 0)],
    ),
    "nodes of the same name": (
        lambda: model([node("Neg", "x", "t"), node("Relu", "t")]),
        {"x": X},
        [np.maximum(-X, 0)],
    ),
    "an output three times": (
        lambda: model([node("Neg", "x")], ["x"], ["y", "y", "y"]),
        {"x": X},
        [-X, -X, -X],
    ),
    "an output twice, beside one of the name that comes next": (
        lambda: model([node("Neg", "x"), node("Abs", "x", "y_1")], ["x"], ["y", "y", "y_1"]),
        {"x": X},
        [-X, -X, np.abs(X)],
    ),
    "an input and a constant twice among the outputs": (
        lambda: model([node("Neg", "x")], ["x"], ["x", "w", "y", "x", "w"], {"w": X + 1}),
        {"x": X},
        [X, X + 1, -X, X, X + 1],
    ),
    "a branch that returns a tensor twice": (
        lambda: model(
            [
                node("ReduceSum", "x", "t", keepdims=0),
                node("Greater", "t w", "c"),
                node("If", "c", "y z", then_branch=twofold("Abs"), else_branch=twofold("Neg")),
            ],
            outputs=["y", "z"],
            constants={"w": np.float32(100)},
        ),
        {"x": X},
        [-X, -X],
    ),
    "an output that is an input": (
        lambda: model([node("Neg", "x")], ["x"], ["y", "x"]),
        {"x": X},
        [-X, X],
    ),
    "an output that is a constant": (
        lambda: model([node("Neg", "x")], ["x"], ["y", "w"], {"w": X + 9}),
        {"x": X},
        [-X, X + 9],
    ),
    "outputs that nobody reads": (
        lambda: model(
            [node("Neg", "x", "t"), node("Split", "x", "a b", axis=0), node("Abs", "x")], opset=13
        ),
        {"x": X},
        [np.abs(X)],
    ),
    "no outputs": (lambda: model([node("Neg", "x")], outputs=[]), {"x": X}, []),
    "no nodes": (lambda: model([], ["x"], ["x"]), {"x": X}, [X]),
    "nothing but a constant": (lambda: model([], [], ["w"], {"w": X}), {}, [X]),
    "a constant that is an input": (
        lambda: model([node("Add", "x w")], ["x", "w"], constants={"w": X}),
        {"x": X},
        [X + X],
    ),
    "nodes in disorder": (
        lambda: model([node("Relu", "t"), node("Neg", "x", "t")]),
        {"x": X},
        [np.maximum(-X, 0)],
    ),
    "an input without elements": (
        lambda: model([node("Neg", "x")], [info("x", (0, 3))]),
        {"x": X[:0]},
        [X[:0]],
    ),
    "an optional input left out": (
        lambda: model(
            [helper.make_node("Clip", ["x", "", "h"], ["y"])], constants={"h": np.float32(1)}
        ),
        {"x": X},
        [np.minimum(X, 1)],
    ),
    **{
        f"{op} of 2000": (
            lambda op=op, attributes=attributes: many(op, 2000, **attributes),
            {f"x{number}": X + number for number in range(2000)},
            [want],
        )
        for op, attributes, want in (
            ("Concat", {"axis": 0}, np.concatenate([X + number for number in range(2000)])),
            ("Max", {}, X + 1999),
            ("Min", {}, X),
            ("Sum", {}, 2000 * X + 1999 * 1000),
        )
    },
    "Split into 2000": (
        lambda: model(
            [
                helper.make_node(
                    "Split", ["x"], [f"y{n}" for n in range(2000)], axis=0, num_outputs=2000
                )
            ],
            [info("x", (2000, 2))],
            [f"y{n}" for n in range(2000)],
        ),
        {"x": np.arange(4000, dtype=np.float32).reshape(2000, 2)},
        [np.float32([[2 * n, 2 * n + 1]]) for n in range(2000)],
    ),
    "Einsum of 200 alike": (
        lambda: model([node("Einsum", "x " * 200, equation=",".join(["ab"] * 200) + "->ab")]),
        {"x": np.float32([[1, -1, 0], [1, 1.01, 0.99]])},
        [np.float64([[1, -1, 0], [1, 1.01, 0.99]]) ** 200],
    ),
    "Einsum of a chain of 20": (
        lambda: model([node("Einsum", "x " * 20, equation=CHAIN)], [info("x", (2, 2))]),
        {"x": ONES},
        [ONES * 2**19],
    ),
    "Einsum of all pairs of ten": (
        lambda: model([node("Einsum", "x " * 45, equation=PAIRS + "->")], [info("x", (2, 2))]),
        {"x": ONES},
        [np.float32(2**10)],
    ),
    "a sparse initializer": (
        sparse_initializer,
        {"x": X},
        [X + np.float32([[0, 5, 0], [0, 0, 7]])],
    ),
    "a sparse constant": (
        lambda: model(
            [helper.make_node("Constant", [], ["w"], sparse_value=sparse()), node("Add", "x w")]
        ),
        {"x": X},
        [X + np.float32([[0, 5, 0], [0, 0, 7]])],
    ),
    "20 Ifs in each other": (lambda: nested_ifs(20, True), {"x": X}, [np.maximum(X, 0)]),
    "20 Ifs in each other, by an input": (
        lambda: nested_ifs(20, False),
        {"x": X, "c": np.array(True)},
        [np.maximum(X, 0)],
    ),
    "a function in the body of a Loop": (
        lambda: looped([function("f", helper.make_node("Neg", ["a"], ["b"]))]),
        {"x": X},
        [X],
    ),
    "a function in a function": (
        lambda: called([call("g")], function("g", helper.make_node("Neg", ["a"], ["b"]))),
        {"x": X},
        [-X],
    ),
}

# name: (model, feeds, the class of the error, what it says, what it says of the place)
REFUSED = {
    "long names in messages": (
        lambda: model([helper.make_node("MatMul", [LONG, LONG], ["y"], name=LONG)], [LONG]),
        {LONG: X},
        "ShapeError",
        "inner sizes",
        "op MatMul",
    ),
    "a long feed": (
        lambda: model([node("Neg", "x")]),
        {"x": X, LONG: X},
        "InvalidInputError",
        "",
        "",
    ),
    "a long node without operator": (
        lambda: model([helper.make_node("Nope", ["x"], ["y"], name=LONG)]),
        {"x": X},
        "UnsupportedOpError",
        "Nope",
        "op Nope",
    ),
    "an input without a name": (
        lambda: model([helper.make_node("Neg", [""], ["y"])], [""]),
        {"": X},
        "ModelError",
        "no name",
        "",
    ),
    "an output without a name": (
        lambda: model([node("Neg", "x")], ["x"], [""]),
        {"x": X},
        "ModelError",
        "no name",
        "",
    ),
    "a node whose output has no name": (
        lambda: model([helper.make_node("Neg", ["x"], [""], name="here"), node("Abs", "x")]),
        {"x": X},
        "ModelError",
        "none of its outputs has a name",
        "here",
    ),
    "the same input twice": (
        lambda: model([node("Neg", "x")], ["x", "x"]),
        {"x": X},
        "ModelError",
        "occurs twice",
        "",
    ),
    "the same constant twice": (
        lambda: twice(model([node("Add", "x w")], constants={"w": X})),
        {"x": X},
        "ModelError",
        "occurs twice",
        "",
    ),
    "a tensor written twice": (
        lambda: model([node("Neg", "x"), node("Abs", "x")]),
        {"x": X},
        "ModelError",
        "produced twice",
        "here",
    ),
    "a node that writes its input": (
        lambda: model([node("Neg", "x", "x")], ["x"], ["x"]),
        {"x": X},
        "ModelError",
        "produced twice",
        "here",
    ),
    "an output that nothing makes": (
        lambda: model([], ["x"], ["y"]),
        {"x": X},
        "ModelError",
        "not produced",
        "",
    ),
    "a cycle": (
        lambda: model([node("Add", "x b", "a"), node("Neg", "a", "b")], ["x"], ["b"]),
        {"x": X},
        "ModelError",
        "cycle",
        "here",
    ),
    "Add of bool": (
        lambda: model([node("Add", "x x")], [info("x", (2,), TensorProto.BOOL)]),
        {"x": np.array([True, False])},
        "ModelError",
        "does not accept bool",
        "here",
    ),
    "Not of floats": (
        lambda: model([node("Not", "x")]),
        {"x": X},
        "ModelError",
        "does not accept float32",
        "here",
    ),
    "Gather by floats": (
        lambda: model([node("Gather", "x i")], constants={"i": np.float32([0])}),
        {"x": X},
        "ModelError",
        "does not accept float32 as its input 'indices'",
        "here",
    ),
    "a missing feed": (lambda: model([node("Neg", "x")]), {}, "InvalidInputError", "missing", ""),
    "one feed more": (
        lambda: model([node("Neg", "x")]),
        {"x": X, "z": X},
        "InvalidInputError",
        "no input 'z'",
        "",
    ),
    "a required input left out": (
        lambda: model([helper.make_node("Add", ["", "x"], ["y"], name="here")]),
        {"x": X},
        "ModelError",
        "required input 'A' is missing",
        "here",
    ),
    "no opset": (lambda: opsets(), {"x": X}, "ModelFileError", "no opset", ""),
    "an opset of the future": (lambda: opsets(99), {"x": X}, "ConversionError", "opset 99", ""),
    "two opsets": (lambda: opsets(18, 7), {"x": X}, "ModelError", "2 versions", ""),
    "a negative opset": (lambda: opsets(-1), {"x": X}, "ModelError", "version -1", ""),
    "too few bytes": (
        lambda: damaged(lambda t: setattr(t, "raw_data", t.raw_data[:-1])),
        {"x": X},
        "ModelError",
        "23 bytes",
        "'w'",
    ),
    "another type than the bytes have": (
        lambda: damaged(lambda t: setattr(t, "data_type", TensorProto.DOUBLE)),
        {"x": X},
        "ModelError",
        "asks for 48",
        "'w'",
    ),
    "values in another field": (
        lambda: damaged(lambda t: (t.ClearField("raw_data"), t.int32_data.extend(range(6)))),
        {"x": X},
        "ModelError",
        "0 values",
        "'w'",
    ),
    "a function that calls itself": (
        lambda: called([call("f")]),
        {"x": X},
        "ModelError",
        "calls itself",
        "here",
    ),
    "functions that call each other": (
        lambda: called([call("g")], function("g", call("f"))),
        {"x": X},
        "ModelError",
        "calls itself",
        "here",
    ),
    "3000 functions in each other": (
        lambda: called(
            [call("f0")],
            *(function(f"f{n}", call(f"f{n + 1}")) for n in range(3000)),
        ),
        {"x": X},
        "ModelError",
        "nests too deeply",
        "here",
    ),
    "2^60 calls in the body of a Loop": (
        lambda: looped(doubling(60)),
        {"x": X},
        "BudgetError",
        "more than",
        "",
    ),
    "a function that calls itself in the body of a Loop": (
        lambda: looped([function("f", call("f"))]),
        {"x": X},
        "ModelError",
        "calls itself",
        "op f",
    ),
    "Einsum beyond all memory": (
        lambda: model(
            [node("Einsum", "x x x x x x", equation="a,b,c,d,e,f->abcdef")], [info("x", (64,))]
        ),
        {"x": np.ones(64, np.float32)},
        "BudgetError",
        "GiB",
        "here",
    ),
}


@pytest.fixture(params=["cpu", "0"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param != "cpu" and not vkmnn.devices():
        pytest.skip("there is no Vulkan device")
    return str(request.param)


def run(made: Model | str, feeds: dict[str, np.ndarray], device: str) -> list[np.ndarray]:
    data = made if isinstance(made, str) else made.SerializeToString()
    with InferenceSession(data, device) as session:
        return session.run(None, feeds)


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str, device: str) -> None:
    make, feeds, wanted = RIGHT[name]
    results = run(make(), feeds, device)
    assert len(results) == len(wanted)
    for result, want in zip(results, wanted, strict=True):
        assert result.shape == np.shape(want)
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, device: str) -> None:
    make, feeds, kind, text, place = REFUSED[name]
    with pytest.raises(VkmnnError) as caught:
        run(make(), feeds, device)
    said = str(caught.value)
    assert type(caught.value).__name__ == kind, said
    assert text in said
    assert place in said
    assert caught.value.hint
    assert not caught.value.unexpected
    assert len(said) < 15_000


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["modèle \N{SNOWMAN} 模型.onnx", "a" * 240 + ".onnx", "two\nlines.onnx"]
)
def test_file_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    try:
        path.write_bytes(model([node("Neg", "x")]).SerializeToString())
    except OSError:
        pytest.skip("the file system has no such names")
    np.testing.assert_array_equal(run(str(path), {"x": X}, "cpu")[0], -X)


@pytest.mark.parametrize("path", ["a" * 300 + ".onnx", "/".join(["a" * 200] * 40), "a\0b", "", "."])
def test_paths_of_no_file(path: str) -> None:
    with pytest.raises(VkmnnError) as caught:
        run(path, {"x": X}, "cpu")
    assert type(caught.value).__name__ == "ModelFileError"
    assert caught.value.hint


def outside(location: str) -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=1)
    tensor.external_data.add(key="location", value=location)
    made = model([node("Add", "x w")])
    made.graph.initializer.append(tensor)
    return bytes(made.SerializeToString())


def test_data_beside_a_model_in_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    folder = tmp_path / "Gewichte \N{SNOWMAN}"
    folder.mkdir()
    (folder / "w\N{SNOWMAN}.bin").write_bytes(X.tobytes())
    (folder / "m.onnx").write_bytes(outside("w\N{SNOWMAN}.bin"))
    np.testing.assert_array_equal(run(str(folder / "m.onnx"), {"x": X}, "cpu")[0], X + X)


@pytest.mark.parametrize("location", ["../w", "a" * 300, "a\0b", "/etc/passwd", "nothing", ""])
def test_data_that_is_not_there(location: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(outside(location))
    with pytest.raises(VkmnnError, match="'w'") as caught:
        run(str(tmp_path / "m.onnx"), {"x": X}, "cpu")
    assert caught.value.hint


@pytest.mark.skipif(os.name == "nt", reason="there are no folders of such long paths")
def test_data_in_a_folder_whose_path_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is read by its name, but no system call takes the whole path."""
    monkeypatch.chdir(tmp_path)
    for _ in range(25):
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    Path("w.bin").write_bytes(X.tobytes())
    Path("m.onnx").write_bytes(outside("w.bin"))
    with pytest.raises(VkmnnError, match="cannot be read") as caught:
        run("m.onnx", {"x": X}, "cpu")
    assert caught.value.hint


def test_outputs_that_become_constants_have_a_shape() -> None:
    """Their declared rank is unknown, and no op computes them in the end."""
    constants = {"c": X, "rows": np.array([1])}
    session = InferenceSession(
        model([node("Gather", "c rows"), node("Relu", "x", "z")], outputs=("y", "z"),
              constants=constants), "cpu")  # fmt: skip
    assert [one.shape for one in session.get_outputs()] == [[1, 3], [2, 3]]
