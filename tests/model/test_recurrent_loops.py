"""Recurrent layers that exporters wrote as loops: GRU, LSTM and RNN replace them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession, VkmnnError
from vkmnn.ir import Array
from vkmnn.runtime import open_device

F, B, I32, I64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
BATCH, STEPS, INPUTS, UNITS = 3, 6, 5, 7
value = helper.make_tensor_value_info


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-0.8, 0.8, shape).astype(np.float32)


class Body:
    """The inner graph of a loop, node by node; constants may be created within."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def __call__(self, op: str, *inputs: str | Array | int, outputs: int = 1, **more: Any) -> Any:
        names = [self.name(one) for one in inputs]
        made = [f"{op}_{len(self.nodes)}_{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, **more))
        return made if outputs > 1 else made[0]

    def name(self, given: str | Array | int) -> str:
        if isinstance(given, str):
            return given
        array = np.int64(given) if isinstance(given, int) else given
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def protos(self) -> list[onnx.TensorProto]:
        return [numpy_helper.from_array(one, name) for name, one in self.constants.items()]


# --- cells: each takes x and h (and c), and returns the next ones --------------------------------


def gru(s: Body, x: str, h: str, *, reset_after: bool = True, bias: bool = True) -> list[str]:
    """Keras's GRU: gates z, r, h."""
    w, r = draw(1, INPUTS, 3 * UNITS), draw(2, UNITS, 3 * UNITS)
    b = draw(3, 2, 3 * UNITS)
    mx = s("MatMul", x, w)
    if bias:
        mx = s("Add", mx, s("Squeeze", s("Slice", b, *map(ints, (0, 1, 0))), ints(0)))
    parts = s("Split", mx, ints(UNITS, UNITS, UNITS), outputs=3, axis=-1)
    if reset_after:
        mh = s("MatMul", h, r)
        mh = s("Add", mh, b[1]) if bias else mh
        hz, hr, hh = s("Split", mh, outputs=3, axis=1)
    else:
        hz, hr = s("MatMul", h, r[:, :UNITS]), s("MatMul", h, r[:, UNITS : 2 * UNITS])
    z = s("Sigmoid", s("Add", parts[0], hz))
    reset = s("Sigmoid", s("Add", parts[1], hr))
    if reset_after:
        candidate = s("Tanh", s("Add", parts[2], s("Mul", reset, hh)))
    else:
        product = s("MatMul", s("Mul", reset, h), r[:, 2 * UNITS :])
        candidate = s("Tanh", s("Add", parts[2], product))
    rest = s("Mul", s("Sub", np.float32(1), z), candidate)
    return [s("Add", s("Mul", z, h), rest)]


def gru_turned(s: Body, x: str, h: str) -> list[str]:
    """h + z · (n - h), with products apart and a Gemm."""

    def gate(seed: int) -> str:
        b = draw(seed, UNITS)
        return s("Add", s("Gemm", x, draw(seed + 1, UNITS, INPUTS), b, transB=1),
                 s("MatMul", h, draw(seed + 2, UNITS, UNITS)))  # fmt: skip

    z, r = s("Sigmoid", gate(10)), s("Sigmoid", gate(20))
    after = s("Gemm", h, draw(31, UNITS, UNITS), draw(32, 1, UNITS))
    n = s("Tanh", s("Add", s("Mul", after, r), s("MatMul", x, draw(33, INPUTS, UNITS))))
    return [s("Add", h, s("Mul", z, s("Sub", n, h)))]


def lstm(s: Body, x: str, h: str, c: str) -> list[str]:
    """Keras's LSTM: gates i, f, c, o."""
    sums = s("Add", s("MatMul", x, draw(1, INPUTS, 4 * UNITS)),
             s("MatMul", h, draw(2, UNITS, 4 * UNITS)))  # fmt: skip
    i, f, g, o = s("Split", s("Add", sums, draw(3, 4 * UNITS)), outputs=4, axis=1)
    new = s("Add", s("Mul", s("Sigmoid", f), c), s("Mul", s("Sigmoid", i), s("Tanh", g)))
    return [s("Mul", s("Sigmoid", o), s("Tanh", new)), new]


def basic_lstm(s: Body, x: str, h: str, c: str) -> list[str]:
    """TensorFlow's BasicLSTMCell: one product of [x, h], gates i, j, f, o, and a forget bias."""
    joined = s("Concat", x, h, axis=1)
    sums = s("Add", s("MatMul", joined, draw(1, INPUTS + UNITS, 4 * UNITS)), draw(3, 4 * UNITS))
    i, j, f, o = s("Split", sums, outputs=4, axis=1)
    keep = s("Mul", c, s("Sigmoid", s("Add", f, np.float32(1))))
    new = s("Add", keep, s("Mul", s("Sigmoid", i), s("Tanh", j)))
    return [s("Mul", s("Tanh", new), s("Sigmoid", o)), new]


def simple(s: Body, x: str, h: str) -> list[str]:
    sums = s("Add", s("MatMul", x, draw(1, INPUTS, UNITS)), draw(2, UNITS))
    return [s("Tanh", s("Add", s("MatMul", h, draw(3, UNITS, UNITS)), sums))]


CELLS = {
    "GRU, reset after": gru,
    "GRU, reset before": lambda s, x, h: gru(s, x, h, reset_after=False),
    "GRU without biases": lambda s, x, h: gru(s, x, h, bias=False),
    "GRU, turned": gru_turned,
    "LSTM": lstm,
    "LSTM, one product": basic_lstm,
    "RNN": simple,
}


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def while_loop(cell: Any, *, steps: int | str = STEPS, states: int = 1) -> onnx.ModelProto:
    """A network as tf2onnx writes it: counters and their limits are carried, rows are gathered."""
    s = Body()
    row = s("Gather", "xt", "time", axis=0)
    hidden = [f"h{place}" for place in range(states)]
    made = cell(s, row, *hidden)
    turn = s("Add", "turn", np.int32(1))
    time = s("Add", "time", np.int32(1))
    going = s("And", s("Less", turn, "steps"), s("Less", time, "steps"))
    outs = [s("Identity", one) for one in (going, turn, time, *made, made[0])]
    scalar = [
        value("i", I64, []),
        value("go", B, []),
        value("turn", I32, []),
        value("time", I32, []),
    ]
    inner = helper.make_graph(
        s.nodes,
        "body",
        [*scalar, *(value(name, F, [None, UNITS]) for name in hidden)],
        [
            value(name, kind, None)
            for name, kind in zip(outs, [B, I32, I32, *[F] * 9], strict=False)
        ],
        s.protos(),
    )
    g = Body()
    whole = g("Cast", g("Squeeze", g("Slice", g("Shape", "xt"), ints(0), ints(1)), ints(0)), to=I32)
    g.nodes.append(helper.make_node("Identity", [whole], ["steps"]))
    g.nodes.insert(0, helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0, 2]))
    batch = g("Slice", g("Shape", "x"), ints(0), ints(1))
    zeros = g("Expand", np.zeros((1, UNITS), np.float32), g("Concat", batch, ints(UNITS), axis=0))
    first = g("Less", np.int32(0), "steps")
    limit = g("Cast", "steps", to=I64)
    start = [limit, first, np.int32(0), np.int32(0), *[zeros] * states]
    outputs = ["turns", "times", *(f"last{place}" for place in range(states)), "all"]
    names = [g.name(one) for one in start]
    g.nodes.append(helper.make_node("Loop", names, outputs, name="while", body=inner))
    g.nodes.append(helper.make_node("Transpose", ["all"], ["y"], perm=[1, 0, 2]))
    graph = helper.make_graph(
        g.nodes,
        "keras",
        [value("x", F, ["N", steps, INPUTS])],
        [value(name, F, None) for name in ("y", *outputs[2:-1])] + [value("times", I32, None)],
        g.protos(),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def check(model: onnx.ModelProto, feeds: Sequence[Array], **options: Any) -> list[str]:
    """Compare with onnxruntime; return the types of the ops."""
    oracle = open_oracle(model)
    with InferenceSession(model, require_device=True, **options) as session:
        for x in feeds:
            results = session.run(None, {"x": x})
            for one, other in zip(results, oracle.run(None, {"x": x}), strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        return [op.type for op in session.placement()]


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("steps", [STEPS, "T"])
def test_a_loop_of_a_cell(name: str, steps: int | str) -> None:
    """All steps in one operator, however long the sequences are."""
    states = 2 if "LSTM" in name else 1
    model = while_loop(CELLS[name], steps=steps, states=states)
    lengths = [STEPS] if steps == STEPS else [STEPS, 1, 11]
    types = check(model, [draw(batch, batch, n, INPUTS) for n in lengths for batch in (BATCH, 1)])
    assert types.count("Recurrent") == 1
    assert "HostGraph" not in types


@pytest.mark.parametrize("steps", [STEPS, "T"])
def test_one_submission(steps: int | str) -> None:
    """Of a length that is known when it runs, too."""
    x = draw(1, BATCH, STEPS, INPUTS)
    with InferenceSession(while_loop(gru, steps=steps)) as session:
        assert submits(session, x) == 1


def submits(session: InferenceSession, x: Array) -> int:
    """Return how often a second run hands commands to the device."""
    session.run(None, {"x": x})
    counts = open_device("auto").counts
    before = counts["submits"]
    session.run(None, {"x": x})
    return counts["submits"] - before


# --- other ways to spell a loop ------------------------------------------------------------------


def loop(
    body: Body, going: str, states: dict[str, str], *, limit: str = "m", first: str = "",
    stacked: Sequence[str] = (), constants: dict[str, Array] | None = None, axis: int = 0,
    more: Sequence[onnx.NodeProto] = (), steps: int | str = STEPS,
) -> onnx.ModelProto:  # fmt: skip
    """A network of one Loop: `states` are inputs of the body, with the carried values.

    Outputs are the states, then the stacked values; "x" [T, N, I] or [N, T, I] is fed.
    """
    made = {"m": ints(STEPS), "h": np.zeros((BATCH, UNITS), np.float32), **(constants or {})}
    kinds = dict.fromkeys(states, F) | {"n": I64}
    formal = [value("i", I64, []), value("go", B, [])]
    formal += [value(f"{name}_in", kinds[name], None) for name in states]
    outs = [body("Identity", one) for one in (going, *states.values(), *stacked)]
    types = [B, *(kinds[name] for name in states), *[F] * len(stacked)]
    inner = helper.make_graph(
        body.nodes, "body", formal,
        [value(name, kind, None) for name, kind in zip(outs, types, strict=True)], body.protos(),
    )  # fmt: skip
    names = [*(f"{name}_out" for name in states), *(f"all{i}" for i in range(len(stacked)))]
    nodes = [*more, helper.make_node("Loop", [limit, first, *states], names, body=inner)]
    shape = [BATCH, steps, INPUTS] if axis else [steps, BATCH, INPUTS]
    graph = helper.make_graph(
        nodes, "g", [value("x", F, shape)],
        [value(name, kind, None) for name, kind in zip(names, types[1:], strict=True)],
        [numpy_helper.from_array(one, name) for name, one in made.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sequence(*, axis: int = 0, steps: int = STEPS) -> Array:
    return draw(9, BATCH, steps, INPUTS) if axis else draw(9, steps, BATCH, INPUTS)


ROWS = {
    "gathered by the iteration": lambda s, axis: s("Gather", "x", "i", axis=axis),
    "gathered with the axis": lambda s, axis: s(
        "Squeeze", s("Gather", "x", s("Unsqueeze", "i", ints(0)), axis=axis), ints(axis)
    ),
    "sliced": lambda s, axis: s(
        "Reshape",
        s("Slice", "x", s("Reshape", "i", ints(1)),
          s("Reshape", s("Add", "i", 1), ints(-1)), ints(axis)),
        ints(-1, INPUTS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_sequence(name: str, axis: int) -> None:
    s = Body()
    (made,) = gru(s, ROWS[name](s, axis), "h_in")
    model = loop(s, "go", {"h": made}, stacked=[made], axis=axis)
    assert "Recurrent" in check(model, [sequence(axis=axis)])


@pytest.mark.parametrize("steps", [2, 4])
def test_fewer_iterations_than_rows(steps: int) -> None:
    """From the second row on, and until a counter says so."""
    s = Body()
    (made,) = simple(s, s("Gather", "x", "n_in", axis=0), "h_in")
    following = s("Add", 1, "n_in")
    going = s("And", "go", s("Greater", steps, following))
    model = loop(
        s, going, {"h": made, "n": following}, stacked=[made], constants={"n": np.int64(1)}
    )
    assert "Recurrent" in check(model, [sequence()])


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("steps", [STEPS, "T"])
def test_scans(backwards: bool, steps: int | str) -> None:
    """Of lengths that are not known, too."""
    s = Body()
    h, c = lstm(s, "row", "h_in", "c_in")
    outs = [s("Identity", one) for one in (h, c, h)]
    body = helper.make_graph(
        s.nodes, "body",
        [value(name, F, None) for name in ("h_in", "c_in", "row")],
        [value(name, F, None) for name in outs], s.protos(),
    )  # fmt: skip
    way = [int(backwards)]
    names = ["last_h", "last_c", "all"]
    scan = helper.make_node(
        "Scan", ["h", "h", "x"], names, body=body, num_scan_inputs=1,
        scan_input_directions=way, scan_output_directions=way,
    )  # fmt: skip
    graph = helper.make_graph(
        [scan], "g", [value("x", F, [steps, BATCH, INPUTS])],
        [value(name, F, None) for name in names],
        [numpy_helper.from_array(draw(8, BATCH, UNITS), "h")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    types = check(model, [sequence(), *[sequence(steps=9)] * (steps == "T")])
    assert types.count("Recurrent") == 1


STORES = {
    "scattered": lambda s, h: s(
        "ScatterND",
        "all_in",
        s("Unsqueeze", s("Add", "i", 1), ints(0, 1)),
        s("Unsqueeze", h, ints(0)),
    ),
    "appended": lambda s, h: s("Concat", "all_in", s("Unsqueeze", h, ints(0)), axis=0),
    "appended along the second axis": lambda s, h: s(
        "Concat", "all_in", s("Unsqueeze", h, ints(1)), axis=1
    ),
}


@pytest.mark.parametrize("name", STORES)
def test_rows_in_a_carried_buffer(name: str) -> None:
    """What it held before stays around them."""
    s = Body()
    (made,) = gru(s, s("Gather", "x", "i", axis=0), "h_in")
    first = {"scattered": (STEPS + 3, BATCH, UNITS), "appended": (2, BATCH, UNITS)}
    kept = draw(5, *first.get(name, (BATCH, 1, UNITS)))
    states = {"h": made, "all": STORES[name](s, made)}
    assert "Recurrent" in check(loop(s, "go", states, constants={"all": kept}), [sequence()])


def test_other_rows_in_a_carried_buffer() -> None:
    s = Body()
    (made,) = gru(s, s("Gather", "x", "i", axis=0), "h_in")
    states = {"h": made, "all": STORES["appended"](s, s("Neg", made))}
    model = loop(s, "go", states, constants={"all": draw(5, 1, BATCH, UNITS)})
    assert "Recurrent" not in check(model, [sequence()])


# --- loops that are not cells ---------------------------------------------------------------------


def scaled(s: Body, x: str, h: str) -> list[str]:
    (made,) = gru(s, x, h)
    return [s("Mul", made, np.float32(0.5))]


def two_rows(s: Body, x: str, h: str) -> list[str]:
    late = s("Gather", "x", s("Sub", STEPS - 1, "i"), axis=0)
    sums = s(
        "Add", s("MatMul", x, draw(1, INPUTS, UNITS)), s("MatMul", late, draw(2, INPUTS, UNITS))
    )
    return [s("Tanh", s("Add", sums, s("MatMul", h, draw(3, UNITS, UNITS))))]


def other_gates(s: Body, x: str, h: str) -> list[str]:
    """One gate by another activation than the other."""

    def sums(seed: int) -> str:
        return s("Add", s("MatMul", x, draw(seed, INPUTS, UNITS)),
                 s("MatMul", h, draw(seed + 1, UNITS, UNITS)))  # fmt: skip

    z, r = s("Sigmoid", sums(1)), s("Tanh", sums(3))
    n = s("Tanh", s("Add", s("MatMul", x, draw(5, INPUTS, UNITS)),
                    s("MatMul", s("Mul", r, h), draw(6, UNITS, UNITS))))  # fmt: skip
    return [s("Add", s("Mul", z, h), s("Mul", s("Sub", np.float32(1), z), n))]


def squared(s: Body, x: str, h: str) -> list[str]:
    (made,) = simple(s, x, h)
    return [s("Mul", made, made)]


def by_row(s: Body, x: str, h: str) -> list[str]:
    """A bias for each sequence rather than each unit."""
    (made,) = simple(s, x, s("Add", h, draw(4, BATCH, 1)))
    return [made]


OTHERS = {one.__name__: one for one in (scaled, two_rows, other_gates, squared, by_row)}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_cell_is_unrolled(name: str) -> None:
    """In the same submission."""
    s = Body()
    (made,) = OTHERS[name](s, s("Gather", "x", "i", axis=0), "h_in")
    types = check(loop(s, "go", {"h": made}, stacked=[made]), [sequence()])
    assert not {"Recurrent", "HostGraph", "Loop"} & {*types}


def test_other_results_than_the_state() -> None:
    s = Body()
    (made,) = gru(s, s("Gather", "x", "i", axis=0), "h_in")
    types = check(loop(s, "go", {"h": made}, stacked=[s("Neg", made)]), [sequence()])
    assert "Recurrent" not in types


def test_rows_counted_from_the_end() -> None:
    """The first iteration reads row -1, the last row of the input."""
    s = Body()
    (made,) = simple(s, s("Gather", "x", "n_in", axis=0), "h_in")
    states = {"h": made, "n": s("Add", 1, "n_in")}
    model = loop(s, "go", states, stacked=[made], constants={"n": np.int64(-1)})
    assert "Recurrent" not in check(model, [sequence()])


@pytest.mark.parametrize(("later", "steps"), [(0, STEPS), (2, STEPS), (0, "T")])
def test_more_iterations_than_rows(later: int, steps: int | str) -> None:
    """An error, as in the loop, rather than fewer iterations."""
    s = Body()
    (made,) = simple(s, s("Gather", "x", s("Add", "i", later), axis=0), "h_in")
    limit = ints(STEPS if later else STEPS + 1)
    model = loop(s, "go", {"h": made}, stacked=[made], steps=steps, constants={"m": limit})
    with pytest.raises(VkmnnError, match="index"), InferenceSession(model) as session:
        session.run(None, {"x": sequence()})


def test_a_limit_between_whole_numbers() -> None:
    """Iterations go on while i < 2.5, which is not i < 2."""
    s = Body()
    (made,) = simple(s, s("Gather", "x", "i", axis=0), "h_in")
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Mul", ["largest", "nothing"], ["none"]),
        helper.make_node("Add", ["none", "half"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["limit"], to=TensorProto.DOUBLE),
    ]
    going = s("Less", s("Cast", "i", to=TensorProto.DOUBLE), "limit")
    model = loop(s, going, {"h": made}, stacked=[made], more=nodes,
                 constants={"nothing": np.float32(0), "half": np.float32(2.5)})  # fmt: skip
    expected = open_oracle(model).run(None, {"x": sequence()})
    with InferenceSession(model) as session:
        for one, other in zip(session.run(None, {"x": sequence()}), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", [0, 1])
def test_bodies_that_lack_outputs(outputs: int) -> None:
    s = Body()
    (made,) = simple(s, s("Gather", "x", "i", axis=0), "h_in")
    model = loop(s, "go", {"h": made}, stacked=[made])
    del model.graph.node[0].attribute[0].g.output[outputs:]
    with pytest.raises(VkmnnError), InferenceSession(model) as session:
        session.run(None, {"x": sequence()})


def test_a_first_state_for_all_sequences() -> None:
    """One row stands for all: the operator wants one for each."""
    s = Body()
    (made,) = gru(s, s("Gather", "x", "i", axis=0), "h_in")
    model = loop(s, "go", {"h": made}, constants={"h": draw(2, 1, UNITS)}, stacked=[made])
    assert "Recurrent" in check(model, [sequence()])


# --- conditions that count -----------------------------------------------------------------------


def counting(kind: str) -> onnx.ModelProto:
    s = Body()
    (made,) = squared(s, s("Gather", "x", "i", axis=0), "h_in")
    following = s("Add", "n_in", 2)
    condition = {
        "less": lambda: s("Less", following, 7),
        "not": lambda: s("Not", s("GreaterOrEqual", following, 7)),
        "and": lambda: s("And", s("Less", following, 7), s("Less", "i", 100)),
        "equal": lambda: s("Not", s("Equal", following, 6)),
        "or": lambda: s("Or", s("Less", following, 7), s("Less", "i", 1)),
    }[kind]()
    limit = "" if kind == "less" else "m"
    return loop(
        s, condition, {"h": made, "n": following}, limit=limit, stacked=[made],
        constants={"n": np.int64(0), "m": np.int64(5)},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["less", "not", "and", "equal", "or"])
def test_conditions_that_count_end_unrolled_loops(kind: str) -> None:
    types = check(counting(kind), [sequence()])
    assert not {"HostGraph", "Loop"} & {*types}


def test_conditions_that_are_computed_stay() -> None:
    """What they follow from is known when the loop runs: each iteration is a submission."""
    s = Body()
    (made,) = squared(s, s("Gather", "x", "i", axis=0), "h_in")
    going = s("Less", s("ReduceSum", made, keepdims=0), np.float32(1e9))
    model = loop(s, going, {"h": made})
    expected = open_oracle(model).run(None, {"x": sequence()})
    with InferenceSession(model) as session:
        for one, other in zip(session.run(None, {"x": sequence()}), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert submits(session, sequence()) >= STEPS


@pytest.mark.parametrize("op", ["MatMul", "Sub", "Split", "Less"])
def test_damaged_nodes_of_a_cell_are_typed(op: str) -> None:
    """A node with more inputs than its operator has, or without an attribute that it needs."""
    model = while_loop(gru)
    loop = next(one for one in model.graph.node if one.op_type == "Loop")
    body = next(a.g for a in loop.attribute if a.name == "body")
    node = next(one for one in body.node if one.op_type == op)
    node.input.extend(list(node.input) * 2)
    del node.attribute[:]
    with pytest.raises(VkmnnError):
        InferenceSession(model, "cpu").run(None, {"x": draw(1, 2, STEPS, INPUTS)})
