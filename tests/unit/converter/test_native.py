"""vkmnn's own model file: written data is read back, and damaged files are refused."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import random
import shutil
import struct
import subprocess
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Union

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from vkmnn.base.registry import Snapshot
from vkmnn.converter.native.front_end import IDENTIFIER
from vkmnn.converter.native.write import WriteOptions, write_model
from vkmnn.errors import ConversionError, InvalidInputError, ModelError, UnsupportedOpError
from vkmnn.ir import (
    OP_TYPES,
    PACKING,
    DType,
    Graph,
    GraphState,
    Op,
    OpAttrs,
    PackedForm,
    TensorInfo,
)
from vkmnn.ir.dtype import has_narrow_types
from vkmnn.ir.op_type import op_type
from vkmnn.ir.ops import ReshapeAttrs, UnaryAttrs
from vkmnn.opening import load_network
from vkmnn.schema import load_schema, write

OPTIONS = WriteOptions(engine="test")


def same(graph: Graph, other: Graph) -> None:
    """Assert that two graphs are equal, element types of Python numbers and of arrays included."""
    for name in ("name", "inputs", "outputs", "infos", "metadata", "types"):
        assert getattr(graph, name) == getattr(other, name), name
    assert [repr(op) for op in graph.ops] == [repr(op) for op in other.ops]
    assert graph.ops == other.ops or "nan" in repr(graph.ops)
    assert graph.constants.keys() == other.constants.keys()
    for name, array in graph.constants.items():
        found = other.constants[name]
        assert (array.dtype, array.shape) == (found.dtype, found.shape), name
        assert array.tobytes() == found.tobytes(), name


@contextmanager
def registrations_taken_back() -> Iterator[None]:
    before = Snapshot()
    try:
        yield
    finally:
        before.restore()


def stored(graph: Graph, path: Path, options: WriteOptions = OPTIONS) -> Graph:
    write_model(graph, path, options)
    return load_network(str(path)).source


# --- every op of the vocabulary -------------------------------------------------------------------


def value_of(hint: Any, rng: random.Random) -> Any:
    """Return some value of a declared type; an unknown type fails the test."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return value_of(rng.choice(inner), rng)
    if origin is Literal:
        return rng.choice(inner)
    if origin is tuple:
        many = len(inner) == 2 and inner[1] is Ellipsis
        hints = [inner[0]] * rng.randrange(4) if many else inner
        return tuple(value_of(one, rng) for one in hints)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{f.name: value_of(hints[f.name], rng) for f in dataclasses.fields(hint)})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return rng.choice(list(hint))
    plain = {
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.choice((0, 1, -1, 7, 2**63 - 1, -(2**63))),
        float: lambda: rng.choice((0.0, -0.0, 1e-40, 0.1, 1e300, float("inf"), -1.5)),
        str: lambda: rng.choice(("", "x", "größer als", "a" * 300)),
        bytes: lambda: rng.randbytes(rng.randrange(9)),
        type(None): lambda: None,
    }
    return plain[hint]()


@pytest.mark.parametrize("name", sorted(OP_TYPES))
def test_every_op_comes_back(name: str, tmp_path: Path) -> None:
    """Attributes of any value, by their declaration: an op that cannot be stored fails here."""
    declared = OP_TYPES[name]
    if name == "HostGraph":
        pytest.skip("its model has to be one: tests of whole models have it")
    rng = random.Random(name)
    inputs = [f"x{n}" for n in range(min(max(declared.min_inputs, 1), declared.max_inputs))]
    for _ in range(8):
        attrs = value_of(declared.attrs, rng)
        graph = Graph(
            "one",
            [TensorInfo(x, DType.FLOAT32, ("N", None, 3)) for x in inputs],
            [TensorInfo("y", DType.FLOAT32, None)],
            [Op(name, "op", inputs, ["y"], attrs, "node (Op)")],
        )
        same(graph, stored(graph, tmp_path / "one.vkmnn"))


def test_numbers_keep_their_type(tmp_path: Path) -> None:
    """1, 1.0 and True are equal, but attributes that hold them are not the same."""
    ops = [
        Op("ConstantOfShape", f"op{n}", ["n"], [f"y{n}"],
           OP_TYPES["ConstantOfShape"].attrs(value))  # type: ignore[call-arg]
        for n, value in enumerate((1, 1.0, True))
    ]  # fmt: skip
    graph = Graph(
        "three",
        [TensorInfo("n", DType.INT64, (1,))],
        [TensorInfo(f"y{n}", DType.FLOAT32, None) for n in range(3)],
        ops,
    )
    same(graph, stored(graph, tmp_path / "three.vkmnn"))


# --- constants ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [one for one in DType if one is not DType.OBJECT])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 7)])
@pytest.mark.parametrize("external", [False, True])
def test_constants_come_back(
    dtype: DType, shape: tuple[int, ...], external: bool, tmp_path: Path
) -> None:
    if dtype.is_narrow and not has_narrow_types():
        pytest.skip("ml_dtypes is not installed")
    random_numbers = np.random.default_rng(1)
    low, high = (0, 2) if dtype in (DType.BOOL, DType.UINT2, DType.INT2) else (0, 8)
    array = np.asarray(random_numbers.integers(low, high, shape)).astype(dtype.numpy)
    graph = Graph("c", [], [TensorInfo("c", dtype, shape)], [], {"c": array, "d": array.copy()})
    same(graph, stored(graph, tmp_path / "c.vkmnn", WriteOptions(external=external)))
    assert (tmp_path / "c.vkmnn.data").exists() == external


def test_weights_in_halves(tmp_path: Path) -> None:
    """Weights are rounded; biases, and values out of float16's range, are not."""
    weights = np.linspace(-3, 3, 1024, dtype=np.float32).reshape(32, 32)
    arrays = {"w": weights, "large": weights * 1e6, "bias": weights[0].copy()}
    graph = Graph("h", [], [TensorInfo("w", DType.FLOAT32, (32, 32))], [], dict(arrays))
    found = stored(graph, tmp_path / "h.vkmnn", WriteOptions(half=True)).constants
    arrays["w"] = weights.astype(np.float16).astype(np.float32)
    for name, array in arrays.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)


def test_weights_are_mapped(tmp_path: Path) -> None:
    """Constants are views of the file: nothing is copied, and nobody writes to it."""
    weights = np.ones((64, 64), np.float32)
    graph = Graph("m", [], [TensorInfo("w", DType.FLOAT32, (64, 64))], [], {"w": weights})
    found = stored(graph, tmp_path / "m.vkmnn").constants["w"]
    assert not found.flags.writeable
    assert not found.flags.owndata
    assert found.ctypes.data % 64 == 0


# --- whole models ---------------------------------------------------------------------------------


def test_a_model_in_a_file_is_the_optimised_one(tmp_path: Path) -> None:
    for name in ("detector", "bert"):
        network = load_network(NETWORKS[name].build())
        write_model(network.graph, tmp_path / "net.vkmnn", OPTIONS)
        again = load_network(str(tmp_path / "net.vkmnn"))
        same(network.graph, again.graph)
        same(network.graph, load_network((tmp_path / "net.vkmnn").read_bytes()).graph)


def test_convert_fixes_sizes(tmp_path: Path) -> None:
    model = NETWORKS["bert"].build()
    vkmnn.convert(model, tmp_path / "b.vkmnn", sizes={"N": 2, "L": 16})
    with vkmnn.InferenceSession(tmp_path / "b.vkmnn", "cpu") as session:
        assert [arg.shape for arg in session.get_inputs()] == [[2, 16]] * 3
        feeds = make_feeds(model, (2, 16))
        found = session.run(None, feeds)
    with vkmnn.InferenceSession(model, "cpu") as session:
        for one, other in zip(found, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_arguments_of_convert(tmp_path: Path) -> None:
    model = NETWORKS["espcn"].build()
    for path, more in (
        ("net.onnx", {}),
        ("net.vkmnn", {"sizes": {"M": 1}}),
        ("net.vkmnn", {"sizes": {"N": -1}}),
        ("net.vkmnn", {"precision": "double"}),
        ("no/such/folder/net.vkmnn", {}),
    ):
        with pytest.raises(InvalidInputError):
            vkmnn.convert(model, tmp_path / path, **more)
    assert list(tmp_path.iterdir()) == []


def host_model() -> onnx.ModelProto:
    """Return a model with a node that runs on the host: strings."""
    nodes = [
        helper.make_node("StringConcat", ["a", "a"], ["b"]),
        helper.make_node("Loop", ["m", "", "x"], ["y"], body=_body()),
    ]
    graph = helper.make_graph(
        nodes,
        "hosted",
        [
            helper.make_tensor_value_info("a", TensorProto.STRING, ["N"]),
            helper.make_tensor_value_info("m", TensorProto.INT64, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("b", TensorProto.STRING, ["N"]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _body() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Add", ["s", "s"], ["t"]),
    ]
    return helper.make_graph(
        nodes,
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, [2]),
        ],
    )


def test_nodes_on_the_host_come_back(tmp_path: Path) -> None:
    vkmnn.convert(host_model(), tmp_path / "host.vkmnn")
    feeds = {
        "a": np.array(["x", "ü"], object),
        "m": np.array(3, np.int64),
        "x": np.array([1, 2], np.float32),
    }
    with vkmnn.InferenceSession(tmp_path / "host.vkmnn", "cpu") as session:
        assert session.get_inputs()[0].type == "tensor(string)"
        text, number = session.run(None, feeds)
    assert text.tolist() == ["xx", "üü"]
    np.testing.assert_array_equal(number, [8, 16])
    with pytest.raises(UnsupportedOpError, match="StringConcat"):
        load_network(str(tmp_path / "host.vkmnn"), unsupported="raise")


def test_ops_of_plugins_name_their_plugin(tmp_path: Path) -> None:
    path = tmp_path / "plug.vkmnn"
    with registrations_taken_back():
        attrs = op_type("Borrowed")(OpAttrs)
        info = TensorInfo("y", DType.FLOAT32, None)
        ops = [Op("Borrowed", f"op{n}", ["x"], [f"y{n}"], attrs()) for n in range(2)]
        graph = Graph("p", [TensorInfo("x", DType.FLOAT32, (2,))], [], ops)
        graph.outputs += [dataclasses.replace(info, name=f"y{n}") for n in range(2)]
        write_model(graph, path, OPTIONS)
    with pytest.raises(UnsupportedOpError) as caught:
        load_network(str(path))
    assert [node.node for node in caught.value.nodes] == ["op0", "op1"]


@dataclasses.dataclass(frozen=True)
class Unstorable(OpAttrs):
    what: Any = frozenset({1})


def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    x = TensorInfo("x", DType.FLOAT32, (2,))
    with registrations_taken_back():
        op_type("Odd")(Unstorable)
        graph = Graph("o", [x], [x], [Op("Odd", "odd one", ["x"], ["y"], Unstorable())])
        with pytest.raises(ConversionError, match="odd one"):
            write_model(graph, tmp_path / "o.vkmnn", OPTIONS)
    texts = Graph("t", [x], [x], [], {"words": np.array(["a"], object)})
    with pytest.raises(ConversionError, match="words"):
        write_model(texts, tmp_path / "o.vkmnn", OPTIONS)
    assert list(tmp_path.iterdir()) == []


# --- damaged files --------------------------------------------------------------------------------


def fields(**changes: Any) -> dict[str, Any]:
    """Return the fields of a small file: y = relu(x) with a constant that nothing reads."""
    relu = {
        "kind": 9,
        "text": "UnaryAttrs",
        "names": ["kind"],
        "items": [{"kind": 4, "text": "RELU"}],
    }
    graph = {
        "names": ["x", "y", "c"],
        "symbols": ["N"],
        "types": [{"name": "UnaryOp"}],
        "attributes": [relu],
        "inputs": [{"name": 0, "dtype": "FLOAT32", "ranked": True, "dims": [-2, 3]}],
        "outputs": [{"name": 1, "dtype": "FLOAT32"}],
        "ops": [{"type": 0, "name": "op", "inputs": [0], "outputs": [1], "attributes": 0}],
        "constants": [{"name": 2, "dtype": "FLOAT32", "dims": [4], "at": 0, "size": 16}],
    }  # fmt: skip
    model = {"format": 1, "graph": graph, "data_size": 16}
    for path, value in changes.items():
        *parts, last = path.split("__")
        where: Any = model
        for part in parts:
            where = where[int(part)] if isinstance(where, list) else where[part]
        where[int(last) if isinstance(where, list) else last] = value
    return model


def file(model: dict[str, Any]) -> bytes:
    schema = load_schema("vkmnn")
    size = len(write(schema, {"data": 64} | model))
    return write(schema, {"data": size} | model) + np.ones(4, np.float32).tobytes()


def test_a_file_by_hand() -> None:
    graph = load_network(file(fields())).source
    assert graph.ops == [Op("UnaryOp", "op", ["x"], ["y"], UnaryAttrs("RELU"))]
    assert graph.inputs == [TensorInfo("x", DType.FLOAT32, ("N", 3))]
    np.testing.assert_array_equal(graph.constants["c"], np.ones(4))


DAMAGES: dict[str, dict[str, Any]] = {
    "newer format": {"format": 3},
    "no graph": {"graph": None},
    "data outside": {"data": 10**6},
    "data that does not exist": {"data_size": 17},
    "data without end": {"data_size": 2**64 - 1},
    "tensors of one name": {"graph__names__1": "x"},
    "tensor without name": {"graph__names__1": ""},
    "input that does not exist": {"graph__inputs__0__name": 3},
    "symbol that does not exist": {"graph__inputs__0__dims": [-3]},
    "huge dimension": {"graph__inputs__0__dims": [2**62]},
    "too many axes": {"graph__inputs__0__dims": [1] * 99},
    "element type": {"graph__outputs__0__dtype": "float33"},
    "output of nothing": {"graph__outputs__0__name": 2, "graph__constants": []},
    "op of no type": {"graph__ops__0__type": 1},
    "op before all types": {"graph__ops__0__type": -1},
    "op without attributes": {"graph__ops__0__attributes": 1},
    "op without name": {"graph__ops__0__name": ""},
    "cycle": {"graph__ops__0__inputs": [1]},
    "tensor that does not exist": {"graph__ops__0__inputs": [3]},
    "negative tensor": {"graph__ops__0__inputs": [-2]},
    "too many inputs": {"graph__ops__0__inputs": [0, 0]},
    "produced twice": {"graph__ops__0__outputs": [0]},
    "attributes of another class": {"graph__attributes__0__text": "ReshapeAttrs"},
    "attribute that does not exist": {"graph__attributes__0__names": ["kinds"]},
    "attribute too many": {"graph__attributes__0__names": ["kind", "alpha"]},
    "attribute missing": {"graph__attributes__0__names": [], "graph__attributes__0__items": []},
    "attribute of another type": {"graph__attributes__0__items": [{"kind": 3, "real": 1.0}]},
    "attribute of no type": {"graph__attributes__0__items": [{"kind": 77}]},
    "constant outside": {"graph__constants__0__at": 4},
    "constant before all": {"graph__constants__0__at": 2**64 - 16},
    "constant of another size": {"graph__constants__0__dims": [5]},
    "constant of overflowing size": {"graph__constants__0__dims": [2**32, 2**32, 4]},
    "empty and huge": {"graph__constants__0__dims": [0, 2**60], "graph__constants__0__size": 0},
    "negative size": {"graph__constants__0__dims": [-4]},
    "objects": {"graph__constants__0__dtype": "OBJECT"},
    "widened": {"graph__constants__0__stored": "INT8"},
    "constants in one place": {
        "graph__constants": [
            {"name": 2, "dtype": "FLOAT32", "dims": [4], "at": 0, "size": 16},
            {"name": 0, "dtype": "FLOAT32", "dims": [1], "at": 8, "size": 4},
        ]
    },
    "constant and input": {"graph__constants__0__name": 0},
    "external, but bytes": {"external": "weights"},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(damage: str) -> None:
    with pytest.raises(ModelError):
        load_network(file(fields(**DAMAGES[damage])))


def packed_fields(packing: int = PACKING, **changes: Any) -> dict[str, Any]:
    """Return the fields of the same file, whose constant is two elements and has a packed form."""
    form = {"constant": 2, "form": "f", "dtype": "INT32", "dims": [2], "at": 8, "size": 8}
    packed = {"packing": packing, "device": "d", "forms": [form | changes]}
    shorter = {"graph__constants__0__dims": [2], "graph__constants__0__size": 8}
    return fields(graph__packed=[packed], **shorter)


def test_a_packed_form_by_hand() -> None:
    graph = load_network(file(packed_fields())).graph
    (form,) = graph.packed
    assert form.source is graph.constants["c"]
    assert (form.form, form.device) == ("f", "d")
    np.testing.assert_array_equal(form.packed, np.ones(2, np.float32).view(np.int32))


def test_forms_of_another_packing_are_passed_over() -> None:
    """Their names may mean something else; their places are checked all the same."""
    assert load_network(file(packed_fields(PACKING + 1))).graph.packed == []
    with pytest.raises(ModelError, match="no place of its own"):
        load_network(file(packed_fields(PACKING + 1, at=64)))


FORM_DAMAGES: dict[str, dict[str, Any]] = {
    "of nothing": {"constant": 3},
    "of an input": {"constant": 0},
    "before all tensors": {"constant": -1},
    "without a name": {"form": ""},
    "of another type": {"dtype": "INT64", "dims": [1]},
    "of no type": {"dtype": "w8"},
    "of another size": {"dims": [3]},
    "of overflowing size": {"dims": [2**32, 2**32, 2]},
    "of negative size": {"dims": [-2]},
    "too many axes": {"dims": [1] * 40 + [2]},
    "outside": {"at": 12},
    "without end": {"at": 2**64 - 8},
    "in the constants": {"at": 0},
}


@pytest.mark.parametrize("damage", FORM_DAMAGES)
def test_damaged_forms(damage: str) -> None:
    with pytest.raises(ModelError):
        load_network(file(packed_fields(**FORM_DAMAGES[damage])))


def test_a_form_that_is_there_twice() -> None:
    model = packed_fields()
    (packed,) = model["graph"]["packed"]
    packed["forms"] = [packed["forms"][0] | {"dims": [1], "size": 4, "at": at} for at in (8, 12)]
    with pytest.raises(ModelError, match="packed twice"):
        load_network(file(model))


@pytest.mark.parametrize(
    "name", ["../weights", "/etc/hostname", "a/b", "..", ".", "a\\b", "link", "missing", "\0"]
)
def test_external_data_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "weights").write_bytes(bytes(64))
    (folder / "link").symlink_to(tmp_path / "weights")
    (folder / "net.vkmnn").write_bytes(file(fields(external=name)))
    with pytest.raises(ModelError):
        load_network(str(folder / "net.vkmnn"))


@pytest.mark.parametrize("initial", [np.zeros((2, 3), np.float32), np.arange(6, dtype=np.int64)])
def test_states_come_back(initial: Any, tmp_path: Path) -> None:
    kind = DType.from_numpy(initial.dtype)
    value, after = (TensorInfo(name, kind, initial.shape) for name in ("value", "after"))
    ops = [Op("UnaryOp", "op", ["value"], ["after"], UnaryAttrs("NEG"))]
    graph = Graph("g", [value], [after], ops, states=[GraphState("value", "after", initial)])
    (state,) = stored(graph, tmp_path / "net.vkmnn").states
    assert (state.input, state.output, state.initial.dtype) == ("value", "after", initial.dtype)
    np.testing.assert_array_equal(state.initial, initial)


def test_endless_values() -> None:
    """A value that contains itself: the reader neither follows it forever nor runs out of stack."""
    model = fields(
        graph__attributes__0__items=[{"kind": 8, "items": [{"kind": 4, "text": "RELU"}]}]
    )
    data = bytearray(file(model))
    schema = load_schema("vkmnn")
    assert schema.tables["Value"]["items"].slot == 7
    for at in range(0, len(data) - 4, 4):
        damaged = bytearray(data)
        struct.pack_into("<I", damaged, at, 2**32 - at & 0xFFFFFFFF)
        with suppress(ModelError):
            load_network(bytes(damaged))


@pytest.mark.parametrize("network", ["bert", "detector", "packed"])
def test_mutated(network: str, tmp_path: Path) -> None:
    """Whatever bytes are changed, a file is read or refused with ModelError."""
    path = tmp_path / "net.vkmnn"
    if network == "packed":
        write_model(packed_graph(), path, WriteOptions(external=True))
    else:
        vkmnn.convert(NETWORKS[network].build(), path, external_data=True)
    data = path.read_bytes()
    rng = random.Random(network)
    refused = foreseen = 0
    for _ in range(300):
        path.write_bytes(mutated(data, rng))
        try:
            load_network(str(path))
        except (ModelError, UnsupportedOpError) as error:
            refused += 1
            foreseen += not error.unexpected
    assert refused > 50
    assert foreseen == refused


def packed_graph() -> Graph:
    """Return a network all of whose constants have forms for two devices."""
    graph = load_network(NETWORKS["resnet"].build()).graph
    forms = [
        PackedForm(array, f"form:{name}", array.astype(np.float16), device)
        for device in ("one", "other")
        for name, array in graph.constants.items()
        if array.dtype == np.float32
    ]
    return dataclasses.replace(graph, packed=forms)


def test_forms_come_back(tmp_path: Path) -> None:
    """Those of weights that are rounded in the file hold other numbers, and stay out of it."""
    graph = packed_graph()
    found = stored(graph, tmp_path / "net.vkmnn")
    assert len(found.packed) == len(graph.packed)
    for one, other in zip(found.packed, graph.packed, strict=True):
        assert (one.form, one.device) == (other.form, other.device)
        np.testing.assert_array_equal(one.packed, other.packed)
        np.testing.assert_array_equal(one.source, other.source)
    half = stored(graph, tmp_path / "half.vkmnn", WriteOptions(half=True))
    assert {form.source.size >= 256 for form in half.packed} == {False}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a file with bytes flipped, words replaced, parts copied, or its end removed."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, kind = rng.randrange(len(result)), rng.randrange(5)
        if kind == 0:
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            word = rng.choice((0, 1, 4, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, len(data)))
            result[at : at + 4] = struct.pack("<I", word)
        elif kind == 2:
            result[at : at + 8] = rng.randbytes(8)
        elif kind == 3:
            start = rng.randrange(len(result))
            part = result[start : start + rng.randrange(1, 64)]
            result[at : at + len(part)] = part
        elif rng.random() < 0.3:
            del result[max(at, 8) :]
    return bytes(result)


# --- the schema -----------------------------------------------------------------------------------


def test_flatc_reads_what_vkmnn_writes(tmp_path: Path) -> None:
    """FlatBuffers' own compiler takes the schema, and the files that follow it."""
    flatc = os.environ.get("VKMNN_FLATC") or shutil.which("flatc")
    if not flatc:
        pytest.skip("flatc is not installed (Debian: flatbuffers-compiler)")
    vkmnn.convert(NETWORKS["detector"].build(), tmp_path / "net.vkmnn", external_data=True)
    schema = Path(vkmnn.__file__).with_name("schema") / "vkmnn.fbs"
    command = [flatc, "--json", "--strict-json", "-o", str(tmp_path), str(schema), "--"]
    subprocess.run([*command, str(tmp_path / "net.vkmnn")], check=True, timeout=60)
    found = json.loads((tmp_path / "net.json").read_text("utf-8"))
    graph = load_network(str(tmp_path / "net.vkmnn")).source
    assert [op["name"] for op in found["graph"]["ops"]] == [op.name for op in graph.ops]
    assert [one["dims"] for one in found["graph"]["constants"] if one.get("dims")] == [
        list(array.shape) for array in graph.constants.values() if array.shape
    ]
    command = [flatc, "--binary", "-o", str(tmp_path / "again"), str(schema)]
    subprocess.run([*command, str(tmp_path / "net.json")], check=True, timeout=60)
    again = tmp_path / "again" / "net.vkmnn"
    shutil.copy(tmp_path / "net.vkmnn.data", again.with_name("net.vkmnn.data"))
    same(graph, load_network(str(again)).source)


def test_files_of_the_first_writer_open() -> None:
    """Written before the package flatbuffers was: tables come before what they refer to."""
    written = Path(__file__).parents[2] / "data" / "native" / "espcn_by_0.1.0.vkmnn"
    assert struct.unpack_from("<I", written.read_bytes())[0] < 100  # the root comes first there
    model = NETWORKS["espcn"].build()
    feeds = make_feeds(model, (1, 6, 5))
    with (
        vkmnn.InferenceSession(str(written), "cpu") as session,
        vkmnn.InferenceSession(model, "cpu") as other,
    ):
        found, expected = session.run(None, feeds), other.run(None, feeds)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)


def test_reshape_attributes_have_no_default_in_files() -> None:
    """All attributes are written, so that a later default changes no file."""
    from vkmnn.converter.native.values import encode

    assert encode(ReshapeAttrs())["names"] == ["allowzero"]


def test_the_identifier_is_that_of_the_schema():
    assert load_schema("vkmnn").identifier == IDENTIFIER


def test_a_path_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr("vkmnn.opening.saving.load_network", load)
    folder = tmp_path / "a.vkmnn"
    folder.mkdir()
    for path in (folder, tmp_path / "missing" / "b.vkmnn"):
        with pytest.raises(InvalidInputError, match="cannot be written"):
            vkmnn.convert("model.onnx", path)
