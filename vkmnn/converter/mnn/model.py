"""MNN's graph as a model of ONNX."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vkmnn.base.budget import Meter
from vkmnn.converter.mnn.nodes import (
    OP_TYPES,
    READERS,
    TYPES,
    MnnOp,
    enum_name,
)
from vkmnn.converter.mnn.weights import blob
from vkmnn.converter.nodes import (
    BOOL,
    INT32,
    INT64,
    Reading,
    Scope,
    TensorNames,
    finish_model,
    inner_graph,
)
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.errors import ModelError
from vkmnn.ir import TRAINABLE, USAGE, Array
from vkmnn.schema import Buffer, Table

_DEEPEST = 16


def to_onnx(buffer: Buffer, name: str, weights: bytes, meter: Meter) -> ModelFile:
    """Return an ONNX model of an MNN file.

    Args:
        buffer: the file.
        name: name of the graph.
        weights: the external file of weights; empty if there is none.
        meter: counts the ops.

    Raises:
        ModelError: the file is damaged.
        UnsupportedOpError: unsupported ops, all of which are listed.
    """
    net = buffer.root()
    reader = _Reader(net, weights, meter)
    scope = Scope()
    tensors = TensorNames(net.texts("tensorName"), "", "MNN")
    inputs = reader.graph(scope, net.tables("oplists"), tensors)
    reader.reading.check()
    outputs = net.texts("outputName") or _last(scope)
    usage = enum_name("Usage", net.integer("usage"))
    properties = {}
    if reader.trainable or usage == "TRAIN":
        properties = {USAGE: usage, TRAINABLE: json.dumps(reader.trainable)}
    producer = f"MNN {reader.version()}".strip()
    return finish_model(scope, inputs, outputs, name, producer, properties)


def _last(scope: Scope) -> list[str]:
    """Return the tensors that nothing reads: the outputs of a file that names none."""
    read = {name for node in scope.nodes for name in node.input}
    return [name for node in scope.nodes for name in node.output if name not in read]


class _Reader:
    def __init__(self, net: Table, weights: bytes, meter: Meter) -> None:
        self.net, self.weights = net, weights
        self.reading = Reading("MNN", meter)
        self.trainable: list[str] = []
        self.bodies = {table.text("name"): table for table in net.tables("subgraphs")}
        self.depth = 0

    def version(self) -> str:
        """Return the version of MNN that wrote the file."""
        found = self.net.table("extraInfo")
        return found.text("version") if found else ""

    def graph(
        self, scope: Scope, ops: list[Table], tensors: TensorNames
    ) -> dict[str, tuple[int, list[int | str | None]]]:
        """Read ops into a scope; return the inputs among them with their types and shapes."""
        inputs: dict[str, tuple[int, list[int | str | None]]] = {}
        self.reading.count(len(ops))
        scope.reserve(tensors.names)
        for table in ops:
            outputs = [tensors[number] for number in table.integers("outputIndexes")]
            reads = [tensors[number] for number in table.integers("inputIndexes")]
            op = MnnOp(scope, table, reads, outputs, self.weights)
            with self.reading.operator(op):
                if op.type == "Input":
                    op.need(0)
                    inputs[outputs[0]] = self.input(op)
                else:
                    self.read(op)
        return inputs

    def input(self, op: MnnOp) -> tuple[int, list[int | str | None]]:
        table = op.parameters("Input")
        kind = enum_name("DataType", table.integer("dtype") if table.has("dtype") else 1)
        if kind not in TYPES:
            raise op.unreadable(f"an input of element type {kind or table.integer('dtype')}")
        op.scope.types[op.outputs[0]] = TYPES[kind]
        op.scope.shapes[op.outputs[0]] = tuple(
            dim if dim >= 0 else None for dim in table.integers("dims")
        )
        dims: list[int | str | None] = [
            dim if dim >= 0 else f"{op.outputs[0]}_{axis}"
            for axis, dim in enumerate(table.integers("dims"))
        ]
        return TYPES[kind], dims

    def read(self, op: MnnOp) -> None:
        if op.type in ("Const", "TrainableParam"):
            op.need(0)
            op.scope.set_constant(op.outputs[0], blob(op, op.parameters("Blob")))
            if op.type == "TrainableParam":
                self.trainable.append(op.outputs[0])
        elif op.type == "If":
            self.branches(op)
        elif op.type == "While":
            self.loop(op)
        elif op.type in OP_TYPES.values():
            READERS.read(op)
        else:
            raise op.unreadable("MNN's schema does not have it")

    def body(
        self, op: MnnOp, name: str, known: dict[str, str], carried: Sequence[str] = ()
    ) -> tuple[Scope, TensorNames, Table]:
        """Read a sub-graph whose inputs are tensors around it.

        Args:
            op: the op that holds it.
            name: its name.
            known: its inputs, and the tensors that they represent.
            carried: initial values of a loop's inputs, except for the first two.
        """
        table = self.bodies.get(name)
        if table is None:
            raise ModelError(f"there is no sub-graph '{name}'", op=op.type, node=op.name)
        if self.depth >= _DEEPEST:
            raise ModelError("sub-graphs contain each other", op=op.type, node=op.name)
        prefix = f"{op.name}/{name}/"
        scope = Scope(prefix)
        tensors = TensorNames(table.texts("tensors"), prefix, "MNN")
        for own, outer in known.items():
            number = tensors.number(own)
            if number >= 0:
                tensors.known[number] = outer
                scope.types[outer] = op.type_of(outer)
                if outer in op.scope.shapes:
                    scope.shapes[outer] = op.scope.shapes[outer]
        for number, outer in zip(table.integers("inputs")[2:], carried, strict=False):
            scope.types[tensors[number]] = op.type_of(outer)
            if outer in op.scope.shapes:
                scope.shapes[tensors[number]] = (None,) * len(op.scope.shapes[outer])
        if carried:
            scope.types |= {tensors[number]: INT32 for number in table.integers("inputs")[:2]}
            scope.shapes |= {tensors[number]: () for number in table.integers("inputs")[:2]}
        self.depth += 1
        nodes = [
            one for one in table.tables("nodes") if OP_TYPES.get(one.integer("type")) != "Input"
        ]
        self.graph(scope, nodes, tensors)
        self.depth -= 1
        return scope, tensors, table

    def branches(self, op: MnnOp) -> None:
        """Read an If: its branches read tensors around them, which MNN's op has as inputs."""
        from onnx import helper

        op.need(1)
        table = op.parameters("IfParam")
        aliases = [one.texts("data") for one in table.tables("aliases_inputs")]
        made = [one.texts("data") for one in table.tables("aliases_outputs")]
        graphs = {}
        for number, side in enumerate(("then", "else")):
            known = {
                inner: outer
                for outer, names in zip(op.inputs, aliases, strict=False)
                for inner in names
            }
            scope, tensors, body = self.body(op, table.text(f"{side}_graph"), known)
            outputs = [
                tensors[tensors.number(names[number])] if len(names) > number else ""
                for names in made
            ] or [tensors[one] for one in body.integers("outputs")]
            kept = [scope.fresh("result") for _ in outputs]
            for inner, name in zip(outputs, kept, strict=True):
                scope.emit("Identity", [inner], [name], name)
            results = [helper.make_tensor_value_info(one, scope.types[one], None) for one in kept]
            graphs[f"{side}_branch"] = inner_graph(
                scope, op.scope, [], results, f"{op.name}/{side}"
            )
            types = [scope.types[name] for name in kept]
            shapes = [scope.shapes.get(name) for name in kept]
            for name, shape in zip(op.outputs, shapes, strict=False):
                if shape is not None and side == "then":
                    op.scope.shapes[name] = (None,) * len(shape)
                elif len(shape or ()) != len(op.scope.shapes.get(name, ())):
                    op.scope.shapes.pop(name, None)
        one = op.make("Reshape", op.cast(op.inputs[0], BOOL), op.constant([1]), dtype=BOOL)
        condition = op.make("Squeeze", one, dtype=BOOL)
        op.scope.emit("If", [condition], op.outputs, op.name, **graphs)
        op.scope.types.update(zip(op.outputs, types, strict=False))

    def loop(self, op: MnnOp) -> None:
        """Read a While as ONNX's Loop: count, condition, carried values; then captured ones."""
        from onnx import helper

        if op.main is None or op.main.kind != "WhileParam" or op.main.text("cond_graph"):
            raise op.unreadable("a loop of MNN's own, or one with a graph for its condition")
        op.need(2, 0)
        scope, tensors, body = self.body(op, op.main.text("body_graph"), {}, op.inputs[2:])
        given = [tensors[number] for number in body.integers("inputs")]
        made = [tensors[number] for number in body.integers("outputs")]
        carried = len(op.inputs) - 2
        if len(given) != len(op.inputs) or len(made) != len(op.outputs) + 1:
            raise ModelError("its body has other inputs or outputs", op=op.type, node=op.name)
        # ONNX counts in 64 bits and has true conditions; MNN's body has 32 bits for both.
        counter, condition = scope.fresh("counter"), scope.fresh("condition")
        first = [
            helper.make_node("Cast", [counter], [given[0]], to=INT32),
            helper.make_node("Cast", [condition], [given[1]], to=INT32),
        ]
        types = [op.type_of(name) for name in op.inputs[2:]]
        kept = [scope.fresh("result") for _ in made]
        scope.emit("Cast", [made[0]], kept[:1], kept[0], BOOL, to=BOOL)
        for inner, name in zip(made[1:], kept[1:], strict=True):
            scope.emit("Identity", [inner], [name], name)
        results = [BOOL, *types, *(scope.types.get(name, 1) for name in kept[1 + carried :])]
        heads: list[tuple[str, int, list[int]]] = [(counter, INT64, []), (condition, BOOL, [])]
        values = [(name, dtype, None) for name, dtype in zip(given[2:], types, strict=True)]
        graph = inner_graph(
            scope,
            op.scope,
            [helper.make_tensor_value_info(*value) for value in (*heads, *values)],
            [
                helper.make_tensor_value_info(name, dtype, [] if number == 0 else None)
                for number, (name, dtype) in enumerate(zip(kept, results, strict=True))
            ],
            f"{op.name}/body",
            first,
        )
        count = op.make("Reshape", op.cast(op.inputs[0], INT64), op.constant([], "int64"))
        go_on = op.make("Reshape", op.cast(op.inputs[1], BOOL), op.constant([], "int64"))
        op.scope.emit("Loop", [count, go_on, *op.inputs[2:]], op.outputs, op.name, body=graph)
        op.scope.types.update(zip(op.outputs, results[1:], strict=False))


def read_constant(table: Table, weights: bytes) -> Array:
    """Return the value of an op that holds a constant.

    Raises:
        ModelError: it is damaged.
    """
    op = MnnOp(Scope(), table, [], ["constant"], weights)
    return blob(op, op.parameters("Blob"))
