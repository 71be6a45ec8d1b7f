"""LSTM and RNN over steps with markers at the starts of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.converter.caffe.nodes import CaffeLayer, reads
from vkmnn.converter.nodes import FLOAT, Scope, inner_graph

if TYPE_CHECKING:
    import onnx

_GATES = {"LSTM": 4, "RNN": 1}
_STATES = {"LSTM": 2, "RNN": 1}


@reads("LSTM", "RNN")
def recurrent(op: CaffeLayer) -> None:
    """A Scan over steps of x [steps, sequences, …] and markers [steps, sequences].

    A marker of 0 begins a sequence. The final state of a run is the initial one of the next, unless
    the layer has its states as inputs.
    """
    by, states = op.proto.recurrent_param, _STATES[op.type]
    exposed = states if by.expose_hidden else 0
    op.need(2 + exposed, 1 + exposed)
    static = len(op.inputs) - exposed > 2
    size, gates = by.num_output, _GATES[op.type]
    texts = op.sizes(op.inputs[0], 2)[1]
    if size < 1 or texts is None:
        raise op.unreadable("states of no size, or an unknown number of sequences")
    x = _product(op, op.inputs[0], 0, gates * size, [0, 0, -1])
    x = op.make("Add", x, op.weight(1, [gates * size], "biases"))
    number = 2
    if static:
        x = op.make("Add", x, _product(op, op.inputs[2], number, gates * size, [0, -1]))
        number += 1
    hidden = op.weights(number, [gates * size, size], "weights of states").T.copy()
    markers = op.make("Unsqueeze", op.inputs[1], op.constant([2]))
    if exposed:
        begin = [
            op.make("Reshape", name, op.constant([texts, size])) for name in op.inputs[-states:]
        ]
    ends = [op.scope.fresh(op.name) for _ in range(states)]
    if not exposed:
        zeros = np.zeros((texts, size), np.float32)
        begin = [op.state(what, end, zeros) for what, end in zip(("h", "c"), ends, strict=False)]
    rows = op.scope.fresh(op.name)
    body = _body(op, op.scope.constant(hidden, op.name), texts, size)
    op.scope.emit(
        "Scan", [*begin, x, markers], [*ends, rows], op.name, FLOAT, body=body, num_scan_inputs=2
    )
    steps = op.sizes(op.inputs[0])[0]
    op.scope.shapes |= dict.fromkeys(ends, (texts, size)) | {rows: (steps, texts, size)}
    if op.type == "RNN":
        weights = op.weights(number + 1, [size, size], "weights of outputs").T.copy()
        product = op.make("MatMul", rows, op.scope.constant(weights, op.name))
        biased = op.make("Add", product, op.weight(number + 2, [size], "biases of outputs"))
        op.finish("Tanh", biased)
    else:
        op.finish("Identity", rows)
    for name, end in zip(op.outputs[1:], ends[:exposed], strict=False):
        op.scope.emit("Unsqueeze", [end, op.constant([0])], [name], op.name)


def _product(op: CaffeLayer, x: str, blob: int, outputs: int, shape: Sequence[int]) -> str:
    flat = op.make("Reshape", x, op.constant(shape))
    weights = op.weights(blob, [outputs, None], "weights").T.copy()
    return op.make("MatMul", flat, op.scope.constant(weights, op.name))


def _body(op: CaffeLayer, hidden: str, texts: int, size: int) -> onnx.GraphProto:
    """Return the graph of one step."""
    from onnx import helper

    scope = Scope(f"{op.name}/step/")
    states = ["h", "c"][: _STATES[op.type]]
    given = {name: [texts, size] for name in states}
    given |= {"x": [texts, _GATES[op.type] * size], "marker": [texts, 1]}
    names = {name: f"{scope.prefix}{name}" for name in given}
    for name, shape in given.items():
        scope.types[names[name]], scope.shapes[names[name]] = FLOAT, tuple(shape)
    scope.types[hidden], scope.shapes[hidden] = FLOAT, op.scope.shapes[hidden]
    step = CaffeLayer(scope, op.proto, [], [], [], op.file, [])
    h = step.make("Mul", names["h"], names["marker"])
    sums = step.make("Add", names["x"], step.make("MatMul", h, hidden))
    if op.type == "LSTM":
        parts = step.make_several("Split", 4, sums, axis=1, num_outputs=4)
        i, f, o = (step.make("Sigmoid", part) for part in parts[:3])
        kept = step.make("Mul", step.make("Mul", names["marker"], f), names["c"])
        cell = step.make("Add", kept, step.make("Mul", i, step.make("Tanh", parts[3])))
        ends = [step.make("Mul", o, step.make("Tanh", cell)), cell]
    else:
        ends = [step.make("Tanh", sums)]
    results = [*ends, step.make("Identity", ends[0])]
    return inner_graph(
        scope,
        op.scope,
        [helper.make_tensor_value_info(names[name], FLOAT, shape) for name, shape in given.items()],
        [helper.make_tensor_value_info(name, FLOAT, [texts, size]) for name in results],
        f"{op.name}/step",
    )
