"""What nodes know of the file that they are read from, and of what has been read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from vkmnn.base.budget import Meter
from vkmnn.converter.nodes import Scope
from vkmnn.converter.tensorflow.files import GraphFile
from vkmnn.converter.tensorflow.functions import Function, Tensor
from vkmnn.converter.tensorflow.states import Plan, Variables
from vkmnn.converter.tensorflow.tensor_list import TensorList
from vkmnn.ir import Array, Dim

INSIDE = "::"
"""Stands between the name of a node and names in the function that it runs; TensorFlow's names have
no colon."""


class Context(ABC):
    """A file that is read.

    Args:
        file: the graph.
        meter: counts nodes.
        shapes: shapes of inputs that replace the file's.
        plan: what an earlier reading found out.

    Attributes:
        scopes: where nodes go: the main scope, then those of the bodies around the present node.
        handles: variables by the names of the resources that stand for them; "" for other things
            that are no tensors.
        references: handles that are read as tensors, too.
        lists: lists of tensors, by name.
        ranges: the limits of ranges from 0, by name.
        lengths: the tensor whose rows a number counts, by name.
        shaped: the tensor whose shape another is, by name.
        elements: elements of vectors of sizes as far as they are known, by name.
        origins: the tensor that a tensor is the same as, by name.
        refused: tensors behind operators that are not read.
        inputs: element types and shapes of the graph's inputs, by name.
    """

    def __init__(
        self, file: GraphFile, meter: Meter, shapes: Mapping[str, tuple[Dim, ...]], plan: Plan
    ) -> None:
        self.file, self.meter, self.shapes, self.plan = file, meter, shapes, plan
        self.scopes = [Scope()]
        self.found = Plan()
        self.variables = Variables(self.variable, self.scopes, plan, self.found)
        self.handles: dict[str, str] = {}
        self.references: set[str] = set()
        self.lists: dict[str, TensorList] = {}
        self.ranges: dict[str, str] = {}
        self.lengths: dict[str, str] = {}
        self.shaped: dict[str, str] = {}
        self.elements: dict[str, list[int | None]] = {}
        self.origins: dict[str, str] = {}
        self.refused: set[str] = set()
        self.inputs: dict[str, tuple[int, Sequence[int | str | None] | None]] = {}

    @property
    def scope(self) -> Scope:
        """The main scope."""
        return self.scopes[0]

    def alias(self, name: str, output: str) -> bool:
        """Note that a tensor has a second name; return whether there is a tensor at all.

        Lists and resources have none.
        """
        self.origins[output] = self.origins.get(name, name)
        tables: list[dict[str, Any]] = [self.handles, self.lists, self.ranges, self.lengths]
        for table in (*tables, self.shaped, self.elements):
            if name in table:
                table[output] = table[name]
        return name not in self.handles and name not in self.lists

    @abstractmethod
    def variable(self, key: str) -> Array:
        """Return the value of a variable in the SavedModel's files.

        Raises:
            ModelError: it has none.
        """

    @abstractmethod
    def function(self, name: str) -> Function | None:
        """Return a function of the library or one made of control flow; None if there is none."""

    @abstractmethod
    def constant_of(self, function: Function, tensor: Tensor) -> float | None:
        """Return a constant of one element in a function; None for anything else."""

    @abstractmethod
    def inside(self, scope: Scope, name: str) -> AbstractContextManager[None]:
        """Read into the scope of an operator's body; what is assigned there counts only there."""

    @abstractmethod
    def call(
        self,
        function: Function,
        scope: Scope,
        prefix: str,
        arguments: Sequence[str],
        shorter: str | None = None,
    ) -> list[str]:
        """Read a function into a scope; return the names of its results.

        Args:
            function: the function.
            scope: where its nodes go.
            prefix: begins the names of its tensors and nodes.
            arguments: names of the tensors that it is given.
            shorter: begins them where no other tensor has such a name.

        Raises:
            ModelError: it calls itself, or contradicts itself.
        """
