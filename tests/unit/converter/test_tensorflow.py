"""Frozen graphs of TensorFlow: which parts of a file count, and refusals."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.caffe_models import field
from tests.model.test_tensorflow_files import FOLDER, GRAPHS
from tests.model.test_tensorflow_saved_models import MODELS as SAVED_MODELS
from tests.model.test_tensorflow_saved_models import unpacked
from tests.unit.converter.test_caffe import mutated
from vkmnn.converter.front_end import find_front_end
from vkmnn.converter.tensorflow import read_operators
from vkmnn.converter.tensorflow.checksum import masked_crc
from vkmnn.converter.tensorflow.files import TYPES, array_of, read_graph
from vkmnn.converter.tensorflow.schema import message_class
from vkmnn.errors import BudgetError, ModelError, ModelFileError, UnsupportedOpError, VkmnnError
from vkmnn.opening import load_network

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
FLOATS = field(6, 1)


def node(name: str, op: str, *inputs: str, **attributes: bytes) -> bytes:
    """Return a field of a graph: a node."""
    parts = [field(1, name), field(2, op), *(field(3, one) for one in inputs)]
    parts += [field(5, field(1, key) + field(2, value)) for key, value in attributes.items()]
    return field(1, b"".join(parts))


def shaped(*sizes: int) -> bytes:
    return b"".join(field(2, field(1, size)) for size in sizes)


def constant(name: str, array: Any, kind: int = 1) -> bytes:
    array = np.asarray(array, np.float32 if kind == 1 else np.int32)
    tensor = field(1, kind) + field(2, shaped(*array.shape)) + field(4, array.tobytes())
    return node(name, "Const", dtype=field(6, kind), value=field(8, tensor))


INPUT = node("x", "Placeholder", dtype=FLOATS, shape=field(7, shaped(2, 3)))


def saved(folder: Path, *nodes: bytes) -> Path:
    path = folder / "graph.pb"
    path.write_bytes(b"".join(nodes))
    return path


def run(path: Path) -> dict[str, np.ndarray]:
    with vkmnn.InferenceSession(path, "cpu") as session:
        names = [arg.name for arg in session.get_outputs()]
        feeds = {arg.name: X for arg in session.get_inputs()}
        return dict(zip(names, session.run(None, feeds), strict=True))


def test_nodes_in_any_order(tmp_path: Path) -> None:
    """Outputs are what no node reads; control inputs do not count, nor do nodes behind them."""
    nodes = [
        node("y", "Mul", "r:0", "two", "^check"),
        constant("two", 2),
        node("check", "Assert", "x"),
        node("r", "Relu", "x"),
        INPUT,
        constant("alone", 7),
        node("end", "NoOp", "^y"),
    ]
    found = run(saved(tmp_path, *nodes))
    assert set(found) == {"y"}
    np.testing.assert_array_equal(found["y"], 2 * np.maximum(X, 0))


def test_outputs_by_number(tmp_path: Path) -> None:
    axis = constant("axis", 1, 3)
    parts = node("parts", "Split", "axis", "x", num_split=field(3, 3))
    found = run(saved(tmp_path, INPUT, axis, parts))
    assert list(found) == ["parts", "parts:1", "parts:2"]
    np.testing.assert_array_equal(found["parts:2"], X[:, 2:])
    found = run(saved(tmp_path, INPUT, axis, parts, node("y", "Neg", "parts:1")))
    np.testing.assert_array_equal(found["y"], -X[:, 1:2])


def test_constants() -> None:
    """As bytes, or as values of which the last is repeated."""
    file = read_graph((FOLDER / "cnn.pb").open("rb"), (FOLDER / "cnn.pb").stat().st_size, "", "")
    for kind, values, right in (
        (1, {"float_val": [1.5, 2]}, [1.5, 2, 2, 2]),
        (19, {"half_val": [0x3C00]}, [1, 1, 1, 1]),
        (10, {"bool_val": [True, False]}, [True, False, False, False]),
        (9, {"int64_val": [-(2**40)]}, [-(2**40)] * 4),
        (3, {}, [0, 0, 0, 0]),
    ):
        tensor = message_class("TensorProto")(dtype=kind, **values)
        for size in (2, 2):
            tensor.tensor_shape.dim.add(size=size)
        found = array_of(file, tensor, "node")
        np.testing.assert_array_equal(found, np.reshape(right, (2, 2)))
        assert found.dtype == np.dtype(found.dtype.name)
    assert len(TYPES) == 12


def test_what_is_recognised(tmp_path: Path) -> None:
    graph = saved(tmp_path, INPUT, node("y", "Neg", "x"))
    assert type(find_front_end(graph)).__name__ == "TensorflowFrontEnd"
    (tmp_path / "onnx.pb").write_bytes(b"\x08\x07" + bytes(9))
    assert type(find_front_end(tmp_path / "onnx.pb")).__name__ == "OnnxFrontEnd"
    with pytest.raises(ModelFileError, match="does not exist"):
        load_network(tmp_path / "none.pb")
    (tmp_path / "saved_model.pb").write_bytes(graph.read_bytes())
    with pytest.raises(ModelFileError, match="not the graph of a SavedModel"):
        load_network(tmp_path / "saved_model.pb")


def test_operators_that_are_not_read_are_named(tmp_path: Path) -> None:
    """All of them, and not those behind them."""
    enter = node("s", "Enter", "x", frame_name=field(2, "loop"))
    nodes = [
        INPUT,
        node("v", "VarHandleOp"),
        node("w", "ReadVariableOp", "v"),
        node("t", "Mystery", "b"),
        node("a", "Mystery", "x"),
        node("b", "Relu", "a"),
        node("y", "MatMul", "b", "w"),
    ]
    with pytest.raises(UnsupportedOpError) as caught:
        load_network(saved(tmp_path, *nodes))
    listed = {(one.op, one.node): one.reason for one in caught.value.nodes}
    assert {op for op, _ in listed} == {"VarHandleOp", "Mystery"}
    assert {node for _, node in listed} == {"v", "a", "t"}
    assert "not frozen" in listed["VarHandleOp", "v"]
    with pytest.raises(UnsupportedOpError, match="a loop without a condition"):
        load_network(saved(tmp_path, INPUT, enter, node("y", "Neg", "s")))


DAMAGED = {
    "a node that does not exist": ([node("y", "Neg", "z")], "reads 'z', which does not exist"),
    "a circle": ([node("a", "Neg", "b"), node("b", "Add", "a", "a"), node("y", "Neg", "b")],
                 "reads what follows from itself"),
    "nothing but a circle": ([node("a", "Neg", "b"), node("b", "Neg", "a")], "no outputs"),
    "two of a name": ([node("y", "Neg", "x"), node("y", "Abs", "x")], "two nodes"),
    "no value": ([node("c", "Const"), node("y", "Neg", "c")], "no value"),
    "bytes": (
        [node("c", "Const", value=field(8, field(1, 1) + field(2, shaped(3)) + field(4, b"1234"))),
         node("y", "Neg", "c")], "has 4 bytes",
    ),
    "texts": (
        [node("c", "Const", value=field(8, field(1, 7))), node("y", "Neg", "c")], "elements of",
    ),
    "no inputs": ([node("y", "MatMul", "x")], "it has 1 input"),
    "an axis": ([constant("c", [7], 3), node("y", "Sum", "x", "c")], "axis 7 of a tensor of 2"),
    "outputs": (
        [node("y", "Neg", "x"), node("z", "Neg", "y:99999999")], "it has 100,000,000 outputs",
    ),
    "a billion elements": (
        [node("c", "Const", value=field(8, field(1, 1) + field(2, shaped(2**31, 2**31)))),
         node("y", "Neg", "c")], "a constant of shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_what_contradicts_itself(name: str, tmp_path: Path) -> None:
    nodes, words = DAMAGED[name]
    with pytest.raises(ModelError) as caught:
        load_network(saved(tmp_path, INPUT, *nodes))
    assert words in str(caught.value)
    assert not caught.value.unexpected


@pytest.mark.parametrize(
    "content", [b"", b"\x0a", b"\x0a\x03abc", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\0"]
)
def test_files_that_are_no_graph(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not a frozen graph") as caught:
        load_network(saved(tmp_path, content))
    assert caught.value.hint


def test_names_that_are_not_text(tmp_path: Path) -> None:
    whole = node("y", "Neg", "x")
    for damaged in (whole.replace(b"Neg", b"\xffeg"), whole.replace(b"y", b"\xff")):
        with pytest.raises(ModelFileError, match="not text"):
            load_network(saved(tmp_path, INPUT, damaged))


def test_graphs_have_a_budget(tmp_path: Path) -> None:
    nodes = [node(f"n{i + 1}", "Neg", f"n{i}" if i else "x") for i in range(30)]
    with pytest.raises(BudgetError):
        vkmnn.InferenceSession(saved(tmp_path, INPUT, *nodes), "cpu", budget=vkmnn.Budget(nodes=20))


def test_long_chains_do_not_overflow_the_stack(tmp_path: Path) -> None:
    nodes = [node(f"n{i + 1}", "Identity", f"n{i}" if i else "x") for i in range(3000)]
    np.testing.assert_array_equal(run(saved(tmp_path, INPUT, *nodes))["n3000"], X)


# --- functions and control flow ------------------------------------------------------------------


def function(name: str, arguments: list[str], results: dict[str, str], *nodes: bytes) -> bytes:
    """Return a field of a library: a function of floats."""
    about = [field(1, name), *(field(2, field(1, one) + field(3, 1)) for one in arguments)]
    about += [field(3, field(1, one) + field(3, 1)) for one in results]
    parts = [field(1, b"".join(about)), *(field(3, one[2:]) for one in nodes)]
    parts += [field(4, field(1, key) + field(2, value)) for key, value in results.items()]
    return field(1, b"".join(parts))


def library(*functions: bytes) -> bytes:
    return field(2, b"".join(functions))


def called(name: str) -> bytes:
    return field(10, field(1, name))


def body(name: str, op: str = "Neg") -> bytes:
    return function(name, ["a"], {"r": "n:y:0"}, node("n", op, "a"))


def test_functions_are_inlined(tmp_path: Path) -> None:
    """Also those that are operators by their name, and one in the other, twice."""
    twice = function(
        "twice", ["a"], {"r": "q:r:0"}, node("p", "minus", "a"),
        node("q", "PartitionedCall", "p:r:0", f=called("minus")),
    )  # fmt: skip
    nodes = [
        INPUT,
        node("y", "StatefulPartitionedCall", "x", f=called("twice")),
        node("z", "PartitionedCall", "y", f=called("minus")),
    ]
    path = saved(tmp_path, *nodes, library(twice, body("minus")))
    np.testing.assert_array_equal(run(path)["z"], -X)


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ([function("f", ["a"], {"r": "c:o:0"}, node("c", "g", "a")),
          function("g", ["a"], {"r": "c:o:0"}, node("c", "f", "a"))], "calls itself"),
        ([], "runs the function 'f', which does not exist"),
        ([function("f", ["a", "b"], {"r": "n:y:0"}, node("n", "Neg", "a"))],
         "takes 2 inputs, not 1"),
        ([function("f", ["a"], {"r": "m:y:0"}, node("n", "Neg", "a"))],
         "reads 'm:y:0', which does not exist"),
        ([function("f", ["a"], {"r": "a:0"}, node("a", "Neg", "a"))], "one name"),
        ([function(f"{'f' * n}", ["a"], {"r": "c:o:0"}, node("c", "f" * (n + 1), "a"))
          for n in range(1, 90)], "more than 64 functions"),
    ],
)  # fmt: skip
def test_functions_that_contradict_themselves(
    functions: list[bytes], words: str, tmp_path: Path
) -> None:
    nodes = [INPUT, node("y", "PartitionedCall", "x", f=called("f"))]
    with pytest.raises(ModelError, match=words) as caught:
        load_network(saved(tmp_path, *nodes, library(*functions)))
    assert not caught.value.unexpected


def test_functions_that_multiply_have_a_budget(tmp_path: Path) -> None:
    functions = [
        function(
            f"f{n}", ["a"], {"r": "q:r:0"}, node("p", f"f{n + 1}", "a"),
            node("q", f"f{n + 1}", "p:r:0"),
        )
        for n in range(40)
    ]  # fmt: skip
    nodes = [INPUT, node("y", "f0", "x")]
    path = saved(tmp_path, *nodes, library(*functions, body("f40")))
    with pytest.raises(BudgetError):
        load_network(path, vkmnn.Budget(nodes=500))


def test_branches_whose_condition_is_known_are_inlined(tmp_path: Path) -> None:
    """The other branch may hold what is not read."""
    sides = {"then_branch": called("minus"), "else_branch": called("odd")}
    nodes = [INPUT, constant("yes", 1), node("y", "If", "yes", "x", **sides)]
    path = saved(tmp_path, *nodes, library(body("minus"), body("odd", "Mystery")))
    np.testing.assert_array_equal(run(path)["y"], -X)


def test_a_merge_of_unrelated_branches_is_refused(tmp_path: Path) -> None:
    nodes = [INPUT, node("a", "Neg", "x"), node("b", "Abs", "x"), node("y", "Merge", "a", "b")]
    with pytest.raises(UnsupportedOpError, match="branches of several conditions, or of none"):
        load_network(saved(tmp_path, *nodes))


def test_operators_that_are_never_read_say_why(tmp_path: Path) -> None:
    least = constant("some", [0.5])
    boxes = node("s", "NonMaxSuppressionV5", "x", "some", "some", "some", "some", "some")
    for made, reason in (
        (node("y", "StringLower", "x"), "texts"),
        (node("y", "LookupTableFindV2", "x"), "a table"),
        (node("y", "ParseExampleV2", "x"), "serialised form"),
        (node("y", "StatelessRandomUniformV2", "x"), "a generator"),
        (node("y", "PyFunc", "x"), "not in the file"),
        (boxes, "soft NMS"),
    ):
        with pytest.raises(UnsupportedOpError) as caught:
            load_network(saved(tmp_path, INPUT, least, made))
        assert reason in caught.value.nodes[0].reason


# --- damaged files -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAVED_MODELS)
def test_damaged_saved_models(name: str, tmp_path: Path) -> None:
    """Graphs, indexes with right checksums, and data: read, or refused by a typed error."""
    rng, refusals = random.Random(name), []
    folder = unpacked(name, tmp_path)
    files = [path for path in folder.rglob("*") if path.is_file()]
    contents = {path: path.read_bytes() for path in files}
    for turn in range(8):
        path = files[turn % len(files)]
        changed = mutated(contents[path], rng)
        path.write_bytes(with_checksums(changed) if path.suffix == ".index" else changed)
        try:
            load_network(folder, vkmnn.Budget(bytes=1 << 26, seconds=5))
        except VkmnnError as error:
            refusals.append(error)
        path.write_bytes(contents[path])
    assert len(refusals) > 2
    assert not [error for error in refusals if error.unexpected]


def with_checksums(index: bytes) -> bytes:
    """Return an index whose first block, which ends before the second restart, is right again."""
    content = bytearray(index)
    end = index.find(b"\0\0\0\0\1\0\0\0\0")
    if end >= 0:
        content[end + 9 : end + 13] = masked_crc(index[: end + 9]).to_bytes(4, "little")
    return bytes(content)


def test_checksums() -> None:
    """Of a known text, and of lengths around the pieces that are summed side by side."""
    plain = 0xE3069283
    assert masked_crc(b"123456789") == ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF
    rng = np.random.default_rng(0)
    for size in (0, 1, 4095, 4096, 4097, 50_000):
        data = rng.integers(0, 256, size, np.uint8)
        apart = [data[at : at + 100] for at in range(0, size, 100)]
        assert masked_crc(data) == masked_crc(*apart)


@pytest.mark.parametrize("name", GRAPHS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    """They are read, or refused by a typed error."""
    rng, data = random.Random(name), (FOLDER / f"{name}.pb").read_bytes()
    path, refusals = tmp_path / "graph.pb", 0
    for _ in range(40):
        path.write_bytes(mutated(data, rng))
        try:
            load_network(path, vkmnn.Budget(bytes=1 << 26, seconds=5))
        except VkmnnError:
            refusals += 1
    assert refusals > 5


def test_operators_are_listed() -> None:
    read = read_operators()
    assert sum(read.values()) > 250
    assert read["While"]
    assert not read["RefSwitch"]
