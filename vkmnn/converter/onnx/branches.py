"""Graphs inside nodes: which tensors they read, how these are renamed, and a branch in place of If.

A name in an inner graph means the graph's own tensor, or else one of the graph around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.errors import ModelError
from vkmnn.records import dataclass

if TYPE_CHECKING:
    import onnx

    from vkmnn.converter.onnx.names import Names

_GRAPH, _GRAPHS = 5, 10  # AttributeProto.AttributeType
GRAPH_ATTRIBUTES = (_GRAPH, _GRAPHS)

Rename = Callable[[str], str]


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node holds."""
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
    """Return the tensors of the graphs around it that an inner graph reads."""
    read = {value.name for value in graph.output}
    for node in graph.node:
        read.update(reads(node))
    return read - own_names(graph) - {""}


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that a node reads, those of its inner graphs included."""
    return set(node.input).union(*(outer_names(graph) for graph in inner_graphs(node))) - {""}


def rename_reads(node: onnx.NodeProto, rename: Rename) -> None:
    """Rename, in place, what the inner graphs of a node read from around them."""
    for graph in inner_graphs(node):
        own = own_names(graph)

        def outer(name: str, own: set[str] = own) -> str:
            return name if not name or name in own else rename(name)

        for value in graph.output:
            value.name = outer(value.name)
        for inner in graph.node:
            inner.input[:] = [outer(name) for name in inner.input]
            rename_reads(inner, outer)


@dataclass(frozen=True, slots=True)
class Branch:
    """The nodes of a branch, renamed to stand in the graph around it, and what its tensors became.

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
        taken: what the condition is.
        tensors: names of tensors that are taken.
        ops: names of nodes that are taken.

    Raises:
        ModelError: the branch has inputs, or another number of outputs than the node.
    """
    import onnx

    wanted = "then_branch" if taken else "else_branch"
    graph = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
    if graph.input or len(graph.output) != len(node.output):
        raise ModelError(
            f"its {wanted} has {len(graph.input)} inputs and {len(graph.output)} outputs, "
            f"the node takes none and has {len(node.output)}",
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
