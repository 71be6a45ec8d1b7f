"""Operators that read and write variables."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.converter.nodes import Scope
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tflite.nodes import LiteOp, reads
from vkmnn.converter.tflite.reading import read_subgraph
from vkmnn.converter.tflite.states import State
from vkmnn.converter.tflite.subgraph import Subgraph


def assign_tensor(op: LiteOp, number: int, value: str) -> None:
    """Assign a value to the variable that an operator's input refers to.

    Raises:
        UnreadableError: the input is no variable, or the operator stands in a body.
    """
    variables, public = op.subgraph.model.variables, op.inputs[number]
    name = next((one for one, state in variables.states.items() if state.value == public), "")
    if not name:
        raise op.unreadable(f"a state, input {number}, that is not a separate variable")
    variables.assign(op, name, value)
    place = op.table.integers("inputs")[number]
    op.subgraph.names.known[place] = value


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
    """Assign a variable; in a subgraph that runs once, its initial value."""
    op.need(2, 0)
    variables, name, value = op.subgraph.model.variables, _variable(op), op.inputs[1]
    if variables.beginning:
        array = op.value(1)
        if array is None:
            raise op.unreadable("an initial value that is computed")
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
    """Initialise variables; evaluated immediately."""
    variables = op.subgraph.model.variables
    if variables.beginning or variables.depth:
        raise op.unreadable("an initialisation in a branch, a loop or another initialisation")
    model, scope = op.subgraph.model, Scope()
    variables.beginning = True
    model.calls += 1
    read_subgraph(
        Subgraph(model, op.integer("init_subgraph_index"), scope, f"once{model.calls}/", [])
    )
    variables.beginning = False
