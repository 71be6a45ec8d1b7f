"""An operator of a file, and how a reader of it writes nodes of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.converter.nodes.scope import FLOAT, INT64, NUMPY_TYPES, Scope
from vkmnn.errors import ConversionError, ModelError, plural
from vkmnn.ir import Array


class UnreadableError(ConversionError):
    """A use of an operator that is not supported; the message is the reason."""


class SourceOp:
    """An operator of a file; formats add access to its parameters.

    Attributes:
        scope: the scope for its nodes.
        type: its type, as the format calls it.
        name: its name, for messages and for the nodes that it becomes.
        inputs: names of its inputs; "" for one that is absent.
        outputs: names of its outputs.
    """

    def __init__(
        self,
        scope: Scope,
        type: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        self.scope, self.type, self.name = scope, type, name
        self.inputs, self.outputs = list(inputs), list(outputs)

    def need(self, inputs: int, outputs: int = 1) -> None:
        """Check that it has at least this many inputs and outputs.

        Raises:
            ModelError: it has fewer.
        """
        if len(self.inputs) < inputs or len(self.outputs) < outputs:
            raise self.damaged(
                f"it has {plural(len(self.inputs), 'input')} and "
                f"{plural(len(self.outputs), 'output')}, not {inputs} and {outputs}"
            )

    def damaged(self, reason: str, hint: str | None = None) -> ModelError:
        """Return the error for an operator that contradicts itself."""
        return ModelError(reason, op=self.type, node=self.name, hint=hint)

    def unreadable(self, reason: str) -> UnreadableError:
        """Return the error for an unsupported use of the operator."""
        return UnreadableError(reason, op=self.type, node=self.name)

    def has(self, number: int) -> bool:
        """Return whether it has an input of that number."""
        return number < len(self.inputs) and bool(self.inputs[number])

    def value(self, number: int) -> Array | None:
        """Return an input that is a constant; None for any other, and for one that is absent."""
        if number >= len(self.inputs):
            return None
        return self.scope.constants.get(self.inputs[number])

    def integers(self, number: int) -> list[int] | None:
        """Return an input that is a constant as a list."""
        found = self.value(number)
        return None if found is None else [int(one) for one in found.reshape(-1)]

    def type_of(self, name: str) -> int:
        """Return the element type of a tensor."""
        return self.scope.types.get(name, FLOAT)

    def shape_of(self, name: str) -> tuple[int | None, ...] | None:
        """Return the known sizes of a tensor, None where even the rank is unknown."""
        return self.scope.shapes.get(name)

    def rank(self, number: int) -> int | None:
        """Return the rank of an input; None if it is unknown."""
        shape = self.scope.shapes.get(self.inputs[number])
        return None if shape is None else len(shape)

    def known_rank(self, number: int = 0) -> int:
        """Return how many axes an input has.

        Raises:
            UnreadableError: it is not known.
        """
        rank = self.rank(number)
        if rank is None:
            raise self.unreadable("an input of unknown rank")
        return rank

    def settled(self, number: int, what: str) -> list[int]:
        """Return an input that has to be a constant as a list.

        Raises:
            UnreadableError: it is computed.
        """
        found = self.integers(number)
        if found is None:
            raise self.unreadable(f"{what} computed at run time")
        return found

    def long(self, number: int) -> str:
        """Return an input as integers of 64 bits."""
        return self.cast(self.inputs[number], INT64)

    def vector(self, number: int) -> str:
        """Return an input as a vector of integers of 64 bits."""
        found = self.value(number)
        if found is not None:
            return self.constant(found.reshape(-1))
        return self.make("Reshape", self.long(number), self.constant([-1]))

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant and return its name."""
        return self.scope.constant(np.array(values, dtype), self.name)

    def make(
        self, op: str, *inputs: str, dtype: int | None = None, domain: str = "", **attributes: Any
    ) -> str:
        """Add a node whose only output is a new tensor, and return the tensor's name."""
        name = self.scope.fresh(self.name)
        self.scope.emit(op, inputs, [name], self.name, dtype, domain, **attributes)
        return name

    def make_several(self, op: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several outputs, all new tensors, and return their names."""
        names = [self.scope.fresh(self.name) for _ in range(count)]
        self.scope.emit(op, inputs, names, self.name, **attributes)
        return names

    def finish(
        self, op: str, *inputs: str, dtype: int | None = None, domain: str = "", **attributes: Any
    ) -> None:
        """Add the node that produces the operator's first output."""
        self.need(0)
        self.scope.emit(op, inputs, self.outputs[:1], self.name, dtype, domain, **attributes)

    def cast(self, name: str, dtype: int) -> str:
        """Return a tensor converted to an element type."""
        if self.type_of(name) == dtype:
            return name
        array = self.scope.constants.get(name)
        if array is not None and dtype == INT64:
            return self.constant(array)
        return self.make("Cast", name, dtype=dtype, to=dtype)

    def finish_as(self, dtype: int, name: str) -> None:
        """Use a tensor, converted to an element type, as the operator's output."""
        if self.type_of(name) == dtype:
            self.finish("Identity", name)
        else:
            self.finish("Cast", name, dtype=dtype, to=dtype)

    def active(self, name: str, kind: str) -> str:
        """Return a tensor after an activation: NONE, RELU, RELU6, RELU_N1_TO_1 or TANH.

        Raises:
            UnreadableError: another one.
        """
        operator, operands = self._activation(name, kind)
        return self.make(operator, name, *operands) if operator != "Identity" else name

    def finish_active(self, name: str, kind: str) -> None:
        """Make a tensor, after an activation as in `active`, the operator's output."""
        operator, operands = self._activation(name, kind)
        self.finish(operator, name, *operands)

    def _activation(self, name: str, kind: str) -> tuple[str, list[str]]:
        """Return ONNX's operator for an activation, and its operands after the tensor."""
        if kind in _LIMITS:
            dtype = NUMPY_TYPES[self.type_of(name)]
            return "Clip", [self.constant(limit, dtype) for limit in _LIMITS[kind]]
        if kind not in _ACTIVATIONS:
            raise self.unreadable(f"the activation {kind or 'of that number'}")
        return _ACTIVATIONS[kind], []


_LIMITS = {"RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}
_ACTIVATIONS = {"NONE": "Identity", "RELU": "Relu", "TANH": "Tanh"}
