"""A file of TensorFlow as its nodes are read into scopes, function by function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from vkmnn.base.budget import Meter
from vkmnn.converter.nodes import Reading, Scope
from vkmnn.converter.tensorflow.context import INSIDE, Context
from vkmnn.converter.tensorflow.control import inline
from vkmnn.converter.tensorflow.dilation import joined
from vkmnn.converter.tensorflow.files import GraphFile, array_of
from vkmnn.converter.tensorflow.functions import (
    MOST_OUTPUTS,
    Function,
    Node,
    Tensor,
    output_counts,
    read_function,
)
from vkmnn.converter.tensorflow.nodes import READERS, TfNode
from vkmnn.converter.tensorflow.restore import guessed, restored
from vkmnn.converter.tensorflow.states import ASSIGNING, Plan
from vkmnn.converter.tensorflow.switches import functional
from vkmnn.errors import ModelError
from vkmnn.ir import Array, Dim

_MOST_DEPTH = 64
"""Functions that call each other; Python's own stack ends some time after."""


class Model(Context):
    """A file that is read: its nodes become nodes of ONNX.

    Attributes:
        reading: refusals.
    """

    def __init__(
        self, file: GraphFile, meter: Meter, shapes: Mapping[str, tuple[Dim, ...]], plan: Plan
    ) -> None:
        super().__init__(file, meter, shapes, plan)
        self.reading = Reading("TensorFlow", meter)
        self._protos = {one.signature.name: one for one in file.graph.library.function}
        self._functions: dict[str, Function] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._effects: dict[str, bool] = {}
        self._stack: list[str] = []
        self._keys: dict[str, str] = {}

    def restore_from(self, nodes: dict[str, Node]) -> None:
        """Look up in the graph which tensors of the files its variables are."""
        if self.file.restore:
            self._keys = restored(self, nodes, self.file.restore)

    def variable(self, key: str) -> Array:
        self.meter.check_time()
        values = self.file.values
        if values is None:
            raise ModelError(f"the variable '{key}' has no value")
        return values.array(self._keys.get(key) or guessed(values.entries, key), key)

    def prepared(self, nodes: dict[str, Node], name: str) -> dict[str, Node]:
        """Return the nodes of a graph or function with its control flow as functions."""
        self._functions.update(functional(nodes, f"{name}{INSIDE}", self.meter))
        return joined(nodes, lambda tensor: self._constant(nodes, tensor))

    def _constant(self, nodes: Mapping[str, Node], tensor: Tensor) -> Array | None:
        node = nodes.get(tensor[0])
        if node is None or node.op != "Const" or "value" not in node.attrs:
            return None
        return array_of(self.file, node.attrs["value"].tensor, node.name)

    def constant_of(self, function: Function, tensor: Tensor) -> float | None:
        found = self._constant(function.nodes, tensor)
        return None if found is None or found.size != 1 else found.item()

    def function(self, name: str) -> Function | None:
        if name not in self._functions and name in self._protos:
            self.meter.check_time()
            made = read_function(self._protos[name])
            made.nodes = self.prepared(made.nodes, name)
            self._functions[name] = made
        return self._functions.get(name)

    def has_effect(self, node: Node) -> bool:
        """Return whether a node assigns a variable, itself or in a function that it runs."""
        if node.op in ASSIGNING:
            return True
        return any(self._has_effects(name) for name in function_names(node))

    def _has_effects(self, name: str) -> bool:
        if name not in self._effects:
            self._effects[name] = False  # of a function that calls itself
            function = self.function(name)
            nodes = function.nodes.values() if function is not None else ()
            self._effects[name] = any(self.has_effect(node) for node in nodes)
        return self._effects[name]

    @contextmanager
    def inside(self, scope: Scope, name: str) -> Iterator[None]:
        values = dict(self.variables.values)
        self.scopes.append(scope)
        before, self.variables.written = self.variables.written, set()
        try:
            yield
        finally:
            self.scopes.pop()
            written = self.variables.written
            self.found.writes.setdefault(name, set()).update(written)
            self.variables.written = before | written
            self.variables.values = values

    def call(
        self,
        function: Function,
        scope: Scope,
        prefix: str,
        arguments: Sequence[str],
        shorter: str | None = None,
    ) -> list[str]:
        if function.name in self._stack:
            raise ModelError("the function calls itself", node=function.name)
        if len(self._stack) >= _MOST_DEPTH:
            raise ModelError(
                f"more than {_MOST_DEPTH} functions that call each other", node=function.name
            )
        if len(arguments) != len(function.arguments):
            raise ModelError(
                f"the function takes {len(function.arguments)} inputs, not {len(arguments)}",
                node=function.name,
            )
        self._stack.append(function.name)
        try:
            order = function.order(self.has_effect)
            if shorter is not None:
                own = {shorter + node.name for node in order}
                prefix = prefix if own & scope.taken else shorter
            return self._read(function, order, scope, prefix, arguments)
        finally:
            self._stack.pop()

    def _read(
        self,
        function: Function,
        order: Sequence[Node],
        scope: Scope,
        prefix: str,
        arguments: Sequence[str],
    ) -> list[str]:
        names = dict(zip(function.arguments, arguments, strict=True))
        self.reading.count(len(order))
        counts = self.output_counts(function)

        def name_of(tensor: Tensor) -> str:
            node, number = tensor
            return names.get(tensor) or (f"{prefix}{node}:{number}" if number else prefix + node)

        own = {one.name: [(one.name, n) for n in range(counts[one.name])] for one in order}
        scope.reserve(name_of(one) for tensors in own.values() for one in tensors)
        for node in order:
            outputs = [name_of(one) for one in own[node.name]]
            op = TfNode(self, scope, node, prefix, [name_of(one) for one in node.inputs], outputs)
            with self.reading.operator(op):
                self.node(op)
        return [name_of(one) for one in function.results]

    def output_counts(self, function: Function) -> dict[str, int]:
        """Return how many outputs the nodes of a function have."""
        found = self._counts.get(function.name)
        if found is not None:
            return found
        self.meter.check_time()
        found = self._counts[function.name] = output_counts(function.nodes, function.results)
        for name, count in found.items():
            if count > MOST_OUTPUTS:
                raise ModelError(f"it has {count:,} outputs", op=function.nodes[name].op, node=name)
        return found

    def node(self, op: TfNode) -> None:
        """Write a node; of nodes behind one that is refused, check only the operator."""
        behind = not self.refused.isdisjoint(op.inputs)
        self.refused.update(op.outputs)
        if behind and op.type in READERS:
            return
        if op.type not in ASSIGNING:
            op.inputs = [self._value(op, one) for one in op.inputs]
        own = self.function(op.type) if op.type not in READERS else None
        if own is not None:
            inline(op, own, op.inputs)
        else:
            READERS.read(op)
        self.refused.difference_update(op.outputs)
        op.fold()

    def _value(self, op: TfNode, name: str) -> str:
        """Return a tensor; of a reference to a variable, its present value."""
        if name not in self.references or op.type in _TAKES_REFERENCES:
            return name
        return self.variables.value(self.handles[name])


_TAKES_REFERENCES = frozenset({"IsVariableInitialized"})


def function_names(node: Node) -> list[str]:
    """Return the functions that a node runs."""
    found = [one.func.name for one in node.attrs.values() if one.HasField("func")]
    for one in node.attrs.values():
        found += [item.name for item in one.list.func]
    return [*found, node.op]
