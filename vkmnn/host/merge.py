"""Several HostGraph nodes as one model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import rename_reads
from vkmnn.ir import Array, HostGraphAttrs, Op

if TYPE_CHECKING:
    import onnx

MAX_CONSTANT_BYTES = 1 << 30
"""Constants up to this size go into the model; a protobuf cannot hold more than 2 GiB."""


def merge(
    ops: Sequence[Op], constants: Mapping[str, Array], wanted: Collection[str]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model of several ops of the type HostGraph, and constants to feed to it.

    Args:
        ops: the ops in running order, written in the same operator sets.
        constants: values of tensors.
        wanted: those of the ops' results that others read.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.ModelProto(producer_name="vkmnn")
    graph = model.graph
    graph.name = ops[0].name
    inputs: dict[str, onnx.TypeProto] = {}
    outputs: dict[str, onnx.TypeProto] = {}
    tensors: dict[str, onnx.TensorProto] = {}
    functions: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    opsets: dict[str, int] = {}
    for op in ops:
        part, names = _part(op)
        graph.node.extend(part.graph.node)
        for value in part.graph.input:
            inputs.setdefault(names.get(value.name, value.name), value.type)
        for value in part.graph.output:
            outputs[names.get(value.name, value.name)] = value.type
        tensors.update((tensor.name, tensor) for tensor in part.graph.initializer)
        functions.update(((f.domain, f.name, f.overload), f) for f in part.functions)
        opsets.update((entry.domain, entry.version) for entry in part.opset_import)
        model.ir_version = max(model.ir_version, part.ir_version)
    graph.initializer.extend(tensors.values())
    fed: dict[str, Array] = {}
    room = MAX_CONSTANT_BYTES
    for name in inputs.keys() & constants.keys():
        room -= constants[name].nbytes
        if room >= 0:
            graph.initializer.append(numpy_helper.from_array(constants[name], name))
        else:
            fed[name] = constants[name]
    inner = {tensor.name for tensor in graph.initializer} | outputs.keys()
    for name, proto in inputs.items():
        if name not in inner:
            graph.input.append(onnx.ValueInfoProto(name=name, type=proto))
    for name, proto in outputs.items():
        if name in wanted:
            graph.output.append(onnx.ValueInfoProto(name=name, type=proto))
        elif proto.WhichOneof("value"):
            graph.value_info.append(onnx.ValueInfoProto(name=name, type=proto))
    model.functions.extend(functions.values())
    for domain, version in opsets.items():
        model.opset_import.append(onnx.OperatorSetIdProto(domain=domain, version=version))
    return model, fed


def _part(op: Op) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return an op's model with the op's names, and the mapping from its former names."""
    import onnx

    attrs = op.attrs
    assert isinstance(attrs, HostGraphAttrs)
    model = onnx.ModelProto.FromString(attrs.model)
    formal = (*attrs.inputs, *attrs.outputs)
    actual = (*op.inputs, *op.outputs)
    names = {old: new for old, new in zip(formal, actual, strict=True) if old and old != new}
    if names:
        for node in model.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
            rename_reads(node, lambda name: names.get(name, name))
    return model, names


def opset_key(op: Op) -> tuple[tuple[str, int], ...]:
    """Return the operator sets that an op's model is written in."""
    import onnx

    assert isinstance(op.attrs, HostGraphAttrs)
    model = onnx.ModelProto.FromString(op.attrs.model)
    return tuple(sorted((entry.domain, entry.version) for entry in model.opset_import))
