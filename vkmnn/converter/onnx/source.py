"""The nodes of a model as the front end handles them: named, ordered, local functions expanded."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from vkmnn.base.budget import Meter
from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.branches import inner_graphs, reads, rename_reads
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.converter.onnx.names import Names
from vkmnn.errors import ModelError

if TYPE_CHECKING:
    import onnx

_MAX_DEPTH = 64
_SHOWN_OF_CYCLE = 16


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node: its protobuf, a name that is unique in the model, and its opsets.

    `source` is its node in the model; `calls` are the functions around it.
    """

    proto: onnx.NodeProto
    name: str
    opsets: Mapping[str, int]
    source: str
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def domain(self) -> str:
        """The operator's domain, "" for ONNX's own."""
        return normal_domain(self.proto.domain)

    @property
    def op(self) -> str:
        """The operator's type."""
        return self.proto.op_type

    @property
    def opset(self) -> int:
        """The version of the operator's domain."""
        return self.opsets.get(self.domain, 1)


def opset_map(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return domain → version."""
    return {normal_domain(entry.domain): entry.version for entry in imports}


def name_nodes(
    protos: Sequence[onnx.NodeProto], opsets: Mapping[str, int], names: Names
) -> list[SourceNode]:
    """Give every node a unique name: its own, else its type and position (`Conv_12`)."""
    nodes = []
    for index, proto in enumerate(protos):
        name = names.new(proto.name or f"{proto.op_type}_{index}")
        nodes.append(SourceNode(proto, name, opsets, f"{name} ({proto.op_type})"))
    return nodes


def sort_nodes(nodes: Sequence[SourceNode], available: Collection[str]) -> list[SourceNode]:
    """Return the nodes in topological order, as close to the given order as possible.

    Args:
        nodes: the nodes.
        available: tensors that exist before any node runs.

    Raises:
        ModelError: a tensor is produced twice, read but never produced, or depends on itself.
    """
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.proto.output:
            if not name:
                continue
            if name in producer or name in available:
                raise ModelError(
                    f"tensor '{name}' is produced twice",
                    op=node.op,
                    node=node.name,
                    hint="every tensor name may be written once; export the model again",
                )
            producer[name] = index
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for index, node in enumerate(nodes):
        for name in dict.fromkeys((*node.proto.input, *sorted(reads(node.proto)))):
            if not name or name in available:
                continue
            if name not in producer:
                raise ModelError(
                    f"input '{name}' is not a graph input, an initializer or any node's output",
                    op=node.op,
                    node=node.name,
                    hint="the model is incomplete; export it again",
                )
            readers[producer[name]].append(index)
            missing[index] += 1
    ready = [index for index, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise _cycle_error(nodes, producer, set(range(len(nodes))) - set(order))
    return [nodes[index] for index in order]


def _cycle_error(
    nodes: Sequence[SourceNode], producer: Mapping[str, int], stuck: set[int]
) -> ModelError:
    """Walk backwards from any stuck node: the first node met again closes a cycle."""
    index = min(stuck)
    links: dict[int, str] = {}
    while index not in links:
        links[index] = next(
            n for n in sorted(reads(nodes[index].proto)) if producer.get(n) in stuck
        )
        index = producer[links[index]]
    path = list(links)
    path = path[path.index(index) :]
    members = [nodes[i] for i in path]
    parts = [f"'{nodes[i].name}' <-[{links[i]}]" for i in path]
    if len(parts) > _SHOWN_OF_CYCLE:
        parts = [*parts[: _SHOWN_OF_CYCLE - 1], f"{len(parts) - _SHOWN_OF_CYCLE} more", parts[-1]]
    chain = " <- ".join(parts)
    return ModelError(
        f"the graph has a cycle: {chain} '{members[0].name}'",
        op=members[0].op,
        node=members[0].name,
        hint="a node depends on its own output through these tensors; export the model again",
    )


def _endless(domain: str, op: str, name: str) -> ModelError:
    return ModelError(
        f"function {domain or 'ai.onnx'}::{op} calls itself or nests too deeply",
        op=op,
        node=name,
        hint="functions of a model must not be recursive; the file may be malicious",
    )


def expand_call(
    node: SourceNode,
    function: onnx.FunctionProto,
    defaults: Iterable[onnx.AttributeProto],
    names: Names,
) -> list[SourceNode]:
    """Return the body of a called function in place of the calling node, in order.

    Inner tensors and nodes get the caller's name as prefix; attribute references are replaced by
    the caller's attributes or `defaults`, and left out if neither exists.

    Raises:
        ModelError: functions call themselves, nest too deeply, or the body is not a valid graph.
    """
    import onnx

    key = (node.domain, node.op)
    if key in node.calls or len(node.calls) >= _MAX_DEPTH:
        raise _endless(node.domain, node.op, node.name)
    attributes = {attribute.name: attribute for attribute in defaults}
    attributes.update((attribute.name, attribute) for attribute in node.proto.attribute)
    actual_inputs: dict[str, str] = dict(
        zip_longest(function.input, node.proto.input, fillvalue="")
    )
    actual_outputs: dict[str, str] = {
        formal: actual
        for formal, actual in zip(function.output, node.proto.output, strict=False)
        if actual
    }
    renamed: dict[str, str] = {"": ""}

    def rename(name: str) -> str:
        if name in actual_inputs:
            return actual_inputs[name]
        if name in actual_outputs:
            return actual_outputs[name]
        if name not in renamed:
            renamed[name] = names.new(f"{node.name}/{name}")
        return renamed[name]

    opsets = {**node.opsets, **opset_map(function.opset_import)}
    body = []
    for index, inner in enumerate(function.node):
        proto = onnx.NodeProto(op_type=inner.op_type, domain=inner.domain, overload=inner.overload)
        proto.input.extend(rename(name) for name in inner.input)
        proto.output.extend(rename(name) for name in inner.output)
        proto.attribute.extend(
            attribute
            for attribute in (_resolved(a, attributes) for a in inner.attribute)
            if attribute is not None
        )
        # The attributes are copies: the function may be called again.
        rename_reads(proto, rename)
        _resolve_within(proto, attributes)
        proto.name = names.new(f"{node.name}/{inner.name or f'{inner.op_type}_{index}'}")
        body.append(SourceNode(proto, proto.name, opsets, node.source, (*node.calls, key)))
    for formal in set(function.output) & set(function.input) & set(actual_outputs):
        proto = onnx.NodeProto(op_type="Identity", name=names.new(f"{node.name}/{formal}"))
        proto.input.append(actual_inputs[formal])
        proto.output.append(actual_outputs[formal])
        body.append(SourceNode(proto, proto.name, opsets, node.source, (*node.calls, key)))
    return sort_nodes(body, {name for name in node.proto.input if name})


def _resolved(
    attribute: onnx.AttributeProto, attributes: Mapping[str, onnx.AttributeProto]
) -> onnx.AttributeProto | None:
    """Replace a reference to one of the function's attributes by its value."""
    if not attribute.ref_attr_name:
        return attribute
    value = attributes.get(attribute.ref_attr_name)
    if value is None:
        return None
    copy = type(value)()
    copy.CopyFrom(value)
    copy.name = attribute.name
    return copy


def _resolve_within(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace, in place, references to the function's attributes inside a node's graphs."""
    for graph in inner_graphs(node):
        for inner in graph.node:
            kept = [_resolved(attribute, attributes) for attribute in inner.attribute]
            copies = [type(one).FromString(one.SerializeToString()) for one in kept if one]
            del inner.attribute[:]
            inner.attribute.extend(copies)
            _resolve_within(inner, attributes)


_Key = tuple[str, str, str]


def _function_key(domain: str, name: str, overload: str) -> _Key:
    return normal_domain(domain), name, overload


def _agree(opsets: dict[str, int] | None, others: Mapping[str, int]) -> bool:
    """True if no domain has two versions; `opsets` then includes the others' domains."""
    if opsets is None:
        return True
    if any(opsets.get(domain, version) != version for domain, version in others.items()):
        return False
    opsets.update(others)
    return True


class LocalFunctions:
    """The functions that a model defines, to be expanded where they are called.

    Raises:
        ModelError: a function is defined twice.
    """

    def __init__(self, functions: Iterable[onnx.FunctionProto]) -> None:
        self._table: dict[_Key, onnx.FunctionProto] = {}
        self._sizes: dict[_Key, int] = {}
        for function in functions:
            key = _function_key(function.domain, function.name, function.overload)
            if key in self._table:
                raise ModelError(
                    f"function {key[0]}::{key[1]} is defined twice",
                    hint="the model is not valid ONNX; export it again",
                )
            self._table[key] = function

    def expand(self, nodes: Sequence[SourceNode], names: Names, meter: Meter) -> list[SourceNode]:
        """Inline function calls until none is left, in inner graphs as well.

        Raises:
            ModelError: as `expand_call`.
            BudgetError: there would be too many nodes.
        """
        # Counted before anything is expanded: a few nested functions can stand for 10^20 nodes.
        meter.check_nodes(sum(self._size(node.proto, ()) for node in nodes))
        return self._flat(nodes, names, meter)

    def _flat(
        self,
        nodes: Iterable[SourceNode],
        names: Names,
        meter: Meter,
        opsets: dict[str, int] | None = None,
    ) -> list[SourceNode]:
        """Return nodes without calls.

        Args:
            nodes: the nodes, in order.
            names: names that are in use.
            meter: meter of the time.
            opsets: opsets of an inner graph, whose nodes share them: nodes with others remain
                calls, and domains that are not included yet are added.
        """
        flat: list[SourceNode] = []
        stack = list(nodes)[::-1]
        while stack:
            node = stack.pop()
            meter.check_time(node.op, node.name)
            called = self._table.get(_function_key(node.domain, node.op, node.proto.overload))
            if called is None or not _agree(opsets, opset_map(called.opset_import)):
                flat.append(self._expanded_within(node, names, meter))
            else:
                stack.extend(expand_call(node, called, called.attribute_proto, names)[::-1])
        return flat

    def _expanded_within(self, node: SourceNode, names: Names, meter: Meter) -> SourceNode:
        """Return a node whose inner graphs call no functions, unless their opsets differ."""
        if not self._calls_within(node.proto):
            return node
        proto = type(node.proto)()
        proto.CopyFrom(node.proto)
        opsets = dict(node.opsets)
        for graph in inner_graphs(proto):
            inner = [
                SourceNode(
                    one,
                    f"{node.name}/{one.name or f'{one.op_type}_{number}'}",
                    node.opsets,
                    node.source,
                    node.calls,
                )
                for number, one in enumerate(graph.node)
            ]
            flat = self._flat(inner, names, meter, opsets)
            kept = [one.proto.SerializeToString() for one in flat]
            del graph.node[:]
            for data in kept:
                graph.node.add().ParseFromString(data)
        return replace(node, proto=proto, opsets=opsets)

    def _calls_within(self, node: onnx.NodeProto) -> bool:
        """True where an inner graph of a node calls a function."""
        return bool(self._table) and any(
            _function_key(one.domain, one.op_type, one.overload) in self._table
            or self._calls_within(one)
            for graph in inner_graphs(node)
            for one in graph.node
        )

    def _size(self, node: onnx.NodeProto, callers: tuple[_Key, ...], inner: bool = False) -> int:
        """Return the number of nodes, those of inner graphs included.

        Recursion counts as 1, and is detected when calls are replaced.

        Raises:
            ModelError: a call in an inner graph, which stays a call, has no end.
        """
        count = sum(
            self._size(each, callers, True) for graph in inner_graphs(node) for each in graph.node
        )
        key = _function_key(node.domain, node.op_type, node.overload)
        function = self._table.get(key)
        if function is None:
            return 1 + count
        if key in callers or len(callers) >= _MAX_DEPTH:
            if inner:
                raise _endless(node.domain, node.op_type, node.name or "".join(node.output[:1]))
            return 1 + count
        if key not in self._sizes:
            now = (*callers, key)
            self._sizes[key] = sum(self._size(each, now, inner) for each in function.node)
        return self._sizes[key] + count
