"""Trip counts of Loops whose conditions compare counters: only the counters are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.ir import Array

if TYPE_CHECKING:
    import onnx

    from vkmnn.converter.onnx.known import Known

_MAX_ELEMENTS = 64
"""The most elements of a counter, and of a tensor that it is compared with."""


def counted_trips(
    body: onnx.GraphProto, given: Sequence[str], known: Known, first: Array, most: int
) -> int:
    """Return the number of iterations; 0 if it is unknown or exceeds `most`.

    The condition has to depend only on the iteration number, constants, and carried values that
    depend only on these.

    Args:
        body: the Loop's body.
        given: the Loop's inputs, "" for absent ones; the first two are limit and condition.
        known: constants of the graph around the Loop.
        first: the initial condition, which is true.
        most: the largest number of interest.
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
    except Exception:  # noqa: BLE001 - the evaluator may raise anything
        return 0
    return 0 if limit is None or last > most else max(last, 0)


def _counters(
    body: onnx.GraphProto, given: Sequence[str], known: Known, values: dict[str, Array]
) -> onnx.ModelProto | None:
    """Return the part of a body that computes its condition; None if that reads other tensors.

    `values` receives the initial values of its inputs.
    """
    from onnx import TypeProto, helper

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
        [helper.make_value_info(name, TypeProto()) for name in inputs],
        [helper.make_value_info(name, TypeProto()) for name in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in known.opsets.items()]
    return helper.make_model(graph, opset_imports=opsets)
