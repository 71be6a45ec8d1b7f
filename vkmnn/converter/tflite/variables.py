"""What a TFLite interpreter keeps between runs: variables, and tensors that operators write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkmnn.converter.nodes import Scope
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
        output: what the output is called that has its value after a run.
    """

    name: str
    dtype: int
    initial: Array
    value: str
    output: str = ""


class Variables:
    """The variables of a model, by name."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}

    def tensor(self, subgraph: Subgraph, number: int) -> None:
        """Declare a tensor that an operator keeps; it begins with zeros."""

    def finish(self, scope: Scope) -> list[State]:
        """Return the variables, each with an output that has its last value."""
        return []
