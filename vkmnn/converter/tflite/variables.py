"""What a TFLite interpreter keeps between runs: variables, and tensors that operators write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.converter.nodes import Scope
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tflite.nodes import LiteOp, reads
from vkmnn.ir import Array

if TYPE_CHECKING:
    from vkmnn.converter.tflite.model import Subgraph


@dataclass
class State:
    """A variable of a model.

    Attributes:
        name: the input that has its value before a run.
        dtype: its element type.
        initial: its value before the first run.
        value: the tensor that has its present value as operators are read.
        output: the output that has its value after a run.
    """

    name: str
    dtype: int
    initial: Array
    value: str
    output: str = ""


class Variables:
    """The variables of a model.

    Attributes:
        initial: values that the model gives them before its first run, by name.
        states: those that the graph uses.
        handles: the names of variables that resources stand for.
    """

    def __init__(self) -> None:
        self.initial: dict[str, Array] = {}
        self.states: dict[str, State] = {}
        self.handles: dict[str, str] = {}
        self.depth = 0
        self.beginning = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Read the body of a branch or loop, in which nothing is assigned."""
        self.depth += 1
        yield
        self.depth -= 1

    def state(self, scope: Scope, name: str, initial: Array, dtype: int) -> State:
        """Return a variable, which becomes an input where it was not used before."""
        found = self.states.get(name)
        if found is None:
            public = f"state/{name}"
            while public in scope.types or public in scope.taken:
                public += "_"
            scope.reserve([public])
            scope.types[public], scope.shapes[public] = dtype, initial.shape
            found = self.states[name] = State(public, dtype, initial, public)
        return found

    def tensor(self, subgraph: Subgraph, number: int) -> None:
        """Declare a tensor that an operator keeps; it begins with zeros."""
        tensor, name = subgraph.tensors[number], subgraph.names[number]
        if name in self.states:
            return
        if self.depth or not tensor.dtype or None in tensor.shape:
            raise subgraph.model.buffer.fail(f"the variable '{name}' has no fixed place and size")
        shape = [size or 0 for size in tensor.shape]
        meter = subgraph.model.reading.meter
        meter.charge(prod(shape) * NUMPY_TYPES[tensor.dtype].itemsize, "a variable", name)
        by = tensor.quantization
        zero = 0 if by is None else int(by.zero[0])
        initial = np.full(shape, zero, NUMPY_TYPES[tensor.dtype])
        state = self.state(subgraph.scope, name, initial, tensor.dtype)
        subgraph.names.known[number] = state.name

    def assign_tensor(self, op: LiteOp, number: int, value: str) -> None:
        """Give the variable that an operator's input is another value.

        Raises:
            UnreadableError: the input is no variable, or the operator stands in a body.
        """
        public = op.inputs[number]
        name = next((one for one, state in self.states.items() if state.value == public), "")
        if not name:
            raise op.unreadable(f"a state, input {number}, that is not a variable of its own")
        self.assign(op, name, value)
        place = op.table.integers("inputs")[number]
        op.subgraph.names.known[place] = value

    def assign(self, op: LiteOp, name: str, value: str) -> None:
        """Give a variable of a name another value.

        Raises:
            UnreadableError: the operator stands in a branch or in a loop.
        """
        if self.depth:
            raise op.unreadable("a variable that is assigned to in a branch or in a loop")
        self.states[name].value = value

    def finish(self, scope: Scope) -> list[State]:
        """Return the variables, each with an output that has its last value."""
        for state in self.states.values():
            state.output = scope.fresh(f"{state.name}/next")
            scope.copy(state.value, state.output)
        return list(self.states.values())


@reads("VAR_HANDLE")
def handle(op: LiteOp) -> None:
    """A resource: the variable of a name."""
    op.need(0)
    name = f"{op.text('container')}/{op.text('shared_name')}".strip("/")
    op.subgraph.model.variables.handles[op.outputs[0]] = name


def _variable(op: LiteOp) -> str:
    found = op.subgraph.model.variables.handles.get(op.inputs[0])
    if found is None:
        raise op.unreadable("a resource that is not a variable of the model")
    return found


@reads("ASSIGN_VARIABLE")
def assign(op: LiteOp) -> None:
    """Another value of a variable; in what runs once, its first value."""
    op.need(2, 0)
    variables, name, value = op.subgraph.model.variables, _variable(op), op.inputs[1]
    if variables.beginning:
        array = op.value(1)
        if array is None:
            raise op.unreadable("a first value that is computed")
        variables.initial[name] = array
        return
    _state(op, name, op.shape_of(value), op.type_of(value))
    variables.assign(op, name, value)


@reads("READ_VARIABLE")
def read(op: LiteOp) -> None:
    """The present value of a variable."""
    op.need(1)
    name, result = _variable(op), op.results[0]
    state = _state(op, name, result.shape, result.dtype)
    op.scope.types[state.value], op.scope.shapes[state.value] = state.dtype, state.initial.shape
    op.scope.emit("Identity", [state.value], op.outputs[:1], op.name)


def _state(op: LiteOp, name: str, shape: tuple[int | None, ...] | None, dtype: int) -> State:
    variables = op.subgraph.model.variables
    initial = variables.initial.get(name)
    if initial is None:
        if name not in variables.states and (shape is None or None in shape):
            raise op.unreadable(
                f"the variable '{name}', of which neither a value nor a size is known"
            )
        op.charge(prod(size or 0 for size in shape or ()) * NUMPY_TYPES[dtype].itemsize)
        initial = np.zeros([size or 0 for size in shape or ()], NUMPY_TYPES[dtype])
    return variables.state(op.subgraph.model.scope, name, initial, dtype)


@reads("CALL_ONCE")
def call_once(op: LiteOp) -> None:
    """What gives variables their first values, which is read at once."""
    from vkmnn.converter.tflite.model import Subgraph

    variables = op.subgraph.model.variables
    if variables.beginning or variables.depth:
        raise op.unreadable("a beginning in a branch, a loop or another beginning")
    model, scope = op.subgraph.model, Scope()
    variables.beginning = True
    model.calls += 1
    Subgraph(model, op.integer("init_subgraph_index"), scope, f"once{model.calls}/", []).read()
    variables.beginning = False
