"""How often a Loop iterates whose condition counts: its counters run ahead, without the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.ir import Array

if TYPE_CHECKING:
    import onnx

    from vkmnn.converter.onnx.known import Known

_MAX_ELEMENTS = 64
"""Elements of a counter, or of what it is compared with."""


def counted_trips(
    body: onnx.GraphProto, given: Sequence[str], known: Known, first: Array, most: int
) -> int:
    """Return the number of iterations, 0 where it is not known or exceeds `most`.

    The condition has to follow from the iteration number, from constants, and from carried values
    that follow from the same.

    Args:
        body: the Loop's.
        given: its inputs, "" for one that is not there; the first two are limit and condition.
        known: what the graph around it tells.
        first: the condition that it starts with, which holds.
        most: how many iterations are of interest.
    """
    from onnx.reference import ReferenceEvaluator

    limit = known.value(given[0]) if given[0] else None
    if (given[0] and limit is None) or (limit is not None and limit.size != 1):
        return 0
    values: dict[str, Array] = {}
    model = _counters(body, given, known, values)
    if model is None:
        return 0
    names = [value.name for value in body.input]
    read = [value.name for value in model.graph.input]
    made = [value.name for value in model.graph.output]
    last = most if limit is None else min(most + 1, int(limit.reshape(-1)[0]))
    values |= {names[1]: first}
    try:
        evaluator = ReferenceEvaluator(model)
        for turn in range(last):
            if turn > most:
                return 0
            values[names[0]] = np.array(turn, np.int64)
            results = dict(
                zip(made, evaluator.run(None, {name: values[name] for name in read}), strict=True)
            )
            going = np.asarray(results[body.output[0].name])
            if going.size != 1:
                return 0
            if not going.reshape(-1)[0]:
                return turn + 1
            for name, output in zip(names[2:], body.output[1:], strict=False):
                if output.name in results and name in read:
                    values[name] = np.asarray(results[output.name])
                    if values[name].size > _MAX_ELEMENTS:
                        return 0
    except Exception:  # noqa: BLE001 - the evaluator raises what it likes
        return 0
    return 0 if limit is None or last > most else max(last, 0)


def _counters(
    body: onnx.GraphProto, given: Sequence[str], known: Known, values: dict[str, Array]
) -> onnx.ModelProto | None:
    """Return the part of a body that computes its condition, None where that reads other things.

    `values` receives what that part starts with.
    """
    from onnx import helper

    formal = [value.name for value in body.input]
    results = dict(zip(formal[2:], (one.name for one in body.output[1:]), strict=False))
    makers = {name: node for node in body.node for name in node.output if name}
    kept = {tensor.name: tensor for tensor in body.initializer}
    wanted, needed, nodes, tensors = [body.output[0].name], set[str](), set[int](), []
    outputs = dict.fromkeys(wanted)
    while wanted:
        name = wanted.pop()
        if not name or name in needed:
            continue
        needed.add(name)
        if name in makers:
            node = makers[name]
            if any(one.g.node or one.graphs for one in node.attribute):
                return None
            nodes.add(id(node))
            wanted.extend(node.input)
        elif name in results:
            start = known.value(given[2 + formal[2:].index(name)])
            if start is None or start.size > _MAX_ELEMENTS:
                return None
            values[name] = start
            outputs[results[name]] = None
            wanted.append(results[name])
        elif name in kept:
            tensors.append(kept[name])
        elif name not in formal[:2]:
            constant = known.value(name)
            if constant is None or constant.size > _MAX_ELEMENTS:
                return None
            values[name] = constant
    inputs = [name for name in needed if name in values or name in formal[:2]]
    graph = helper.make_graph(
        [node for node in body.node if id(node) in nodes],
        "counters",
        [helper.make_value_info(name, onnx_type()) for name in inputs],
        [helper.make_value_info(name, onnx_type()) for name in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in known.opsets.items()]
    return helper.make_model(graph, opset_imports=opsets)


def onnx_type() -> onnx.TypeProto:
    """Return a type that says nothing."""
    import onnx

    return onnx.TypeProto()
