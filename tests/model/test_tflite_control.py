"""Branches, loops, calls, signatures and variables of TFLite files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import vkmnn
from tests.tflite_files import SCHEMA, Oracle, Writer
from vkmnn.base.budget import Budget, Meter
from vkmnn.converter.tflite import operators as _operators  # noqa: F401 - they register themselves
from vkmnn.converter.tflite.model import LiteModel
from vkmnn.schema import Buffer

X = np.float32([1, -2, 3])


def both(model: bytes, *rounds: tuple[np.ndarray, ...], device: str = "cpu") -> None:
    """Run rounds one after the other in LiteRT and in one session."""
    oracle = Oracle(model)
    session = vkmnn.InferenceSession(model, device=device)
    names = [arg.name for arg in session.get_inputs()]
    for arrays in rounds:
        wanted = oracle.run(*arrays)
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def conditional() -> bytes:
    """Two x + 1 or x - w, by a condition; both w are large enough to be stored outside."""
    writer = Writer()
    c, x, y = writer.tensor((), "BOOL"), writer.tensor((3,)), writer.tensor((3,))
    writer.op(
        "IF", [c, x], [y], ("IfOptions", {"then_subgraph_index": 1, "else_subgraph_index": 2})
    )
    writer.faces([c, x], [y])
    for kind, operand in (("MUL", np.float32(2)), ("SUB", np.float32([5, 6, 7]))):
        writer.begin()
        a, b = writer.tensor((3,)), writer.tensor((3,))
        writer.op(kind, [a, writer.constant(operand)], [b])
        writer.faces([a], [b])
    return writer.finish()


def repetition() -> bytes:
    """While n < 5: n + 1, x * 1.5."""
    writer = Writer()
    n, x = writer.tensor((), "INT32"), writer.tensor((3,))
    m, y = writer.tensor((), "INT32"), writer.tensor((3,))
    writer.op(
        "WHILE",
        [n, x],
        [m, y],
        ("WhileOptions", {"cond_subgraph_index": 1, "body_subgraph_index": 2}),
    )
    writer.faces([n, x], [m, y])
    writer.begin()
    n, x, go = writer.tensor((), "INT32"), writer.tensor((3,)), writer.tensor((), "BOOL")
    writer.op("LESS", [n, writer.constant(np.int32(5))], [go])
    writer.faces([n, x], [go])
    writer.begin()
    n, x = writer.tensor((), "INT32"), writer.tensor((3,))
    m, y = writer.tensor((), "INT32"), writer.tensor((3,))
    writer.op("ADD", [n, writer.constant(np.int32(1))], [m])
    writer.op("MUL", [x, writer.constant(np.float32(1.5))], [y])
    writer.faces([n, x], [m, y])
    return writer.finish()


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_branches(device: str) -> None:
    rounds = [(np.array(case), X) for case in (True, False, True)]
    both(conditional(), *rounds, device=device)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_loops(device: str) -> None:
    both(repetition(), *((np.int32(start), X) for start in (0, 3, 7)), device=device)


def test_bodies_are_written_once() -> None:
    buffer = Buffer(memoryview(repetition()), SCHEMA, "TFLite")
    model = LiteModel(buffer, buffer.data, Meter(Budget()), {}).convert("loop", "").proto
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    body = next(one.g for one in loop.attribute if one.name == "body")
    kinds = Counter(node.op_type for node in body.node)
    assert (kinds["Add"], kinds["Mul"], kinds["Less"]) == (1, 1, 1)


def composite() -> bytes:
    writer = Writer()
    x, y, z = (writer.tensor((3,)) for _ in range(3))
    options = {"name": "odml.test", "decomposition_subgraph_index": 1}
    writer.op("STABLEHLO_COMPOSITE", [x], [y], ("StableHLOCompositeOptions", options))
    writer.op("NEG", [y], [z])
    writer.faces([x], [z])
    writer.begin()
    a, b = writer.tensor((3,)), writer.tensor((3,))
    writer.op("ABS", [a], [b])
    writer.faces([a], [b])
    return writer.finish()


def test_composites_are_what_they_are_made_of() -> None:
    session = vkmnn.InferenceSession(composite(), device="cpu")
    np.testing.assert_array_equal(session.run(None, {"t0": X})[0], -np.abs(X))


def variable(first: bool) -> bytes:
    """A sum of everything that was fed, which starts at 10 or at zero."""
    writer = Writer()
    handle, old, x, new = (
        *(writer.tensor((), "RESOURCE", name="h"), writer.tensor((3,), name="old")),
        *(writer.tensor((3,), name="x"), writer.tensor((3,), name="new")),
    )
    options = ("VarHandleOptions", {"container": "c", "shared_name": "total"})
    if first:
        writer.op("CALL_ONCE", [], [], ("CallOnceOptions", {"init_subgraph_index": 1}))
    writer.op("VAR_HANDLE", [], [handle], options)
    writer.op("READ_VARIABLE", [handle], [old])
    writer.op("ADD", [old, x], [new])
    writer.op("ASSIGN_VARIABLE", [handle, new], [])
    writer.faces([x], [new])
    if first:
        writer.begin()
        handle = writer.tensor((), "RESOURCE")
        writer.op("VAR_HANDLE", [], [handle], options)
        writer.op("ASSIGN_VARIABLE", [handle, writer.constant(np.full(3, 10, "f4"))], [])
        writer.faces([], [])
    return writer.finish()


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_variables_are_kept_between_runs(device: str, tmp_path: Path) -> None:
    both(variable(True), (X,), (X * 2,), (X,), device=device)
    model = vkmnn.InferenceSession(variable(True), device=device)
    assert [arg.name for arg in model.get_inputs()] == ["x"]
    assert [arg.name for arg in model.get_outputs()] == ["new"]
    run = lambda session: session.run(None, {"x": X})[0].tolist()  # noqa: E731
    first, second = (10 + X).tolist(), (10 + 2 * X).tolist()
    assert [run(model), run(model)] == [first, second]
    other = model.another()
    assert run(other) == first
    model.reset_state()
    assert run(model) == first
    assert model.submit({"x": X}).result()[0].tolist() == second
    (tmp_path / "m.tflite").write_bytes(variable(True))
    vkmnn.convert(tmp_path / "m.tflite", tmp_path / "m.vkmnn")
    stored = vkmnn.InferenceSession(tmp_path / "m.vkmnn", device=device)
    assert [run(stored), run(stored)] == [first, second]
    assert [arg.name for arg in stored.get_inputs()] == ["x"]
    for refused in (lambda: model.bind({"x": X}), lambda: model.state({"x": "new"})):
        with pytest.raises(vkmnn.InvalidInputError, match="variables"):
            refused()


def test_a_variable_without_a_first_value_begins_with_zeros() -> None:
    session = vkmnn.InferenceSession(variable(False), device="cpu")
    assert session.run(None, {"x": X})[0].tolist() == X.tolist()
    assert session.run(None, {"x": X})[0].tolist() == (2 * X).tolist()


def test_other_faces_refuse_variables() -> None:
    for face in (vkmnn.load, lambda model: vkmnn.Interpreter.from_buffer(model).create_session()):
        with pytest.raises(vkmnn.InvalidInputError, match="kept between runs"):
            face(variable(True))


def signatures() -> bytes:
    writer = Writer()
    for kind, key in (("ABS", "encode"), ("NEG", "decode")):
        if writer.here["tensors"]:
            writer.begin()
        x = writer.tensor((-1, 3), name="serving_default_x:0")
        y = writer.tensor((-1, 3), name="StatefulPartitionedCall:0")
        writer.op(kind, [x], [y])
        writer.faces([x], [y])
        writer.signature(key, {"x": x}, {f"{key}d": y}, len(writer.subgraphs) - 1)
    return writer.finish()


def test_signatures(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(signatures())
    for name, key, expected in (
        ("m.tflite", "encode", np.abs(X)),
        ("m.tflite#encode", "encode", np.abs(X)),
        ("m.tflite#decode", "decode", -X),
    ):
        session = vkmnn.InferenceSession(tmp_path / name, device="cpu")
        assert [arg.name for arg in session.get_inputs()] == ["x"]
        assert [arg.name for arg in session.get_outputs()] == [f"{key}d"]
        for rows in (1, 4):
            x = np.tile(X, (rows, 1))
            np.testing.assert_array_equal(session.run(None, {"x": x})[0][-1], expected)
    with pytest.raises(vkmnn.InvalidInputError, match="did you mean decode"):
        vkmnn.InferenceSession(tmp_path / "m.tflite#decod", device="cpu")


def test_one_name_for_input_and_output() -> None:
    writer = Writer()
    x, y = writer.tensor((3,), name="x"), writer.tensor((3,), name="y")
    writer.op("NEG", [x], [y])
    writer.faces([x], [y, x, y])
    writer.signature("s", {"x": x}, {"x": y})
    session = vkmnn.InferenceSession(writer.finish(), device="cpu")
    names = [arg.name for arg in session.get_outputs()]
    assert len({*names, "x"}) == 4
    for found, wanted in zip(session.run(None, {"x": X}), (-X, X, -X), strict=True):
        np.testing.assert_array_equal(found, wanted)
