"""Inner graphs of nodes: their captured tensors, renaming, and inlining a branch of If.

A name in an inner graph means the graph's own tensor, or else one of the graph around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.errors import ModelError, plural

if TYPE_CHECKING:
    import onnx

    from vkmnn.converter.onnx.names import Names

_GRAPH, _GRAPHS = 5, 10  # AttributeProto.AttributeType
GRAPH_ATTRIBUTES = (_GRAPH, _GRAPHS)

Rename = Callable[[str], str]


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == _GRAPH:
            yield attribute.g
        elif attribute.type == _GRAPHS:
            yield from attribute.graphs


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that an inner graph itself defines."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    names.update(name for node in graph.node for name in node.output)
    return names


def outer_names(graph: onnx.GraphProto) -> set[str]:
    """Return the outer tensors that an inner graph reads."""
    read = {value.name for value in graph.output}
    for node in graph.node:
        read.update(reads(node))
    return read - own_names(graph) - {""}


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that a node reads, those of its inner graphs included."""
    return set(node.input).union(*(outer_names(graph) for graph in inner_graphs(node))) - {""}


def rename_reads(node: onnx.NodeProto, rename: Rename) -> None:
    """Rename, in place, the tensors that a node's inner graphs capture.

    A tensor of an inner graph that would hide the new name is renamed.
    """
    for graph in inner_graphs(node):
        own, outer = own_names(graph), outer_names(graph)
        names = {name: rename(name) for name in outer}
        used = own.union(outer, names.values())
        for hidden in sorted(own.intersection(names.values())):
            names[hidden] = _unlike(hidden, used)
        _rename_all(graph, names)


def separate_outputs(node: onnx.NodeProto) -> None:
    """Give repeated outputs of inner graphs separate names, in place, at any depth.

    onnxruntime leaves all but one of them unwritten in the branches of an If.
    """
    for graph in inner_graphs(node):
        for inner in graph.node:
            separate_outputs(inner)
        seen: set[str] = set()
        used = own_names(graph) | outer_names(graph)
        for value in graph.output:
            if value.name in seen:
                name = _unlike(value.name, used)
                graph.node.add(op_type="Identity", input=[value.name], output=[name])
                value.name = name
            seen.add(value.name)


def _unlike(name: str, used: set[str]) -> str:
    """Return a name that is not used, and use it."""
    while name in used:
        name += "_"
    used.add(name)
    return name


def _rename_all(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors, in place, wherever an inner graph defines or reads them."""

    def renamed(name: str) -> str:
        return names.get(name, name)

    sparse = (tensor.values for tensor in graph.sparse_initializer)
    for named in chain(graph.input, graph.output, graph.value_info, graph.initializer, sparse):
        named.name = renamed(named.name)
    for inner in graph.node:
        inner.input[:] = [renamed(name) for name in inner.input]
        inner.output[:] = [renamed(name) for name in inner.output]
        rename_reads(inner, renamed)


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch's nodes, renamed for the graph around it, and the mapping of its tensors.

    `own` holds the new names of the branch's tensors. `nodes` end with an Identity for each output.
    """

    nodes: list[onnx.NodeProto]
    own: dict[str, str]


def is_if(node: onnx.NodeProto) -> bool:
    """True for ONNX's If."""
    return node.op_type == "If" and not normal_domain(node.domain)


def inline_branch(
    node: onnx.NodeProto, name: str, taken: bool, tensors: Names, ops: Names
) -> tuple[onnx.GraphProto, Branch]:
    """Return a branch of an If and its nodes.

    Args:
        node: the If.
        name: its unique name, which prefixes all names within.
        taken: the value of the condition.
        tensors: names of tensors that are in use.
        ops: names of nodes that are in use.

    Raises:
        ModelError: the branch has inputs, or another number of outputs than the node.
    """
    import onnx

    wanted = "then_branch" if taken else "else_branch"
    graph = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
    if graph.input or len(graph.output) != len(node.output):
        raise ModelError(
            f"its {wanted} has {plural(len(graph.input), 'input')} and "
            f"{plural(len(graph.output), 'output')}, the node takes none and has "
            f"{len(node.output)}",
            op=node.op_type,
            node=name,
            hint="the model is not valid ONNX; export it again",
        )
    own = {inner: tensors.new(f"{name}/{inner}") for inner in sorted(own_names(graph) - {""})}

    def rename(inner: str) -> str:
        return own.get(inner, inner)

    nodes = []
    for number, inner in enumerate(graph.node):
        proto = onnx.NodeProto()
        proto.CopyFrom(inner)
        proto.input[:] = [rename(one) for one in inner.input]
        proto.output[:] = [rename(one) for one in inner.output]
        rename_reads(proto, rename)
        proto.name = ops.new(f"{name}/{inner.name or f'{inner.op_type}_{number}'}")
        nodes.append(proto)
    for value, output in zip(graph.output, node.output, strict=True):
        if output:
            proto = onnx.NodeProto(op_type="Identity", name=ops.new(f"{name}/{output}"))
            proto.input.append(rename(value.name))
            proto.output.append(output)
            nodes.append(proto)
    return graph, Branch(nodes, own)
