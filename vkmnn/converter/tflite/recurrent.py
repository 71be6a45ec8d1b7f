"""Recurrent operators: LSTM over sequences, and single steps of it.

Their state tensors are variables of the model; each operator sets their next value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkmnn.converter.nodes import FLOAT, FLOAT16
from vkmnn.converter.nodes.quantized import QUANTISED, decode, encode
from vkmnn.converter.tflite.nodes import LiteOp, reads
from vkmnn.converter.tflite.variables import assign_tensor

_GATES = "ifco"


@dataclass(frozen=True)
class Direction:
    """Numbers of an LSTM's inputs for one direction; -1 for those that it has not."""

    inputs: int
    recurrent: int
    peepholes: int
    biases: int
    projection: int
    states: tuple[int, int]
    norms: int
    extra: int = -1


def plain(op: LiteOp, number: int) -> str:
    """Return an input as numbers, quantised or not, whatever its element type."""
    tensor, name = op.tensors[number], op.inputs[number]
    if tensor is not None and tensor.quantization is not None:
        return decode(op, name, tensor.quantization)
    return op.cast(name, FLOAT) if op.type_of(name) == FLOAT16 else name


def keep(op: LiteOp, number: int, value: str) -> None:
    """Set the next value of a variable."""
    tensor = op.tensors[number]
    assert tensor is not None
    by = tensor.quantization if tensor.dtype in QUANTISED else None
    made = value if by is None else encode(op, value, by, tensor.dtype)
    assign_tensor(op, number, made)


def turned(op: LiteOp, name: str) -> str:
    """Return a tensor with its first two axes, batch and time, in the other order."""
    return op.make("Transpose", name, perm=[1, 0, 2])


class _Lstm:
    """An LSTM in one direction, as ONNX's LSTM if that is equivalent, else as a Scan."""

    def __init__(self, op: LiteOp, at: Direction) -> None:
        self.op, self.at = op, at
        self.coupled = not op.has(at.inputs)
        self.gates = [n for n, gate in enumerate(_GATES) if gate != "i" or not self.coupled]

    def check(self) -> None:
        """Reject unsupported forms."""
        op, at = self.op, self.at
        for number in self.gates:
            if not op.has(at.inputs + number) or not op.has(at.recurrent + number):
                raise op.damaged("it lacks weights of a gate")
            if not op.has(at.biases + number) and not self._quantised():
                raise op.damaged("it lacks biases of a gate")
        if op.number("cell_clip") or op.number("proj_clip"):
            raise op.unreadable("cells or projections that are clipped")
        if "Unidirectional" in self._options() and op.flag("diagonal_recurrent_tensors"):
            raise op.unreadable("recurrent weights that are diagonal")
        kind = op.member("ActivationFunctionType", "fused_activation_function")
        if kind not in ("TANH", "NONE", "RELU", "RELU6"):
            raise op.unreadable(f"the activation {kind}")

    def _options(self) -> str:
        return self.op.options.kind if self.op.options is not None else ""

    def _quantised(self) -> bool:
        return self.op.quantization(0) is not None

    def run(self, x: str, backwards: bool = False) -> tuple[str, str, str]:
        """Return all outputs with time first, the last output and the last cell."""
        self.check()
        plain = not (self.op.has(self.at.projection) or self._normed() or self.coupled)
        kind = self.op.member("ActivationFunctionType", "fused_activation_function")
        return (self._node if plain and kind in ("TANH", "RELU") else self._scan)(x, backwards)

    def _normed(self) -> bool:
        return self.at.norms >= 0 and any(self.op.has(self.at.norms + n) for n in range(4))

    def _matrix(self, first: int, order: str) -> str:
        names = [plain(self.op, first + _GATES.index(gate)) for gate in order]
        joined = self.op.make("Concat", *names, axis=0)
        return self.op.make("Unsqueeze", joined, self.op.constant([0]))

    def _node(self, x: str, backwards: bool) -> tuple[str, str, str]:
        op, at = self.op, self.at
        order = "iofc"
        weights, recurrent = self._matrix(at.inputs, order), self._matrix(at.recurrent, order)
        biases = self._matrix(at.biases, order)
        zeros = op.make("Mul", biases, op.constant(0, np.float32))
        both = op.make("Concat", biases, zeros, axis=1)
        states = [op.make("Unsqueeze", plain(op, number), op.constant([0])) for number in at.states]
        holes = []
        if at.peepholes >= 0 and op.has(at.peepholes + 1):
            names = [plain(op, at.peepholes + n) for n in (0, 2, 1)]
            joined = op.make("Concat", *names, axis=0)
            holes = [op.make("Unsqueeze", joined, op.constant([0]))]
        kind = op.member("ActivationFunctionType", "fused_activation_function")
        active = {"TANH": "Tanh", "RELU": "Relu"}[kind]
        size = (op.shape(at.states[1]) or (None,))[-1]
        options: dict[str, Any] = {
            "hidden_size": size,
            "direction": "reverse" if backwards else "forward",
            "activations": ["Sigmoid", active, active],
        }
        inputs = [x, weights, recurrent, both, "", *states, *holes]
        made, last, cell = op.make_several("LSTM", 3, *inputs, **options)
        axes = op.constant([0])
        whole = op.make("Squeeze", made, op.constant([1]))
        return whole, op.make("Squeeze", last, axes), op.make("Squeeze", cell, axes)

    def _scan(self, x: str, backwards: bool) -> tuple[str, str, str]:
        """Write the steps one after the other; their number has to be known."""
        op, at = self.op, self.at
        steps = (op.shape_of(x) or (None,))[0]
        if steps is None:
            raise op.unreadable("projections or normalisation over a dynamic number of steps")
        op.subgraph.model.reading.count(20 * steps)
        output, cell = (plain(op, number) for number in at.states)
        sums = {}
        for number in self.gates:
            weights = op.make("Transpose", plain(op, at.inputs + number), perm=[1, 0])
            sums[_GATES[number]] = op.make("MatMul", x, weights)
        made: list[str] = []
        for step in reversed(range(steps)) if backwards else range(steps):
            now = {
                gate: op.make("Gather", total, op.constant(step), axis=0)
                for gate, total in sums.items()
            }
            output, cell = self._step(now, output, cell)
            made.append(op.make("Unsqueeze", output, op.constant([0])))
        ordered = made[::-1] if backwards else made
        return op.make("Concat", *ordered, axis=0), output, cell

    def _step(self, now: dict[str, str], output: str, cell: str) -> tuple[str, str]:
        op = self.op
        one = op.constant(1, np.float32)
        active = self._active
        forget = op.make("Sigmoid", self._gate(now, "f", output, cell, 1))
        if self.coupled:
            entered = op.make("Sub", one, forget)
        else:
            entered = op.make("Sigmoid", self._gate(now, "i", output, cell, 0))
        new = active(self._gate(now, "c", output, cell, -1))
        cell = op.make("Add", op.make("Mul", forget, cell), op.make("Mul", entered, new))
        leaving = op.make("Sigmoid", self._gate(now, "o", output, cell, 2))
        output = op.make("Mul", leaving, active(cell))
        at = self.at.projection
        if op.has(at):
            weights = op.make("Transpose", plain(op, at), perm=[1, 0])
            output = op.make("MatMul", output, weights)
            if op.has(at + 1):
                output = op.make("Add", output, plain(op, at + 1))
        return output, cell

    def _active(self, name: str) -> str:
        kind = self.op.member("ActivationFunctionType", "fused_activation_function")
        return self.op.active(name, kind)

    def _gate(self, now: dict[str, str], gate: str, output: str, cell: str, hole: int) -> str:
        """Return the input of a gate; `hole` is the number of its peephole."""
        op, at, number = self.op, self.at, _GATES.index(gate)
        weights = op.make("Transpose", plain(op, at.recurrent + number), perm=[1, 0])
        total = op.make("Add", now[gate], op.make("MatMul", output, weights))
        if hole >= 0 and at.peepholes >= 0 and op.has(at.peepholes + hole):
            total = op.make("Add", total, op.make("Mul", cell, plain(op, at.peepholes + hole)))
        bias = plain(op, at.biases + number) if op.has(at.biases + number) else ""
        if self._normed():
            total = op.make("LayerNormalization", total, plain(op, at.norms + number), epsilon=1e-8)
        return op.make("Add", total, bias) if bias else total


_FORWARD = Direction(1, 5, 9, 12, 16, (18, 19), 20)


@reads("UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm_sequence(op: LiteOp) -> None:
    """LSTM; output and cell state are kept between runs."""
    op.need(20)
    x = plain(op, 0)
    first = op.flag("time_major")
    made, last, cell = _Lstm(op, _FORWARD).run(x if first else turned(op, x))
    keep(op, 18, last)
    keep(op, 19, cell)
    op.give(made if first else turned(op, made))


@reads("LSTM")
def lstm_step(op: LiteOp) -> None:
    """One step of an LSTM; the basic kernel has one matrix for all gates."""
    if op.member("LSTMKernelType", "kernel_type") == "BASIC":
        _basic_step(op)
        return
    op.need(20)
    x = op.make("Unsqueeze", plain(op, 0), op.constant([0]))
    _, last, cell = _Lstm(op, _FORWARD).run(x)
    keep(op, 18, last)
    keep(op, 19, cell)
    op.give(last, len(op.outputs) - 1)


def _basic_step(op: LiteOp) -> None:
    op.need(5, 2)
    x, before, weights, bias, cell = (plain(op, number) for number in range(5))
    joined = op.make("Concat", x, before, axis=1)
    total = op.make("Gemm", joined, weights, bias, transB=1)
    entered, new, forget, leaving = op.make_several("Split", 4, total, axis=1, num_outputs=4)
    entered, forget, leaving = (op.make("Sigmoid", one) for one in (entered, forget, leaving))
    cell = op.make(
        "Add", op.make("Mul", entered, op.make("Tanh", new)), op.make("Mul", forget, cell)
    )
    op.give(op.make("Mul", leaving, op.make("Tanh", cell)))
    op.give(cell, 1)
    for number, made in ((2, joined), (3, total)):
        if number < len(op.outputs):
            op.give(made, number)


@reads("BIDIRECTIONAL_SEQUENCE_LSTM")
def lstm_both_ways(op: LiteOp) -> None:
    """LSTM in both directions; with merge_outputs, their outputs are concatenated."""
    op.need(39)
    if any(op.has(number) for number in range(39, 48)):
        raise op.unreadable("an auxiliary input")
    x, first = plain(op, 0), op.flag("time_major") if op.options is not None else True
    x = x if first else turned(op, x)
    sides = (Direction(1, 5, 9, 12, 16, (35, 36), -1), Direction(18, 22, 26, 29, 33, (37, 38), -1))
    parts = []
    for at, backwards in zip(sides, (False, True), strict=True):
        made, last, cell = _Lstm(op, at).run(x, backwards)
        keep(op, at.states[0], last)
        keep(op, at.states[1], cell)
        parts.append(made)
    if op.flag("merge_outputs"):
        parts = [op.make("Concat", *parts, axis=2)]
    for number, made in enumerate(parts):
        op.give(made if first else turned(op, made), number)
