"""A graph of TensorFlow as a model of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.base.budget import Meter
from vkmnn.converter.nodes import Reading, Scope, finish_model
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.converter.tensorflow import (  # noqa: F401 - they register readers
    convolution,
    elementwise,
    movement,
)
from vkmnn.converter.tensorflow.dilation import joined
from vkmnn.converter.tensorflow.files import GraphFile, array_of
from vkmnn.converter.tensorflow.nodes import READERS, TfNode
from vkmnn.converter.tensorflow.schema import Message
from vkmnn.errors import ModelError
from vkmnn.ir import Array, Dim

_INPUTS = ("Placeholder", "PlaceholderV2")
_ENDS = frozenset({"NoOp", "Assert", "Const", "Print", *_INPUTS})
"""Nodes that are never outputs."""

_COUNTED = {"Split": "num_split", "SplitV": "num_split", "Unpack": "num"}
"""Attributes with the number of a node's outputs."""

_OUTPUTS = {"TopKV2": 2}
_MOST_OUTPUTS = 10_000

_VARIABLES = ("VarHandleOp", "ReadVariableOp", "VariableV2", "Variable")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_REFUSED = {
    **dict.fromkeys(_VARIABLES, "the graph is not frozen: its variables are in another file"),
    **dict.fromkeys(_CALLS, "a function: freeze the graph with its functions inlined"),
    **dict.fromkeys(
        ("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"),
        "control flow of TensorFlow 1",
    ),
}

STRUCTURAL = ("Const", *_INPUTS, "PlaceholderWithDefault")


def read_operators() -> dict[str, bool]:
    """Return the operators that are known, and whether they are read."""
    return {**dict.fromkeys([*STRUCTURAL, *READERS], True), **dict.fromkeys(_REFUSED, False)}


def to_onnx(file: GraphFile, meter: Meter, shapes: Mapping[str, tuple[Dim, ...]]) -> ModelFile:
    """Return an ONNX model of a graph.

    Args:
        file: the graph.
        meter: counts the nodes.
        shapes: shapes of inputs that replace the file's.

    Raises:
        ModelError: the graph contradicts itself.
        UnsupportedOpError: operators that are not read: all of them.
    """
    reading = Reading("TensorFlow", meter)
    graph = _Graph(file, shapes)
    order = graph.order()
    reading.count(len(order))
    for proto in order:
        op = graph.node(proto)
        with reading.operator(op):
            graph.read(op, proto)
    reading.check()
    return graph.finished()


def _split(name: str) -> tuple[str, int]:
    """Return the node and the number of the output that an input names."""
    node, mark, number = name.rpartition(":")
    return (node, int(number)) if mark and number.isdecimal() and len(number) < 9 else (name, 0)


def _tensor(node: str, number: int) -> str:
    return f"{node}:{number}" if number else node


class _Graph:
    def __init__(self, file: GraphFile, shapes: Mapping[str, tuple[Dim, ...]]) -> None:
        self.file, self.shapes = file, shapes
        self.scope = Scope()
        self.nodes: dict[str, Message] = {}
        for node in file.graph.node:
            if node.name in self.nodes:
                raise ModelError("two nodes have this name", op=node.op, node=node.name)
            self.nodes[node.name] = node
        self.nodes = joined(self.nodes, self._constant)
        self.given = {
            name: [_split(one) for one in node.input if not one.startswith("^")]
            for name, node in self.nodes.items()
        }
        self.counts = {name: _count(node) for name, node in self.nodes.items()}
        read: set[str] = set()
        for name, given in self.given.items():
            for one, number in given:
                if one not in self.nodes:
                    raise ModelError(
                        f"it reads '{one}', which does not exist",
                        op=self.nodes[name].op,
                        node=name,
                    )
                self.counts[one] = max(self.counts[one], number + 1)
                read.add(one)
        self.ends = [
            name for name, node in self.nodes.items() if name not in read and node.op not in _ENDS
        ]
        self.inputs: dict[str, tuple[int, Sequence[int | str | None] | None]] = {}
        self.elements: dict[str, list[int | None]] = {}
        self.refused: set[str] = set()
        self.functions = {one.signature.name for one in file.graph.library.function}
        self.scope.reserve(
            _tensor(name, number)
            for name, count in self.counts.items()
            for number in range(min(count, _MOST_OUTPUTS))
        )

    def _constant(self, name: str) -> Array | None:
        node = self.nodes.get(_split(name)[0])
        attrs = {one.key: one.value for one in node.attr} if node is not None else {}
        if node is None or node.op != "Const" or "value" not in attrs:
            return None
        return array_of(self.file, attrs["value"].tensor, node.name)

    def order(self) -> list[Message]:
        """Return the nodes that the outputs need, in topological order.

        Raises:
            ModelError: there is no output, or a circle.
        """
        if not self.ends:
            raise ModelError("the graph has no outputs", hint="is it a frozen graph?")
        found: list[Message] = []
        state: dict[str, bool] = {}  # whether it is finished
        work = [(name, False) for name in reversed(self.ends)]
        while work:
            name, done = work.pop()
            if done:
                state[name] = True
                found.append(self.nodes[name])
                continue
            if name in state:
                if not state[name]:
                    raise ModelError(
                        "it reads what follows from itself", op=self.nodes[name].op, node=name,
                        hint="loops of TensorFlow 1 are not read",
                    )  # fmt: skip
                continue
            state[name] = False
            work.append((name, True))
            for one, _ in self.given[name]:
                if not state.get(one, False):
                    work.append((one, False))
        return found

    def node(self, proto: Message) -> TfNode:
        """Return a node with its tensors."""
        count = self.counts[proto.name]
        if count > _MOST_OUTPUTS:
            raise ModelError(f"it has {count:,} outputs", op=proto.op, node=proto.name)
        inputs = [_tensor(*one) for one in self.given[proto.name]]
        outputs = [_tensor(proto.name, number) for number in range(count)]
        return TfNode(self.scope, proto, inputs, outputs, self.elements)

    def read(self, op: TfNode, proto: Message) -> None:
        """Write a node; of nodes behind one that is refused, check only the operator."""
        behind = not self.refused.isdisjoint(op.inputs)
        self.refused.update(op.outputs)
        if op.type == "Const":
            tensor = op.attrs["value"].tensor if "value" in op.attrs else None
            if tensor is None:
                raise op.damaged("it has no value")
            self.scope.set_constant(op.outputs[0], array_of(self.file, tensor, op.name))
        elif op.type in _INPUTS:
            self.input(op)
        elif op.type in _REFUSED or op.type in self.functions:
            raise op.unreadable(_REFUSED.get(op.type, _REFUSED[_CALLS[0]]))
        elif op.type == "PlaceholderWithDefault":
            op.need(1)
            op.finish("Identity", op.inputs[0])
        elif behind and op.type in READERS:
            return
        else:
            READERS.read(op)
        self.refused.difference_update(op.outputs)

    def input(self, op: TfNode) -> None:
        """Declare an input."""
        dtype, name = op.dtype("dtype"), op.outputs[0]
        stated = op.attrs["shape"].shape if "shape" in op.attrs else None
        shape: Sequence[Dim] | None = self.shapes.get(name)
        if shape is None and stated is not None and not stated.unknown_rank:
            shape = [dim.size if dim.size >= 0 else None for dim in stated.dim]
        self.scope.types[name] = dtype
        if shape is None:
            self.inputs[name] = dtype, None
            return
        if len(shape) > 32:
            raise op.damaged(f"an input of {len(shape)} axes")
        self.scope.shapes[name] = tuple(dim if isinstance(dim, int) else None for dim in shape)
        named = [f"{name}_{axis}" if dim is None else dim for axis, dim in enumerate(shape)]
        self.inputs[name] = dtype, named

    def finished(self) -> ModelFile:
        """Return the model; its outputs are the tensors that no node reads."""
        outputs = [
            _tensor(name, number) for name in self.ends for number in range(self.counts[name])
        ]
        made = [name for name in outputs if name in self.scope.types]
        for name in made:
            if name in self.scope.constants:
                self.scope.constants[f"{name}/value"] = self.scope.constants.pop(name)
                self.scope.types[f"{name}/value"] = self.scope.types[name]
                self.scope.emit("Identity", [f"{name}/value"], [name], name)
        return finish_model(self.scope, self.inputs, made, self.file.name, "TensorFlow")  # type: ignore[arg-type]


def _count(node: Message) -> int:
    """Return how many outputs a node has."""
    for one in node.attr:
        if one.key == _COUNTED.get(node.op):
            return max(int(one.value.i), 1)
    return _OUTPUTS.get(node.op, 1)
