"""Host nodes whose inputs are constants are computed once, when the network is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.errors import VkmnnError
from vkmnn.host.engines import Value
from vkmnn.host.function import open_on_host
from vkmnn.ir import HOST_GRAPH, DType, Graph, HostGraphAttrs, Op

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger(__name__)

SIZE_LIMIT = 16 * 2**20
"""Maximum bytes of all results, as for other folded constants."""
ROOM = 16 * SIZE_LIMIT
"""Maximum bytes of intermediate values."""
SECONDS = 2.0
"""Maximum seconds of a loop over constants; longer ones run as ordinary loops."""

_RANDOM = {
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
}
_STEADY_DOMAINS = {"", "ai.onnx", "ai.onnx.ml"}


def fold_on_host(graph: Graph, engines: Sequence[str], seconds: float) -> Graph | None:
    """Return the network with constants for the host nodes that depend on nothing else.

    Nodes that draw random numbers stay, and so do those that produce sequences and strings, which
    cannot be constants of a graph; results computed from these alone are folded nevertheless. Nodes
    that fail stay, to fail when the model runs.

    Args:
        graph: the network.
        engines: the evaluators that may be used, in the order of preference.
        seconds: maximum time of a loop.

    Returns:
        None if there is nothing to fold.
    """
    ops = _constant_ops(graph)
    if not any(_dense(graph, op) for op in ops):
        return None
    made = {name for op in ops for name in op.outputs if name}
    values: dict[str, Value] = {}
    try:
        limits = (engines, min(seconds, SECONDS), ROOM)
        for part in open_on_host(ops, graph.constants, made, *limits):
            values.update(part({**graph.constants, **values}))
    except VkmnnError as error:
        _log.debug("host nodes on constants stay: %s", error)
        return None
    arrays = {name: value for name, value in values.items() if _storable(value)}
    done = [op for op in ops if all(name in arrays for name in op.outputs if name)]
    wanted = {name: arrays[name] for op in done for name in op.outputs if name}
    if not done or sum(array.nbytes for array in wanted.values()) > SIZE_LIMIT:
        return None
    gone = set(map(id, done))
    left = [op for op in graph.ops if id(op) not in gone]
    return replace(graph, ops=left, constants={**graph.constants, **wanted})


def _constant_ops(graph: Graph) -> list[Op]:
    """Return the host nodes that depend on constants only, in running order."""
    known = {"", *graph.constants}
    found = []
    for op in graph.ops:
        if op.type == HOST_GRAPH and known.issuperset(op.inputs) and _is_steady(op):
            found.append(op)
            known.update(op.outputs)
    return found


def _dense(graph: Graph, op: Op) -> bool:
    """Return whether all results of an op can be constants of a graph, as far as known."""
    infos = {info.name: info for info in graph.outputs} | graph.infos
    return all(
        name in infos and infos[name].dtype is not DType.OBJECT for name in op.outputs if name
    )


def _storable(value: Value) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    try:
        return DType.from_numpy(value.dtype) is not DType.OBJECT
    except VkmnnError:
        return False


def _is_steady(op: Op) -> bool:
    """Whether a node computes the same results in every run."""
    import onnx

    assert isinstance(op.attrs, HostGraphAttrs)
    model = onnx.ModelProto.FromString(op.attrs.model)
    domains = _STEADY_DOMAINS | {function.domain for function in model.functions}
    nodes = [*_nodes(model.graph.node)]
    for function in model.functions:
        nodes += _nodes(function.node)
    return all(node.domain in domains and node.op_type not in _RANDOM for node in nodes)


def _nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner.node)
