"""The bodies of Loop and Scan as separate models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import outer_names
from vkmnn.converter.onnx.loops.unroll import Ways, constant_condition, is_loop, ways_of
from vkmnn.host.heavy import is_heavy
from vkmnn.ir import Array, HostGraphAttrs, Op

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class BodyModel:
    """A body, and how the op uses it.

    Attributes:
        model: the body; all its outputs have different names.
        given: the op's inputs that the node names, in its order; "" for absent ones.
        formal: the body's inputs.
        outer: the outer tensors that the body reads: its name there → the op's input.
        ways: how a Scan iterates over its inputs; None for a Loop.
        still: the condition after every iteration, if constant; None if it is computed.
        sizes: sizes of each output of the model, as declared or inferred; 0 if unknown.
    """

    model: onnx.ModelProto
    given: tuple[str, ...]
    formal: tuple[str, ...]
    outer: dict[str, str]
    ways: Ways | None
    still: bool | None
    sizes: tuple[tuple[int, ...], ...]


def carries_objects(op: Op) -> bool:
    """Return whether a Loop or Scan carries something other than tensors, such as a sequence."""
    import onnx

    attrs = op.attrs
    assert isinstance(attrs, HostGraphAttrs)
    if attrs.kind not in ("Loop", "Scan"):
        return False
    nodes = onnx.ModelProto.FromString(attrs.model).graph.node
    bodies = (one.g for node in nodes for one in node.attribute if one.name == "body")
    kinds = {value.type.WhichOneof("value") for body in bodies for value in body.input}
    return not kinds <= {None, "tensor_type"}


def body_model(op: Op, constants: Mapping[str, Array], always: bool) -> BodyModel | None:
    """Return the body of a Loop or Scan as a model.

    None for other nodes, and for one that is cheap on the host unless `always` is set.
    """
    import onnx

    attrs = op.attrs
    assert isinstance(attrs, HostGraphAttrs)
    model = onnx.ModelProto.FromString(attrs.model)
    if attrs.kind not in ("Loop", "Scan") or len(model.graph.node) != 1:
        return None
    (node,) = model.graph.node
    body = next((a.g for a in node.attribute if a.name == "body"), None)
    opset = next((one.version for one in model.opset_import if not one.domain), 1)
    if body is None or not is_loop(node) or not (always or is_heavy(body)):
        return None
    ways = None if attrs.kind == "Loop" else ways_of(node, body, len(node.input))
    if attrs.kind == "Scan" and (opset < 9 or ways is None):
        return None
    if attrs.kind == "Loop" and len(body.input) != max(2, len(node.input)):
        return None
    actual = dict(zip(attrs.inputs, op.inputs, strict=True))
    given = tuple(actual.get(name, "") for name in node.input)
    if attrs.kind == "Loop":
        given = (*given, "", "")[: max(2, len(given))]
    if not all(given[0 if ways else 2 :]):
        return None
    kept = {tensor.name for tensor in model.graph.initializer}
    outer = {name: actual[name] for name in sorted(outer_names(body)) if name not in kept}
    sizes = [tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in body.output]
    proto = _alone(model, node, body, ways)
    _take(proto, model, outer, constants)
    read = {name: one for name, one in outer.items() if one not in constants}
    formal = tuple(value.name for value in body.input)
    still = None
    if attrs.kind == "Loop":
        around = {name: constants[one] for name, one in outer.items() if one in constants}
        still = constant_condition(body, around.get)
        if still is not None:
            del proto.graph.output[0], sizes[0]
    return BodyModel(proto, given, formal, read, ways, still, tuple(sizes))


def _alone(
    model: onnx.ModelProto, node: onnx.NodeProto, body: onnx.GraphProto, ways: Ways | None
) -> onnx.ModelProto:
    """Return a body as a model, with the types that its inputs have at first."""
    import onnx

    proto = onnx.ModelProto(ir_version=model.ir_version, producer_name="vkmnn")
    proto.opset_import.extend(model.opset_import)
    proto.functions.extend(model.functions)
    proto.graph.CopyFrom(body)
    types = {value.name: value.type for value in model.graph.input}
    types |= {one.name: _tensor(one.data_type) for one in model.graph.initializer}
    given = list(node.input)
    for place, value in enumerate(proto.graph.input):
        if ways is None and place < 2:
            value.type.CopyFrom(_tensor(9 if place else 7, value.type))
        elif value.type.WhichOneof("value") is None or not value.type.tensor_type.elem_type:
            source = types.get(given[place])
            if source is not None:
                value.type.CopyFrom(source)
                value.type.tensor_type.ClearField("shape")
        if value.type.WhichOneof("value") == "tensor_type" and (ways is not None or place > 1):
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()  # carried values may change their sizes
    for place, value in enumerate(proto.graph.output):
        own = f"vkmnn/result_{place}"
        proto.graph.node.add(op_type="Identity", input=[value.name], output=[own])
        value.name = own
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return proto


def _tensor(kind: int, like: onnx.TypeProto | None = None) -> onnx.TypeProto:
    """Return a type; with `like`, one of a single element in that form."""
    import onnx

    rank = None
    if like is not None:
        rank = [1] * min(1, len(like.tensor_type.shape.dim))
    return onnx.helper.make_tensor_type_proto(kind, rank)


def _take(
    proto: onnx.ModelProto,
    model: onnx.ModelProto,
    outer: Mapping[str, str],
    constants: Mapping[str, Array],
) -> None:
    """Add a captured value of a body: as a constant if possible, else as an input."""
    from onnx import numpy_helper

    read = outer_names(proto.graph)
    proto.graph.initializer.extend(one for one in model.graph.initializer if one.name in read)
    for value in model.graph.input:
        constant = constants.get(outer.get(value.name, ""))
        if value.name in outer and constant is not None:
            proto.graph.initializer.append(numpy_helper.from_array(constant, value.name))
        elif value.name in outer:
            proto.graph.input.append(value)
