"""Branches, loops, scans and sequences, and shapes that follow from data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from vkmnn_suite.fuzz.recipes.table import pattern
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE

_UNARY = ("Tanh", "Sigmoid", "Relu", "Neg", "Abs", "Softsign")
_BINARY = ("Add", "Sub", "Max", "Min")
_KIND = TensorProto.FLOAT
_SINCE = 13
"""Earlier, Max and Min support fewer types, and sequences fewer forms."""


@dataclass
class _Body:
    """The nodes of an inner graph; the values that it captures are recorded."""

    s: Sketch
    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    captured: list[Value] = field(default_factory=list)

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def outer(self, value: Value) -> str:
        """Return the name of a value of the graph around."""
        self.captured.append(value)
        return value.name

    def step(self, name: str, shape: Sequence[int]) -> str:
        """Compute something of the same shape."""
        s = self.s
        kind = s.choose("unary", "unary", "binary", "binary", "matrix", "sequence")
        if kind == "unary":
            return self.node(s.choose(*_UNARY), [name])
        if kind == "matrix" and len(shape) >= 2 and 0 < shape[-1] <= 16:
            weight = s.weight("float32", [shape[-1], shape[-1]], FINITE)
            return self.node("Tanh", [self.node("MatMul", [name, self.outer(weight)])])
        if kind == "sequence" and shape:
            made = self.node("SequenceConstruct", [name, self.node("Neg", [name]), name])
            if s.chance(0.5):
                made = self.node("SequenceErase", [made])
            joined = self.node("ConcatFromSequence", [made], axis=0, new_axis=1)
            axes = self.outer(s.parameter([0], constant=1.0))
            return self.node("ReduceSum", [joined, axes], keepdims=0)
        other = s.pick("float32", s.broadcast(shape), spread=FINITE)
        return self.node(s.choose(*_BINARY), [name, self.outer(other)])

    def steps(self, name: str, shape: Sequence[int], least: int = 1) -> str:
        """Compute several things, one from the other."""
        for _ in range(self.s.choose(least, least, least + 1, least + 2)):
            name = self.step(name, shape)
        return name

    def graph(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """Return the whole."""
        return helper.make_graph(self.nodes, self.prefix, list(inputs), list(outputs))


def _info(
    name: str, shape: Sequence[int | None] | None = None, kind: int = _KIND
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _start(s: Sketch, least: int = 0) -> Value:
    if not s.since(_SINCE):
        raise Skip
    return s.pick("float32", min_rank=least, max_rank=4, spread=FINITE)


def _prefix(s: Sketch, kind: str) -> str:
    """Return an unused name, with which the names of inner graphs begin."""
    return f"{kind}{s.rng.getrandbits(32):x}"


@pattern
def branch(s: Sketch) -> None:
    """An If on a constant or an input, whose branches capture outer values."""
    x = _start(s)
    condition = s.source(np.array(s.chance(0.5)), None, constant=0.3)
    graphs, captured = [], [x]
    for side in ("then", "else"):
        body = _Body(s, _prefix(s, side))
        result = body.steps(x.name, x.shape)
        if s.chance(0.2):  # another rank in this branch
            result = body.node("Reshape", [result, body.outer(s.parameter([-1], constant=1.0))])
        graphs.append(body.graph([], [_info(result)]))
        captured += body.captured
    s.node("If", [condition], captured=captured, then_branch=graphs[0], else_branch=graphs[1])


@pattern
def loop(s: Sketch) -> None:
    """A Loop of few iterations, with a limit, a condition or both, and sometimes scan outputs."""
    x = _start(s)
    body = _Body(s, _prefix(s, "loop"))
    turn, going, state = (f"{body.prefix}_{name}" for name in ("turn", "going", "state"))
    limit = s.parameter(s.choose(0, 1, 2, 3, 5), constant=0.5) if s.chance(0.8) else None
    if limit is None or s.chance(0.5):
        last = body.outer(s.parameter(s.choose(0, 1, 3), constant=0.5))
        still = body.node("Less", [turn, last])
    else:
        still = body.node("Identity", [going])
    new = body.steps(state, x.shape)
    unknown = [None] * x.rank
    results = [_info(still, [], TensorProto.BOOL), _info(new, unknown)]
    first = s.source(np.array(s.chance(0.9)), None, constant=0.7) if s.chance(0.5) else None
    turns = (limit is None or int(limit.array) > 0) and (first is None or bool(first.array))
    if s.chance(0.5):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype("float32"))
        number = body.node("Cast", [turn], to=kind)
        scanned = body.node("Add", [new, number])
        # Without iterations, the declared sizes are those of a row.
        results.append(_info(scanned, unknown if turns else x.shape))
    formal = [
        _info(turn, [], TensorProto.INT64),
        _info(going, [], TensorProto.BOOL),
        _info(state, unknown),
    ]
    graph = body.graph(formal, results)
    s.node("Loop", [limit, first, x], len(results) - 1, captured=body.captured, body=graph)


@pattern
def scan(s: Sketch) -> None:
    """A Scan with a state, forwards or backwards, over an axis."""
    x = _start(s, least=1)
    axis = s.rng.randrange(x.rank)
    part = [size for place, size in enumerate(x.shape) if place != axis]
    if not 0 < x.shape[axis] <= 33:
        raise Skip
    initial = s.pick("float32", part, spread=FINITE)
    body = _Body(s, _prefix(s, "scan"))
    state, slice_ = (f"{body.prefix}_{name}" for name in ("state", "slice"))
    new = body.node("Tanh", [body.node("Add", [state, body.steps(slice_, part)])])
    out = body.steps(new, part)
    unknown = [None] * len(part)  # without a rank, onnxruntime may not know what to stack
    results = [_info(new, unknown), _info(out, unknown)]
    graph = body.graph([_info(state, unknown), _info(slice_, unknown)], results)
    s.node(
        "Scan",
        [initial, x],
        2,
        captured=body.captured,
        body=graph,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[s.choose(0, 0, 1)],
        scan_output_axes=[s.rng.randrange(len(part) + 1)],
        scan_output_directions=[s.choose(0, 0, 1)],
    )


@pattern
def found(s: Sketch) -> None:
    """The positions of true or nonzero elements, and the elements gathered there."""
    x = s.pick(s.choose("int32", "int64", "bool"), min_rank=1, max_rank=4)
    places = s.one("NonZero", x)
    if s.chance(0.5) and s.since(12):
        y = s.pick("float32", x.shape)
        s.one("GatherND", y, s.one("Transpose", places, perm=[1, 0]))


@pattern
def kept(s: Sketch) -> None:
    """Compress along an axis, or flat."""
    if not s.since(9):
        raise Skip
    x = s.pick("float32", min_rank=1, max_rank=4, spread=FINITE)
    axis = s.axis(x.rank) if s.chance(0.7) else None
    length = x.array.size if axis is None else x.shape[axis]
    flags = s.draws.random(length) < s.choose(0.0, 0.3, 0.7, 1.0)
    s.one("Compress", x, s.source(flags, None, constant=0.5), axis=axis)


@pattern
def distinct(s: Sketch) -> None:
    """Unique of integers, flat or along an axis."""
    if not s.since(11):
        raise Skip
    in_order = s.choose(0, 1)
    # The reference evaluator gets unsorted results wrong, and onnxruntime supports few types.
    x = s.pick(s.choose("int64", "int32") if in_order else "int64", min_rank=1, max_rank=3)
    axis = s.axis(x.rank) if in_order and s.chance(0.4) else None
    s.node("Unique", [x], s.choose(1, 4), axis=axis, sorted=in_order)
