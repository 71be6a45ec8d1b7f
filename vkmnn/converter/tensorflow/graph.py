"""A graph of TensorFlow as a model of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.base.budget import Meter
from vkmnn.converter.nodes import finish_model
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.converter.tensorflow import (  # noqa: F401 - they register readers
    convolution,
    detection,
    elementwise,
    lists,
    matrices,
    movement,
    pictures,
    selection,
    variables,
    volumes,
)
from vkmnn.converter.tensorflow.chance import NEVER
from vkmnn.converter.tensorflow.context import INSIDE
from vkmnn.converter.tensorflow.control import REFUSED
from vkmnn.converter.tensorflow.files import TYPES, GraphFile, Signature
from vkmnn.converter.tensorflow.functions import Function, Node, Tensor, read_nodes, tensor_of
from vkmnn.converter.tensorflow.inputs import declare
from vkmnn.converter.tensorflow.model import Model
from vkmnn.converter.tensorflow.nodes import READERS
from vkmnn.converter.tensorflow.schema import Message
from vkmnn.converter.tensorflow.states import ASSIGNING, Plan
from vkmnn.errors import ModelError
from vkmnn.ir import SIGNATURES, Dim, GraphState

_ENDS = frozenset({"NoOp", "Assert", "Const", "Print", "Placeholder", "PlaceholderV2"})
"""Nodes that are never outputs."""

_CONTROL = frozenset({"LoopVariable", "Switch", "_SwitchN", "LoopCond", *ASSIGNING})
"""Nodes that are no outputs themselves, nor under other names."""

_READINGS = 4


def read_operators() -> dict[str, bool]:
    """Return the operators that are known, and whether they are read."""
    never = {*REFUSED, *NEVER}
    return {name: name not in never for name in READERS if name != "LoopVariable"}


def to_onnx(
    file: GraphFile, meter: Meter, shapes: Mapping[str, tuple[Dim, ...]]
) -> tuple[ModelFile, list[GraphState]]:
    """Return an ONNX model of a graph, and the states among its inputs and outputs.

    The graph is read again where it turns out to assign variables.

    Args:
        file: the graph.
        meter: counts the nodes.
        shapes: shapes of inputs that replace the file's.

    Raises:
        ModelError: the graph contradicts itself.
        UnsupportedOpError: operators that are not read: all of them.
    """
    plan = Plan()
    for _ in range(_READINGS):
        model = Model(file, meter, shapes, plan)
        outputs = _read(model)
        model.reading.check()
        if plan.covers(model.found):
            return _finished(model, outputs)
        plan = plan.joined(model.found)
    raise ModelError("what the graph assigns changes with each reading of it")


def _read(model: Model) -> dict[str, str]:
    """Read the graph; return the tensors of its outputs by name."""
    file = model.file
    nodes = read_nodes(file.graph.node)
    model.restore_from(nodes)
    read = {one for node in nodes.values() for one, _ in node.inputs}
    passed = _passed(nodes)
    unread = [name for name in nodes if name not in read and name not in passed]
    nodes = model.prepared(nodes, "")
    if file.signature is not None:
        return _of_signature(model, Function("", nodes), file.signature)
    ends = [name for name in unread if name in nodes and _is_output(nodes, name)]
    if not ends:
        raise ModelError("the graph has no outputs", hint="is it a frozen graph?")
    whole = Function("", nodes)
    counts = model.output_counts(whole)
    results = [(name, number) for name in ends for number in range(counts[name])]
    whole.results = results
    made = model.call(whole, model.scope, "", [])
    made = [name for name in made if name in model.scope.types]
    for name in made:
        if name in model.scope.constants:
            model.scope.constants[f"{name}/value"] = model.scope.constants.pop(name)
            model.scope.types[f"{name}/value"] = model.scope.types[name]
            model.scope.emit("Identity", [f"{name}/value"], [name], name)
    return {name: name for name in made}


def _passed(nodes: Mapping[str, Node]) -> set[str]:
    """Return constants and ends of loops that other nodes only wait for."""
    work = [one for node in nodes.values() if node.op != "NoOp" for one in node.controls]
    awaited: set[str] = set()
    while work:
        name = work.pop()
        if name in nodes and name not in awaited:
            awaited.add(name)
            work += nodes[name].controls if nodes[name].op == "NoOp" else []
    return {name for name in awaited if nodes[_origin(nodes, name)].op in ("Const", "Exit")}


def _origin(nodes: Mapping[str, Node], name: str) -> str:
    seen = set()
    while nodes[name].op == "Identity" and nodes[name].inputs and name not in seen:
        seen.add(name)
        name = nodes[name].inputs[0][0]
    return name


def _is_output(nodes: Mapping[str, Node], name: str) -> bool:
    """Return whether a node that none reads is an output: it is no part of control flow."""
    return nodes[name].op not in _ENDS and nodes[_origin(nodes, name)].op not in _CONTROL


def _of_signature(model: Model, whole: Function, signature: Signature) -> dict[str, str]:
    scope = model.scope
    whole.arguments = [_tensor(one, whole) for one in signature.inputs.values()]
    whole.results = [_tensor(one, whole) for one in signature.outputs.values()]
    if len(set(whole.arguments)) < len(whole.arguments):
        raise ModelError("two inputs of the signature are one tensor")
    scope.reserve([*signature.inputs, *signature.outputs])
    names = []
    for name, about in signature.inputs.items():
        node = whole.nodes[tensor_of(about.name)[0]]
        names.append(name)
        shape = about.tensor_shape if about.HasField("tensor_shape") else None
        if (shape is None or shape.unknown_rank) and "shape" in node.attrs:
            shape = node.attrs["shape"].shape
        declare(model, names[-1], TYPES.get(about.dtype, 0), shape, node.op)
    made = model.call(whole, scope, INSIDE, names, "")
    model.reading.check()
    outputs = {}
    for name, one in zip(signature.outputs, made, strict=True):
        if one not in scope.types or one in model.lists:
            raise ModelError(f"the output '{name}' is no tensor of numbers")
        public = f"{name}/output" if name in signature.inputs else name
        scope.copy(one, public)
        outputs[name] = public
    return outputs


def _tensor(about: Message, whole: Function) -> Tensor:
    if about.HasField("coo_sparse") or about.HasField("composite_tensor"):
        raise ModelError(
            "the signature has a sparse or ragged tensor",
            hint="save the model with a signature of dense tensors",
        )
    found = tensor_of(about.name)
    if found[0] not in whole.nodes:
        raise ModelError(f"the signature names '{about.name}', which does not exist")
    return found


def _finished(model: Model, outputs: Mapping[str, str]) -> tuple[ModelFile, list[GraphState]]:
    after = model.variables.finish(model.scope)
    states = [
        GraphState(state.name, after[key], state.initial)
        for key, state in model.variables.states.items()
    ]
    scope = model.scope
    inputs: dict[str, tuple[int, Sequence[int | str | None] | None]] = dict(model.inputs)
    for state in states:
        inputs[state.input] = scope.types[state.input], list(state.initial.shape)
    results = [*outputs.values(), *(state.output for state in states)]
    properties = {}
    if model.file.signatures:
        properties[SIGNATURES] = ", ".join(model.file.signatures)
    made = finish_model(scope, inputs, results, model.file.name, "TensorFlow", properties)  # type: ignore[arg-type]
    return made, states
