"""Replaces Loops and Scans whose body is the cell of a GRU, LSTM or RNN by that operator.

tf2onnx writes Keras's recurrent layers as loops like these. The body is compared as a formula, so
the order of gates and the form of biases and products do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.converter.onnx.known import Known
from vkmnn.converter.onnx.loops.cells import (
    Atom,
    Bound,
    Buffer,
    Count,
    Formula,
    Formulas,
    Lifted,
    Linear,
    Matrix,
    Outer,
    Product,
    Row,
    Stored,
    Sum,
    atom,
)
from vkmnn.converter.onnx.loops.unroll import Unrolled, Ways, Writer, ways_of
from vkmnn.converter.onnx.names import Names
from vkmnn.ir import DType

if TYPE_CHECKING:
    import onnx

_UNLIMITED = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class Gate:
    """activation(x · input + h · state + bias + state_bias)."""

    kind: str
    input: Matrix | None
    state: Matrix
    bias: Matrix
    state_bias: Matrix | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent cell.

    Attributes:
        op: the operator: GRU, LSTM or RNN.
        gates: the gates, in ONNX's order.
        row: the row of the input that the gates read.
        h: the number of the carried value that is the hidden state.
        c: the number of the one that is the cell state.
        linear: whether a GRU resets the product with the state (linear_before_reset).
        out: the activation of an LSTM's cell state.
    """

    op: str
    gates: tuple[Gate, ...]
    row: Atom
    h: int
    c: int = -1
    linear: bool = False
    out: str = ""

    @property
    def activations(self) -> list[str]:
        """The value of the operator's attribute `activations`."""
        kinds = [gate.kind for gate in self.gates]
        if self.op == "RNN":
            return kinds
        return [kinds[0], kinds[2 if self.op == "GRU" else 3], *[self.out] * (self.op == "LSTM")]


def as_recurrent(
    node: onnx.NodeProto, name: str, known: Known, tensors: Names, ops: Names
) -> Unrolled | None:
    """Return the nodes that replace a Loop or Scan of a recurrent cell; None for other loops.

    The arguments are those of `unroll`.
    """
    body = next((a.g for a in node.attribute if a.name == "body"), None)
    if body is None or not any(inner.op_type in ("MatMul", "Gemm") for inner in body.node):
        return None
    if known.opsets.get("", 1) < 9 and node.op_type == "Scan":
        return None
    ways = ways_of(node, body, len(node.input)) if node.op_type == "Scan" else None
    flags = 0 if ways else 2
    given = list(node.input) if ways else [*node.input, "", ""][: max(2, len(node.input))]
    if node.op_type == "Scan" and ways is None:
        return None
    states = ways.states if ways else len(given) - 1  # a Loop's body also returns its condition
    if len(body.input) != len(given) or len(body.output) < states or not all(given[flags:]):
        return None
    reader = _Reader(body, given, known, ways)
    return reader.written(node, Writer(name, body, known, tensors, ops))


class _Reader:
    """Recognises the cell of one loop, and writes its operator."""

    def __init__(
        self, body: onnx.GraphProto, given: list[str], known: Known, ways: Ways | None
    ) -> None:
        self._body = body
        self._given = given
        self._known = known
        self._ways = ways
        flags = 0 if ways else 2
        states = ways.states if ways else len(given) - 2
        self._carried = given[flags : flags + states]
        self._formal = [value.name for value in body.input][flags : flags + states]
        skip = 0 if ways else 1
        self._made = [value.name for value in body.output][skip : skip + states]
        self._stacked = [value.name for value in body.output][skip + states :]
        shapes = [self._shape(one) for one in self._carried]
        widths = {
            place: shape[1]
            for place, shape in enumerate(shapes)
            if shape and len(shape) == 2 and isinstance(shape[1], int)
        }
        self.f = Formulas(known.value, self._shape, widths, known.opsets)

    def _shape(self, name: str) -> Sequence[object] | None:
        info = self._known.info(name)
        return None if info is None or info.shape is None else tuple(info.shape)

    def _start(self) -> None:
        """Assign values to the body's inputs."""
        names = self.f.names
        makers = {out: inner for inner in self._body.node for out in inner.output}
        for place, (formal, made, source) in enumerate(
            zip(self._formal, self._made, self._carried, strict=True)
        ):
            while made in makers and makers[made].op_type == "Identity":
                made = makers[made].input[0]
            first = self._known.value(source)
            if made == formal:
                names[formal] = Outer(source) if first is None else first
            elif first is not None and first.size == 1 and first.dtype.kind in "iu":
                names[formal] = Count(int(first.reshape(-1)[0]), first.ndim)
            else:
                info = self._known.info(source)
                real = info is not None and info.dtype is DType.FLOAT32
                rank = len(info.shape) if real and info and info.shape is not None else 0
                kinds: dict[int, Formula] = {2: atom("h", place), 3: Buffer(place)}
                names[formal] = kinds.get(rank)
        if self._ways is None:
            turn, going = (value.name for value in self._body.input[:2])
            dims = self._body.input[0].type.tensor_type.shape.dim
            names[turn], names[going] = Count(0, len(dims)), Bound(())
        else:
            sources = self._given[self._ways.states :]
            formal = [value.name for value in self._body.input][self._ways.states :]
            for one, source, axis in zip(formal, sources, self._ways.in_axes, strict=True):
                shape = self._shape(source)
                fits = shape is not None and len(shape) == 3 and axis % 3 != 2
                names[one] = Row(source, axis % 3, 0, False) if fits else None

    def written(self, node: onnx.NodeProto, writer: Writer) -> Unrolled | None:
        """Return the nodes that replace the loop; None if it is not a recurrent cell."""
        self._start()
        self.f.read(self._body)
        values = [self.f.get(name) for name in self._made]
        cell = _cell(self.f, values)
        if cell is None:
            return None
        h_next = values[cell.h]
        states = {cell.h, cell.c}
        for place, (formal, value) in enumerate(zip(self._formal, values, strict=True)):
            start = self.f.names[formal]
            if place in states or isinstance(start, np.ndarray | Outer):
                continue
            if isinstance(value, Stored) and isinstance(start, Buffer):
                if value.place != place or not _same(value.value, h_next):
                    return None
                continue
            if isinstance(value, Lifted) and isinstance(start, Buffer) and value.axis == 0:
                if not _same(value.value, h_next):
                    return None
                continue
            if not isinstance(start, Count) or not isinstance(value, Count):
                return None
            if value.offset != start.offset + 1:
                return None
        if any(not _same(self.f.get(name), h_next) for name in self._stacked):
            return None
        reverse = self._direction()
        if reverse is None:
            return None
        count = self._count(writer)
        if count is None or not self._has_rows(cell, count):
            return None
        self._write(node, cell, count, reverse, writer)
        writer.made.kept.clear()  # no tensor of the body is needed
        return writer.made

    def _direction(self) -> bool | None:
        """Return whether a Scan runs backwards; None if its inputs and outputs differ in it."""
        if self._ways is None:
            return False
        ways = {*self._ways.in_back, *self._ways.out_back}
        plain = all(axis == 0 for axis in self._ways.out_axes)
        return ways.pop() if len(ways) == 1 and plain else None

    def _has_rows(self, cell: Cell, count: int | str) -> bool:
        """Return whether the input has a row for each iteration, unless `count` is computed.

        The operator would read fewer rows if the loop counted from the end, or failed.
        """
        _, source, axis, offset = cell.row
        size = (self._shape(source) or (None,) * 3)[axis]
        if offset < 0:
            return False
        if not count or isinstance(count, str):
            return True
        return isinstance(size, int) and offset + count <= size

    def _count(self, writer: Writer) -> int | str | None:
        """Return the number of iterations, 0 for all rows, or a vector's name; None if unknown."""
        if self._ways is not None:
            return 0
        bound = self.f.get(self._body.output[0].name)
        if isinstance(bound, np.ndarray) and bound.size == 1:
            if not bound.reshape(-1)[0]:
                return None
            bound = Bound(())
        if not isinstance(bound, Bound):
            return None
        limit, first = self._given[:2]
        ends: list[int | str] = []
        if limit:
            value = self._known.value(limit)
            ends.append(limit if value is None else int(value.reshape(-1)[0]))
        # An iteration's condition decides whether the next one runs.
        for end, offset in bound.limits:
            if isinstance(end, int):
                ends.append(max(1, end - offset + 1))
            else:
                ends.append(self._moved(end, 1 - offset, writer))
        begins = self._known.value(first) if first else np.array(True)
        if begins is not None and not begins.reshape(-1)[0]:
            return None
        numbers = [min(one, _UNLIMITED) for one in ends if isinstance(one, int)]
        names = [self._vector(one, writer) for one in ends if isinstance(one, str)]
        if not numbers and not names:
            return None
        if not names and begins is not None:
            return max(0, min(numbers)) or None
        parts = [*names, *(self._constant(min(numbers), writer) for _ in numbers[:1])]
        total = parts[0] if len(parts) == 1 else writer.glue("Min", parts)
        total = writer.glue("Max", [total, self._constant(0, writer)])
        if begins is None:
            total = writer.glue("Mul", [total, self._vector(first, writer)])
        return total

    def _constant(self, number: int, writer: Writer) -> str:
        return self._known.constant(np.array([number], np.int64))

    def _vector(self, name: str, writer: Writer) -> str:
        """Write a scalar as a vector of int64, and return its name."""
        flat = writer.glue("Reshape", [name, self._constant(-1, writer)])
        return writer.glue("Cast", [flat], to=7)

    def _moved(self, name: str, by: int, writer: Writer) -> str:
        """Write the number of iterations that a limit allows, at least one, and return its name."""
        sum_ = writer.glue("Add", [self._vector(name, writer), self._constant(by, writer)])
        return writer.glue("Max", [sum_, self._constant(1, writer)])

    # --- the nodes -------------------------------------------------------------------------------

    def _write(
        self, node: onnx.NodeProto, cell: Cell, count: int | str, reverse: bool, writer: Writer
    ) -> None:
        known = self._known
        _, source, axis, offset = cell.row
        shape = self._shape(source) or (None,) * 3
        x = writer.glue("Transpose", [source], perm=[1, 0, 2]) if axis == 1 else source
        if offset or isinstance(count, str) or (count and count != shape[axis]):
            begin = self._constant(offset, writer)
            end = (
                self._constant(offset + count, writer)
                if isinstance(count, int)
                else (writer.glue("Add", [count, begin]) if offset else count)
            )
            x = writer.glue("Slice", [x, begin, end, self._constant(0, writer)])
        width = len(cell.gates[0].state)
        batch = shape[1 - axis]
        zero, one = self._constant(0, writer), self._constant(1, writer)
        firsts = []
        for place in (cell.h, cell.c)[: 2 if cell.op == "LSTM" else 1]:
            start = self._carried[place]
            if batch is None or self._shape(start) != (batch, width):
                rows = writer.glue("Slice", [writer.glue("Shape", [x]), one, self._two(), zero])
                size = writer.glue("Concat", [rows, self._constant(width, writer)], axis=0)
                start = writer.glue("Expand", [start, size])
            firsts.append(writer.glue("Unsqueeze", [start, zero]))
        weights = [known.constant(array) for array in _weights(cell, self._columns(cell, shape))]
        results = [writer.tensor(f"{cell.op}_{part}") for part in ("y", "h", "c")]
        more = {"linear_before_reset": int(cell.linear)} if cell.op == "GRU" else {}
        writer.node(
            cell.op, [x, *weights, "", *firsts], results[: 3 if cell.op == "LSTM" else 2],
            hidden_size=width, activations=cell.activations,
            direction="reverse" if reverse else "forward", **more,
        )  # fmt: skip
        outputs = [*node.output, *[""] * len(self._body.output)]
        finals = {cell.h: results[1], cell.c: results[2]}
        for place, output in enumerate(outputs[: len(self._carried)]):
            if not output:
                continue
            if place in finals:
                writer.glue("Squeeze", [finals[place], zero], output)
            elif isinstance(self.f.get(self._made[place]), Lifted):  # the last row alone
                writer.glue("Identity", [results[1]], output)
            else:
                self._hand_out(place, x, results[0], output, writer)
        for output in outputs[len(self._carried) : len(self._carried) + len(self._stacked)]:
            if output:
                writer.glue("Squeeze", [results[0], one], output)

    def _two(self) -> str:
        return self._known.constant(np.array([2], np.int64))

    def _columns(self, cell: Cell, shape: Sequence[object]) -> int:
        """Return the number of columns of the input."""
        found = [len(gate.input) for gate in cell.gates if gate.input is not None]
        return found[0] if found else int(str(shape[2]))

    def _hand_out(self, place: int, x: str, all_: str, output: str, writer: Writer) -> None:
        """Write the last value of a counter, a buffer, or a value that never changes."""
        start, source = self.f.names[self._formal[place]], self._carried[place]
        stored = self.f.get(self._made[place])
        if isinstance(stored, Stored):
            self._hand_out_rows(stored, x, all_, output, writer)
            return
        if not isinstance(start, Count):
            writer.glue("Identity", [source], output)
            return
        first = self._known.value(source)
        assert first is not None
        rows = [writer.glue("Shape", [x]), *(self._constant(n, writer) for n in (0, 1, 0))]
        kind = 7 if first.itemsize == 8 else 6
        steps = writer.glue("Cast", [writer.glue("Slice", rows)], to=kind)
        total = writer.glue("Add", [steps, self._known.constant(first.reshape(1))])
        sizes = self._known.constant(np.array(first.shape, np.int64))
        writer.glue("Reshape", [total, sizes], output)

    def _hand_out_rows(
        self, stored: Stored, x: str, all_: str, output: str, writer: Writer
    ) -> None:
        """Write a buffer with the rows of all iterations."""
        source, zero = self._carried[stored.place], self._constant(0, writer)
        rows = writer.glue("Squeeze", [all_, self._constant(1, writer)])
        if stored.axis == 1:
            rows = writer.glue("Transpose", [rows], perm=[1, 0, 2])
        if stored.offset is None:
            writer.glue("Concat", [source, rows], output, axis=stored.axis)
            return
        begin = self._constant(stored.offset, writer)
        shape = writer.glue("Shape", [x])
        steps = writer.glue("Slice", [shape, zero, self._constant(1, writer), zero])
        end = writer.glue("Add", [steps, begin])
        before = writer.glue("Slice", [source, zero, begin, zero])
        after = writer.glue("Slice", [source, end, self._constant(_UNLIMITED, writer), zero])
        writer.glue("Concat", [before, rows, after], output, axis=0)


def _weights(cell: Cell, columns: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return W, R and B of ONNX's operators."""
    inputs, states, biases, more = [], [], [], []
    for gate in cell.gates:
        none = np.zeros((columns, gate.bias.size), gate.bias.dtype)
        inputs.append((none if gate.input is None else gate.input).T)
        states.append(gate.state.T)
        biases.append(gate.bias)
        more.append(np.zeros_like(gate.bias) if gate.state_bias is None else gate.state_bias)
    w, r = (np.ascontiguousarray(np.concatenate(many))[None] for many in (inputs, states))
    return w, r, np.concatenate([*biases, *more])[None]


def _same(one: Formula, other: Formula) -> bool:
    return one is other or (isinstance(one, Sum) and isinstance(other, Sum) and one == other)


# --- cells ---------------------------------------------------------------------------------------


def _cell(f: Formulas, values: Sequence[Formula]) -> Cell | None:
    """Return the cell that computes the carried values; None if there is none."""
    sums = {place: one for place, one in enumerate(values) if isinstance(one, Sum)}
    if len(sums) == 1:
        ((h, value),) = sums.items()
        found = _gru(f, h, value) or _rnn(f, h, value)
    elif len(sums) == 2:
        (a, b) = sums
        found = _lstm(f, a, b, sums) or _lstm(f, b, a, sums)
    else:
        return None
    return _checked(found)


def _checked(cell: Cell | None) -> Cell | None:
    """Return a cell if its matrices fit together, else None."""
    if cell is None:
        return None
    width = len(cell.gates[0].state)
    columns = {len(gate.input) for gate in cell.gates if gate.input is not None}
    square = all(gate.state.shape == (width, width) for gate in cell.gates)
    kinds = {gate.kind for gate in cell.gates[: {"GRU": 2, "LSTM": 3, "RNN": 1}[cell.op]]}
    sizes = all(gate.bias.size == width for gate in cell.gates)
    return cell if square and sizes and len(columns) <= 1 and len(kinds) == 1 and cell.row else None


def _argument(f: Formulas, one: Atom) -> Formula:
    """Return the argument of an activation; None for other atoms."""
    return f.arguments[one[1]] if one[0] not in ("h", "x", "l") else None


def _gate(f: Formulas, one: Atom, h: int) -> tuple[Gate, Atom] | None:
    """Return an activation of a linear form as a gate, and the row that it reads."""
    linear = _argument(f, one)
    if not isinstance(linear, Linear):
        return None
    return _linear_gate(one[0], linear, ((("h", h),)))


def _linear_gate(kind: str, linear: Linear, state: Product) -> tuple[Gate, Atom] | None:
    rows = [key for key in linear.terms if key != state]
    if state not in linear.terms or len(rows) > 1 or any(len(key) != 1 for key in rows):
        return None
    if any(key[0][0] != "x" for key in rows):
        return None
    into = linear.terms[rows[0]] if rows else None
    return Gate(kind, into, linear.terms[state], linear.bias), rows[0][0] if rows else ()


def _row(found: Sequence[tuple[Gate, Atom] | None]) -> Atom | None:
    """Return the row that all gates read; None if there is no single one."""
    rows = {one[1] for one in found if one is not None and one[1]}
    return rows.pop() if len(rows) == 1 and None not in found else None


def _rnn(f: Formulas, h: int, value: Sum) -> Cell | None:
    if len(value.terms) != 1:
        return None
    ((key, factor),) = value.terms.items()
    found = _gate(f, key[0], h) if len(key) == 1 and factor == 1 else None
    return Cell("RNN", (found[0],), found[1], h) if found and found[1] else None


def _gru(f: Formulas, h: int, value: Sum) -> Cell | None:
    """Z · h + (1 - z) · n, or the other way round."""
    state: Atom = ("h", h)
    singles = [key[0] for key in value.terms if len(key) == 1]
    gates = {one for key in value.terms if len(key) == 2 for one in key if one[0] == "Sigmoid"}
    for z in gates:
        for n in {one for key in value.terms for one in key} - {z, state}:
            keep, new = (tuple(sorted((z, one))) for one in (state, n))
            usual: Mapping[Product, float] = {keep: 1.0, (n,): 1.0, new: -1.0}
            turned: Mapping[Product, float] = {new: 1.0, (state,): 1.0, keep: -1.0}
            if value.terms not in (usual, turned) or not singles:
                continue
            update, candidate = _gate(f, z, h), _candidate(f, n, h)
            if update is None or candidate is None:
                return None
            reset, made, linear = candidate
            row = _row([update, reset, made])
            if row is None:
                return None
            first = update[0] if value.terms == usual else _negated(update[0])
            return Cell("GRU", (first, reset[0], made[0]), row, h, linear=linear)
    return None


def _negated(gate: Gate) -> Gate:
    """Return the gate 1 - sigmoid(x), which is sigmoid(-x)."""
    into = None if gate.input is None else -gate.input
    return Gate(gate.kind, into, -gate.state, -gate.bias)


def _candidate(
    f: Formulas, n: Atom, h: int
) -> tuple[tuple[Gate, Atom], tuple[Gate, Atom], bool] | None:
    """Return the reset gate, the candidate's gate, and whether the product is reset."""
    argument, state = _argument(f, n), ("h", h)
    if isinstance(argument, Linear):
        for key in argument.terms:
            if len(key) == 2 and state in key:
                r = key[1 - key.index(state)]
                reset, made = _gate(f, r, h), _linear_gate(n[0], argument, key)
                return (reset, made, False) if reset and made else None
        return None
    if not isinstance(argument, Sum) or set(argument.terms.values()) != {1.0}:
        return None
    pairs = [key for key in argument.terms if len(key) == 2]
    rest = [key[0] for key in argument.terms if len(key) == 1]
    if len(pairs) != 1 or len(rest) > 1 or len(pairs) + len(rest) != len(argument.terms):
        return None
    if [one[0] == "l" for one in pairs[0]].count(True) != 1 or any(one[0] != "l" for one in rest):
        return None
    r, inner = sorted(pairs[0], key=lambda one: one[0] == "l")
    after, reset = f.linears[inner[1]], _gate(f, r, h)
    if set(after.terms) != {(state,)} or reset is None:
        return None
    before = f.linears[rest[0][1]] if rest else Linear({}, np.zeros_like(after.bias))
    rows = list(before.terms)
    if len(rows) > 1 or any(len(key) != 1 or key[0][0] != "x" for key in rows):
        return None
    into = before.terms[rows[0]] if rows else None
    gate = Gate(n[0], into, after.terms[(state,)], before.bias, after.bias)
    return reset, (gate, rows[0][0] if rows else ()), True


def _lstm(f: Formulas, h: int, c: int, sums: Mapping[int, Sum]) -> Cell | None:
    """C' = f · c + i · g, h' = o · act(c')."""
    state, products = ("h", c), list(sums[c].terms)
    if len(products) != 2 or set(sums[c].terms.values()) != {1.0}:
        return None
    forget = next((key for key in products if len(key) == 2 and state in key), None)
    other = next((key for key in products if key != forget), ())
    out = list(sums[h].terms)
    if forget is None or len(other) != 2 or len(out) != 1 or sums[h].terms[out[0]] != 1:
        return None
    last = next((one for one in out[0] if _argument(f, one) == sums[c]), None)
    if last is None or len(out[0]) != 2:
        return None
    o = out[0][1 - out[0].index(last)]
    keep = forget[1 - forget.index(state)]
    for i, g in (other, other[::-1]):
        found = [_gate(f, one, h) for one in (i, o, keep, g)]
        if i[0] != keep[0]:
            continue
        row = _row(found)
        if row is None:
            return None
        gates = tuple(one[0] for one in found if one is not None)
        return Cell("LSTM", gates, row, h, c, out=last[0])
    return None
