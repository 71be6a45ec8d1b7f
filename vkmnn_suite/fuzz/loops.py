"""Mutations that create loops of nodes: endless, far too long, or hoarding their results."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from vkmnn_suite.fuzz.mutations import INTS, mutate, mutation

__all__ = ["mutate"]


@mutation
def _loop(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node becomes the body of a Loop whose trip count and condition may have no end."""
    place = rng.randrange(len(model.graph.node))
    node = NodeProto()
    node.CopyFrom(model.graph.node[place])
    outputs = [name for name in node.output if name]
    number = rng.randrange(99)
    carried = rng.random() < 0.5 and bool(node.input)
    inputs = [_trips(model, rng, number), _going(model, rng, number)]
    body = [helper.make_node("Identity", ["going"], ["still"]), node]
    formal = [_value("turn", TensorProto.INT64, []), _value("going", TensorProto.BOOL, [])]
    results = [_value("still", TensorProto.BOOL, [])]
    if rng.random() < 0.2:
        body[0] = helper.make_node("Not", ["going"], ["still"])
    if carried:  # the first output returns as the first input
        inputs.append(node.input[0])
        formal.append(_value("round", TensorProto.FLOAT, None))
        node.input[0] = "round"
    inner = [f"inner{n}" for n in range(len(outputs))]
    node.output[:] = inner
    results += [_value(name, TensorProto.FLOAT, None) for name in inner]
    loop = helper.make_node("Loop", inputs, outputs)
    loop.attribute.append(
        helper.make_attribute("body", helper.make_graph(body, "body", formal, results))
    )
    model.graph.node[place].CopyFrom(loop)


def _value(name: str, kind: int, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _trips(model: onnx.ModelProto, rng: random.Random, number: int) -> str:
    """Return the name of a trip count, or none."""
    if rng.random() < 0.3:
        return ""
    name = f"trips{number}"
    trips = np.array(rng.choice((*INTS, 5, 1000)), np.int64)
    model.graph.initializer.append(numpy_helper.from_array(trips, name))
    return name


def _going(model: onnx.ModelProto, rng: random.Random, number: int) -> str:
    """Return the name of a condition, or none."""
    if rng.random() < 0.3:
        return ""
    name = f"going{number}"
    model.graph.initializer.append(numpy_helper.from_array(np.array(rng.random() < 0.9), name))
    return name


@mutation
def _scan(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node becomes the body of a Scan over its first input."""
    place = rng.randrange(len(model.graph.node))
    node = NodeProto()
    node.CopyFrom(model.graph.node[place])
    outputs = [name for name in node.output if name]
    scanned = node.input[0]
    node.input[0] = "slice"
    node.output[:] = [f"inner{n}" for n in range(len(outputs))]
    results = [_value(name, TensorProto.FLOAT, None) for name in node.output]
    body = helper.make_graph([node], "body", [_value("slice", TensorProto.FLOAT, None)], results)
    scan = helper.make_node(
        "Scan", [scanned], outputs, num_scan_inputs=rng.choice((1, 1, 1, 0, 2, -1, 2**31))
    )
    scan.attribute.append(helper.make_attribute("body", body))
    if rng.random() < 0.3:
        name = rng.choice(("scan_input_axes", "scan_output_axes", "scan_input_directions"))
        scan.attribute.append(helper.make_attribute(name, [rng.choice(INTS)]))
    model.graph.node[place].CopyFrom(scan)


@mutation
def _branch(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node is in one branch of an If, or in both."""
    place = rng.randrange(len(model.graph.node))
    node = model.graph.node[place]
    outputs = [name for name in node.output if name]
    graphs = []
    for side in ("then", "else"):
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.output[:] = [f"{side}{n}" for n in range(len(outputs))]
        results = [_value(name, TensorProto.FLOAT, None) for name in copy.output]
        nodes = [copy] if rng.random() < 0.9 else []
        graphs.append(helper.make_graph(nodes, side, [], results))
    name = f"taken{rng.randrange(99)}"
    if rng.random() < 0.5:  # a condition that the host has to read
        model.graph.input.append(_value(name, TensorProto.BOOL, []))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), name))
    branch = helper.make_node("If", [name], outputs)
    branch.attribute.append(helper.make_attribute("then_branch", graphs[0]))
    branch.attribute.append(helper.make_attribute("else_branch", graphs[rng.random() < 0.9]))
    model.graph.node[place].CopyFrom(branch)
