"""Conversion of a scope to an ONNX model with weights outside the protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.converter.nodes.scope import FLOAT, OPSET, Scope, element_type
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.converter.onnx.wire import Bytes
from vkmnn.ir import Array

if TYPE_CHECKING:
    import onnx

_IR_VERSION = 10
_LARGE = 1024
"""Minimum bytes of constants that stay arrays; protobuf copies its content, and is limited to 2
GiB.
"""

Inputs = Mapping[str, tuple[int, Sequence[int | str | None]]]


def finish_model(
    scope: Scope,
    inputs: Inputs,
    outputs: Sequence[str],
    name: str,
    producer: str,
    properties: Mapping[str, str] | None = None,
    domains: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> ModelFile:
    """Return a scope as the model for ONNX's converter.

    Args:
        scope: the graph.
        inputs: element types and shapes of its inputs, by name.
        outputs: names of its outputs.
        name: name of the graph.
        producer: who wrote the file.
        properties: metadata of the model.
        domains: operator sets in addition to ONNX's own, with their versions.
        shapes: shapes of outputs, where they are to be declared.
    """
    from onnx import helper

    weights: dict[int, Bytes] = {}
    declared = shapes or {}
    initializers = []
    for number, (one, array) in enumerate(scope.constants.items()):
        if array.nbytes < _LARGE:
            initializers.append(_tensor(one, array))
            continue
        initializers.append(_tensor(one, array, empty=True))
        weights[number] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    graph = helper.make_graph(
        scope.nodes,
        name,
        [helper.make_tensor_value_info(one, *about) for one, about in inputs.items()],
        [
            helper.make_tensor_value_info(one, scope.types.get(one, FLOAT), declared.get(one))
            for one in outputs
        ],
        initializers,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    opsets += [helper.make_opsetid(*one) for one in (domains or {}).items()]
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name=producer
    )
    if properties:
        helper.set_model_props(model, dict(properties))
    return ModelFile(model, weights, None)


def inner_graph(
    scope: Scope,
    outer: Scope,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    name: str,
    first: Sequence[onnx.NodeProto] = (),
) -> onnx.GraphProto:
    """Return a scope as the body of an If or Loop node.

    Large constants go to the outer scope, since they cannot be stored outside a body's protobuf.

    Args:
        scope: the body.
        outer: the scope that the node is written into.
        inputs: the body's inputs.
        outputs: its outputs.
        name: name of the body.
        first: nodes before those of the scope.
    """
    from onnx import helper

    kept = []
    for one, array in scope.constants.items():
        if array.nbytes >= _LARGE and one not in outer.types:
            outer.set_constant(one, array)
        elif outer.constants.get(one) is not array:
            kept.append(_tensor(one, array))
    return helper.make_graph([*first, *scope.nodes], name, inputs, outputs, kept)


def _tensor(name: str, array: Array, empty: bool = False) -> onnx.TensorProto:
    import onnx

    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    raw = b"" if empty else little.tobytes()
    kind = element_type(array.dtype)
    return onnx.TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=raw)
