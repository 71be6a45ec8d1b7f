"""Nodes that read only small constants, which are computed as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.converter.nodes.scope import OPSET, Scope

if TYPE_CHECKING:
    import onnx

_MOST = 64
_MOST_NODES = 16
_RANDOM = frozenset({"RandomUniform", "RandomNormal", "Multinomial", "Bernoulli"})


def folded(
    scope: Scope, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
) -> bool:
    """Turn the results of nodes into constants; return whether there were any.

    Args:
        scope: the scope whose last nodes these are.
        nodes: the nodes of one operator.
        inputs: the operator's inputs.
        outputs: its outputs.
    """
    if len(nodes) > _MOST_NODES or not outputs or not inputs:
        return False
    given = [scope.constants.get(name) for name in inputs]
    arrays = [one for one in given if one is not None and one.size <= _MOST]
    made = {name for node in nodes for name in node.output}
    wanted = [name for name in outputs if name in made]
    if len(arrays) < len(inputs) or not wanted or not _is_small(scope, nodes, wanted):
        return False
    results = _computed(scope, nodes, wanted)
    if results is None:
        return False
    for name, array in zip(wanted, results, strict=True):
        scope.set_constant(name, array)
    return True


def _is_small(scope: Scope, nodes: Sequence[onnx.NodeProto], wanted: Sequence[str]) -> bool:
    for node in nodes:
        if node.op_type in _RANDOM or any(one.g.node for one in node.attribute):
            return False
        for name in node.output:
            shape = scope.shapes.get(name)
            known = shape is not None and None not in shape
            if known and prod(size or 0 for size in shape or ()) > _MOST:
                return False
            if not known and not (node.op_type == "Range" and _range_is_small(scope, node.input)):
                return False
    return all(scope.types.get(name) is not None for name in wanted)


def _range_is_small(scope: Scope, inputs: Sequence[str]) -> bool:
    values = [scope.constants.get(name) for name in inputs]
    known = [float(one.item()) for one in values if one is not None and one.size == 1]
    return len(known) == 3 and known[2] != 0 and (known[1] - known[0]) / known[2] <= _MOST


def _computed(
    scope: Scope, nodes: Sequence[onnx.NodeProto], wanted: Sequence[str]
) -> list[np.ndarray[Any, Any]] | None:
    from onnx import TypeProto, helper
    from onnx.reference import ReferenceEvaluator

    made = {name for node in nodes for name in node.output}
    read = {name for node in nodes for name in node.input if name and name not in made}
    feeds = {name: scope.constants[name] for name in read if name in scope.constants}
    if len(feeds) < len(read):
        return None
    graph = helper.make_graph(
        list(nodes),
        "constant",
        [helper.make_value_info(name, TypeProto()) for name in feeds],
        [helper.make_value_info(name, TypeProto()) for name in wanted],
    )
    try:
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # noqa: BLE001 - the evaluator may raise anything
        return None
    results = [np.asarray(one) for one in found]
    if any(one.size > _MOST or one.dtype.kind not in "biuf" for one in results):
        return None
    return results
