"""State of a TFLite interpreter between runs: variables, and tensors that operators write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np

from vkmnn.base.budget import Meter
from vkmnn.converter.nodes import Scope, SourceOp
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tflite.tensors import LiteTensor
from vkmnn.errors import ModelError
from vkmnn.ir import Array


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
        handles: the names of variables to which resources refer.
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
        """Return a variable, which becomes an input on first use."""
        found = self.states.get(name)
        if found is None:
            public = f"state/{name}"
            while public in scope.types or public in scope.taken:
                public += "_"
            scope.reserve([public])
            scope.types[public], scope.shapes[public] = dtype, initial.shape
            found = self.states[name] = State(public, dtype, initial, public)
        return found

    def tensor(self, scope: Scope, name: str, tensor: LiteTensor, meter: Meter) -> str:
        """Declare a state tensor of an operator, initially zero; return its input.

        Raises:
            ModelError: its size is open, or it stands in a branch or in a loop.
        """
        if self.depth or not tensor.dtype or None in tensor.shape:
            raise ModelError(
                f"the variable '{name}' has no fixed size, or is inside a branch or loop",
                hint="convert the model again, or copy the file again",
            )
        shape = [size or 0 for size in tensor.shape]
        meter.charge(prod(shape) * NUMPY_TYPES[tensor.dtype].itemsize, "a variable", name)
        by = tensor.quantization
        zero = 0 if by is None else int(by.zero[0])
        initial = np.full(shape, zero, NUMPY_TYPES[tensor.dtype])
        return self.state(scope, name, initial, tensor.dtype).name

    def assign(self, op: SourceOp, name: str, value: str) -> None:
        """Set the value of a named variable.

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
