"""Loop and Scan with iterations unknown at loading: bodies on the device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.control_flow.side_by_side import COPIES
from vkmnn.ir import Array
from vkmnn.plugin import CpuKernel, kernel

F, B, L = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
value = helper.make_tensor_value_info
RNG = np.random.default_rng(11)
W = (RNG.standard_normal((4, 4)) * 0.4).astype(np.float32)
X = RNG.standard_normal((3, 4)).astype(np.float32)
SQUARE = RNG.standard_normal((4, 4)).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str]]],
    outputs: dict[str, int],
    constants: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [value(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [value(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(a, name) for name, a in ({"w": W} | (constants or {})).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(proto: onnx.ModelProto, *feeds: dict[str, Array], **options: object) -> set[str]:
    """Compare with onnxruntime, twice; return the types of ops off the device."""
    session = open_oracle(proto)
    with InferenceSession(proto, **options) as mine:
        for feed in (*feeds, *feeds):
            expected = session.run(None, feed)
            for one, other in zip(mine.run(None, feed), expected, strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert any("/body/" in op.name for op in mine.placement())
        assert mine.profile(feeds[0], 1).wall_us > 0
        return {op.type for op in mine.placement().off_device}


def body(
    nodes: Sequence[onnx.NodeProto], carried: dict[str, int], outputs: dict[str, int]
) -> onnx.GraphProto:
    formal = [value("i", L, []), value("c", B, [])]
    return helper.make_graph(
        list(nodes),
        "body",
        [*formal, *(value(name, kind, None) for name, kind in carried.items())],
        [value(name, kind, None) for name, kind in outputs.items()],
    )


STEP = [node("MatMul", "h w", "p"), node("Add", "p x", "q"), node("Tanh", "q", "n")]


def counted() -> onnx.ModelProto:
    """A limit that is fed, a computed value from outside, and stacked results."""
    inner = body(
        [*STEP, node("Identity", "c", "go"), node("Neg", "n", "s")],
        {"h": F},
        {"go": B, "n": F, "s": F},
    )
    nodes = [node("Exp", "a", "x"), node("Loop", "m  a", "last all", body=inner)]
    inputs = {"a": (F, ["n", 4]), "m": (L, [])}
    return model([*nodes, node("Neg", "last", "y")], inputs, {"y": F, "all": F})


def test_a_limit_that_is_fed() -> None:
    feeds = [{"a": X[:rows], "m": np.array(m)} for rows in (3, 1) for m in (7, 1, 2, 20)]
    assert not check(counted(), *feeds)
    with InferenceSession(counted(), require_device=True) as session:
        session.run(None, feeds[0])
    with InferenceSession(counted()) as session:
        y, stacked = session.run(None, {"a": X, "m": np.array(0)})
        np.testing.assert_array_equal(y, -X)
        assert stacked.shape[0] == 0


def test_iterations_record_and_allocate_nothing() -> None:
    with InferenceSession(counted()) as session:
        session.run(None, {"a": X, "m": np.array(5)})
        session.run(None, {"a": X, "m": np.array(5)})
        before = session.counters()
        session.run(None, {"a": X, "m": np.array(40)})
        after = session.counters()
    for what in ("plans", "recordings", "allocations", "pipelines"):
        assert after[what] == before[what], what


def rows(kind: str, op: str, sizes: list[int | str] | None) -> onnx.ModelProto:
    """A Loop or Scan whose rows are joined with a first row; op "MatMul" is for the device."""
    nodes = [node(op, "h w", "n"), node("Neg", "n", "s")]
    carried = [value("h", F, [4, 4])]
    results = [value("n", F, [4, 4]), value("s", F, sizes)]
    if kind == "Loop":
        nodes.append(node("Identity", "c", "go"))
        inner = helper.make_graph(
            nodes,
            "body",
            [value("i", L, []), value("c", B, []), *carried],
            [value("go", B, []), *results],
        )
        loop = node("Loop", "m  x", "last all", body=inner)
        counter = {"m": (L, [])}
    else:
        inner = helper.make_graph(nodes, "body", [*carried, value("e", F, [4])], results)
        loop = node("Scan", "x m", "last all", body=inner, num_scan_inputs=1)
        counter = {"m": (F, ["t", 4])}
    joined = [node("Unsqueeze", "x first", "row"), node("Concat", "row all", "y", axis=0)]
    weights = {"w": np.eye(4, dtype=np.float32), "first": np.array([0])}
    inputs = {"x": (F, [4, 4]), **counter}
    return model([loop, *joined], inputs, {"y": F, "all": F}, weights)


@pytest.mark.parametrize("sizes", [[4, 4], ["a", 4], None], ids=["declared", "in part", "inferred"])
@pytest.mark.parametrize("op", ["MatMul", "Add"])
@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_rows_of_no_iterations_have_the_sizes_of_a_row(
    kind: str, op: str, sizes: list[int | str] | None
) -> None:
    """Declared ones, else what the body's nodes tell; a Concat after the loop needs them."""
    proto = rows(kind, op, sizes)
    none = np.array(0) if kind == "Loop" else np.zeros((0, 4), np.float32)
    for device in ("auto", "cpu"):
        with InferenceSession(proto, device=device) as session:
            y, stacked = session.run(None, {"x": SQUARE, "m": none})
        assert stacked.shape == (0, 4, 4)
        np.testing.assert_array_equal(y, SQUARE[None])


def until() -> onnx.ModelProto:
    """A condition that the body computes; no limit."""
    nodes = [
        *STEP,
        node("ReduceSum", "n", "t", keepdims=0),
        node("Less", "t most", "below"),
        node("Less", "i last", "early"),
        node("And", "below early", "go"),
    ]
    inner = body(nodes, {"h": F}, {"go": B, "n": F})
    loop = node("Loop", " yes h0", "y", body=inner)
    inputs = {
        "h0": (F, ["n", 4]),
        "x": (F, ["n", 4]),
        "yes": (B, []),
        "last": (L, []),
    }
    return model([loop], inputs, {"y": F}, {"most": np.float32(1e9)})


def test_a_condition_that_is_computed() -> None:
    feeds = [
        {"h0": X, "x": X * 0.5, "yes": np.array(yes), "last": np.array(last)}
        for yes, last in ((True, 5), (True, 0), (False, 5))
    ]
    assert not check(until(), *feeds)


def test_shapes_that_change_while_it_runs() -> None:
    """A value that grows, like a cache, and one that does not."""
    nodes = [
        *STEP,
        node("Concat", "kept n", "grown", axis=0),
        node("ReduceMean", "grown", "mean", axes=[0], keepdims=1),
        node("Add", "n mean", "next"),
        node("Identity", "c", "go"),
    ]
    inner = body(nodes, {"h": F, "kept": F}, {"go": B, "next": F, "grown": F})
    loop = node("Loop", "m  x x", "last all", body=inner)
    proto = model([loop], {"x": (F, ["n", 4]), "m": (L, [])}, {"last": F, "all": F})
    assert not check(proto, *({"x": X, "m": np.array(m)} for m in (4, 1, 6)))


def test_values_that_change_places() -> None:
    nodes = [*STEP, node("Identity", "g", "k"), node("Identity", "c", "go")]
    inner = body(nodes, {"h": F, "g": F}, {"go": B, "k": F, "n": F})
    loop = node("Loop", "m  x z", "u v", body=inner)
    inputs = {"x": (F, ["n", 4]), "z": (F, ["n", 4]), "m": (L, [])}
    proto = model([loop], inputs, {"u": F, "v": F})
    assert not check(proto, *({"x": X, "z": X * 2, "m": np.array(m)} for m in (1, 2, 5, 6)))


def test_a_loop_in_a_loop_with_an_if() -> None:
    taken = [
        helper.make_graph([node(op, "n", f"{op}_n")], op, [], [value(f"{op}_n", F, None)])
        for op in ("Relu", "Neg")
    ]
    deep = helper.make_graph(
        [
            node("MatMul", "e w", "d"),
            node("Less", "j two", "low"),
            node("Identity", "o", "oo"),
            node("Mul", "d half", "f"),
        ],
        "deep",
        [value("j", L, []), value("o", B, []), value("e", F, None)],
        [value("oo", B, None), value("f", F, None)],
    )
    nodes = [
        *STEP,
        node("Less", "i two", "early"),
        node("If", "early", "r", then_branch=taken[0], else_branch=taken[1]),
        node("Loop", "k  r", "next", body=deep),
        node("Identity", "c", "go"),
    ]
    inner = body(nodes, {"h": F}, {"go": B, "next": F})
    proto = model(
        [node("Loop", "m  x", "y", body=inner)],
        {"x": (F, ["n", 4]), "m": (L, []), "k": (L, [])},
        {"y": F},
        {"two": np.array(2), "half": np.float32(0.5)},
    )
    feeds = [{"x": X, "m": np.array(m), "k": np.array(k)} for m, k in ((4, 3), (1, 0), (0, 2))]
    assert check(proto, *feeds) <= {"If"}
    with InferenceSession(proto, require_device=True) as session:
        session.run(None, feeds[0])
        assert not session.placement().off_device


@pytest.mark.parametrize("axis", [0, 1])
def test_scans_of_any_length(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkmnn.opening.host_parts.WORTH", 0)
    nodes = [node("MatMul", "h w", "p"), node("Add", "p e", "q"), node("Tanh", "q", "n")]
    inner = helper.make_graph(
        [*nodes, node("Neg", "n", "s")],
        "body",
        [value("h", F, [3, 4]), value("e", F, [3, 4])],
        [value("n", F, [3, 4]), value("s", F, [3, 4])],
    )
    scan = node(
        "Scan",
        "x rows",
        "last all",
        body=inner,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[1],
        scan_output_axes=[-1],
        scan_output_directions=[axis],
    )
    shape: list[int | str] = [3, 4]
    shape.insert(axis, "t")
    proto = model([scan], {"x": (F, [3, 4]), "rows": (F, shape)}, {"last": F, "all": F})
    rows = RNG.standard_normal((9, 3, 4)).astype(np.float32)
    feeds = [
        {"x": X, "rows": np.ascontiguousarray(np.moveaxis(rows[:length], 0, axis))}
        for length in (9, 1, 4)
    ]
    assert not check(proto, *feeds)


def test_what_cannot_be_is_refused() -> None:
    with InferenceSession(until()) as session:
        for bad in (np.ones((2, 4), np.float32), np.ones((3, 5), np.float32)):
            feeds = {"h0": X, "x": bad, "yes": np.array(True), "last": np.array(3)}
            with pytest.raises(vkmnn.VkmnnError):
                session.run(None, feeds)


def test_it_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_TIMEOUT", "0.5")
    inner = body(
        [*STEP, node("Not", "c", "d"), node("Not", "d", "go")], {"h": F}, {"go": B, "n": F}
    )
    proto = model(
        [node("Loop", " yes x", "y", body=inner)], {"x": (F, [3, 4]), "yes": (B, [])}, {"y": F}
    )
    with InferenceSession(proto) as session:
        with pytest.raises(vkmnn.HostError, match=r"a loop took more than 0\.5 s") as caught:
            session.run(None, {"x": X, "yes": np.array(True)})
        assert "VKMNN_TIMEOUT" in str(caught.value)
        (y,) = session.run(None, {"x": X, "yes": np.array(False)})
        np.testing.assert_array_equal(y, X)


def test_branches_run_on_the_device_where_the_host_is_ruled_out() -> None:
    sides = [
        helper.make_graph([node(op, "x", f"{op}_x")], op, [], [value(f"{op}_x", F, None)])
        for op in ("Relu", "Neg")
    ]
    choice = node("If", "c", "y", then_branch=sides[0], else_branch=sides[1])
    proto = model([choice], {"x": (F, [3, 4]), "c": (B, [])}, {"y": F})
    with InferenceSession(proto, require_device=True) as session:
        for c in (True, False):
            (y,) = session.run(None, {"x": X, "c": np.array(c)})
            np.testing.assert_array_equal(y, np.maximum(X, 0) if c else -X)
        assert not session.placement().off_device
    text = helper.make_graph([node("SequenceConstruct", "x", "s")], "t", [], [])
    text.node.append(node("SequenceAt", "s k", "t"))
    text.output.append(value("t", F, None))
    choice = node("If", "c", "y", then_branch=text, else_branch=sides[1])
    proto = model([choice], {"x": (F, [3, 4]), "c": (B, []), "k": (L, [])}, {"y": F})
    with pytest.raises(vkmnn.PlacementError, match="Sequence"):
        InferenceSession(proto, require_device=True)


# --- what the host keeps -------------------------------------------------------------------------


def scan_of(width: int) -> onnx.ModelProto:
    """A Scan of unknown length, whose body multiplies with one matrix."""
    inner = helper.make_graph(
        [node("MatMul", "h k", "p"), node("Add", "p e", "q"), node("Sin", "q", "n")],
        "body",
        [value("h", F, [2, width]), value("e", F, [2, width])],
        [value("n", F, [2, width])],
    )
    scan = node("Scan", "x rows", "last", body=inner, num_scan_inputs=1)
    constants = {"k": np.eye(width, dtype=np.float32)}
    inputs = {"x": (F, [2, width]), "rows": (F, ["t", 2, width])}
    return model([scan], inputs, {"last": F}, constants)


@pytest.mark.parametrize(("width", "away"), [(8, {"Scan"}), (1200, set())])
def test_a_product_in_a_body_may_be_light(width: int, away: set[str]) -> None:
    """Its cost decides, and the placement tells."""
    feeds = {
        "x": np.ones((2, width), np.float32),
        "rows": RNG.standard_normal((3, 2, width)).astype(np.float32),
    }
    proto = scan_of(width)
    expected = open_oracle(proto).run(None, feeds)
    with InferenceSession(proto) as session:
        for one, other in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        placed = session.placement()
    assert {op.type for op in placed.off_device} == away
    assert all("operations, a submission" in op.reason for op in placed.off_device)


def test_a_light_body_runs_on_the_device_where_it_must() -> None:
    with InferenceSession(scan_of(8), require_device=True) as session:
        rows = np.ones((3, 2, 8), np.float32)
        session.run(None, {"x": rows[0], "rows": rows})
        assert not session.placement().off_device


@pytest.mark.parametrize("op", ["Exp", "MatMul"])
def test_a_carried_sequence_is_the_reason(op: str) -> None:
    """Whether the body is light or not."""
    kind = helper.make_tensor_type_proto(F, None)
    many = helper.make_sequence_type_proto(kind)
    step = node(op, "s w" if op == "MatMul" else "s", "n")
    inner = helper.make_graph(
        [step, node("SequenceInsert", "q n", "r"), node("Identity", "c", "go")],
        "body",
        [
            *(value("i", L, []), value("c", B, []), value("s", F, [3, 4])),
            helper.make_value_info("q", many),
        ],
        [value("go", B, []), value("n", F, [3, 4]), helper.make_value_info("r", many)],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"]),
        node("Loop", "m  x none", "last all", body=inner),
        node("ConcatFromSequence", "all", "y", axis=0),
    ]
    proto = model(nodes, {"m": (L, []), "x": (F, [3, 4])}, {"y": F})
    with InferenceSession(proto) as session:
        (y,) = session.run(None, {"m": np.array(2), "x": X})
        (loop,) = [one for one in session.placement() if one.type == "Loop"]
    assert y.shape == (6, 4)
    assert "sequence" in loop.reason or "'q'" in loop.reason
    assert "light" not in loop.reason


def independent(kind: str) -> onnx.ModelProto:
    """A product for each row, or for each number: iterations pass nothing to the next one."""
    if kind == "Loop":
        inner = body(
            [
                node("Identity", "c", "go"),
                node("Gather", "x i", "row"),
                node("MatMul", "row w", "p"),
                node("Cast", "i", "f", to=F),
                node("Add", "p f", "s"),
            ],
            {},
            {"go": B, "s": F, "i2": L},
        )
        inner.node.append(node("Add", "i i", "i2"))
        loop = node("Loop", "m ", "all twice", body=inner)
        inputs: dict[str, tuple[int, Sequence[int | str]]] = {"x": (F, ["n", 4]), "m": (L, [])}
        return model([loop], inputs, {"all": F, "twice": L})
    inner = helper.make_graph(
        [node("MatMul", "row w", "s"), node("Identity", "w", "same")],
        "body",
        [value("row", F, [4])],
        [value("s", F, [4]), value("same", F, [4, 4])],
    )
    scan = node(
        "Scan",
        "x",
        "all again",
        body=inner,
        num_scan_inputs=1,
        scan_input_directions=[1],
        scan_output_directions=[1, 0],
    )
    return model([scan], {"x": (F, ["n", 4])}, {"all": F, "again": F})


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_iterations_that_carry_nothing_run_side_by_side(kind: str) -> None:
    x = RNG.standard_normal((40, 4)).astype(np.float32)
    feeds = [
        {"x": x[:count], "m": np.array(count)} if kind == "Loop" else {"x": x[:count]}
        for count in (40, 3, 19, 8)
    ]
    assert not check(independent(kind), *feeds, require_device=True)
    with InferenceSession(independent(kind), require_device=True) as session:
        for _ in range(2):
            before = session.counters()["submits"]
            session.run(None, feeds[0])
            after = session.counters()["submits"]
        assert after - before == 40 / COPIES


def test_threads_share_iterations_that_carry_nothing(registrations: object) -> None:
    """Iterations wait in pairs: none ends before another one starts."""
    barrier = threading.Barrier(2, timeout=20)

    @kernel("MatMul", backend="CPU", provider="acme")
    class Meets(CpuKernel):  # type: ignore[type-arg]
        def compute(self, inputs: Any) -> Any:
            barrier.wait()
            return [inputs[0] @ inputs[1]]

    net = vkmnn.Interpreter(independent("Scan"))
    session = net.create_session({"device": "cpu", "numThread": 4})
    net.resize_tensor(session, session.inputs["x"], (16, 4))
    x = RNG.standard_normal((16, 4)).astype(np.float32)
    net.resize_session(session)
    session.inputs["x"].copy_from(x)
    net.run_session(session)
    np.testing.assert_allclose(session.outputs["all"].copy_to(), x @ W, atol=1e-5)
