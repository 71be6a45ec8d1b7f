"""Converts nodes to separate models for an ONNX evaluator on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.branches import inner_graphs, reads, separate_outputs
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.converter.onnx.inference import infer_shapes
from vkmnn.converter.onnx.source import SourceNode
from vkmnn.converter.onnx.tensors import with_data
from vkmnn.converter.onnx.types import DTYPES, TEXT_TYPES, tensor_info, type_text
from vkmnn.ir import Array, DType, HostGraphAttrs, TensorInfo

if TYPE_CHECKING:
    import onnx

_STRING = 8  # TensorProto.DataType
_KNOWN_BYTES = 1024
"""Constants up to this size are shown to the inference of types and shapes."""


class HostCheck(Protocol):
    """Says whether some evaluator on the host runs a model."""

    def __call__(
        self, model: onnx.ModelProto, untyped: Collection[str]
    ) -> Mapping[str, onnx.TypeProto] | str:
        """Return the types of outputs as far as evaluators know them, or why none runs it.

        Args:
            model: the model.
            untyped: outputs whose types are not known otherwise.
        """


@dataclass(slots=True)
class HostValues:
    """Infos of values without a counterpart in the graph.

    Attributes:
        types: ONNX types by name, where they are known.
        tensors: constants of other element types, with their data in them.
    """

    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)


def is_data(proto: onnx.TypeProto | None) -> bool:
    """True for a dense tensor of an element type that graphs support."""
    return (
        proto is not None
        and proto.WhichOneof("value") == "tensor_type"
        and proto.tensor_type.elem_type in DTYPES
    )


def host_info(name: str, proto: onnx.TypeProto | None) -> TensorInfo:
    """Return the graph's info of a value: a tensor of its vocabulary, or an object."""
    info = tensor_info(name, proto) if proto is not None and is_data(proto) else None
    return info or TensorInfo(name, DType.OBJECT, None)


def constant_type(tensor: onnx.TensorProto) -> onnx.TypeProto:
    """Return the type of a constant."""
    from onnx import helper

    return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))


def object_constant(node: onnx.NodeProto, folder: Path | None) -> onnx.TensorProto | None:
    """Return the value of a Constant node that only the host supports."""
    from onnx import helper

    if node.op_type != "Constant" or normal_domain(node.domain) or len(node.attribute) != 1:
        return None
    (attribute,), (name,) = node.attribute, node.output
    if attribute.name == "value":
        return with_data(attribute.t, name, folder)
    if attribute.name == "value_string":
        return helper.make_tensor(name, _STRING, [], [attribute.s])
    if attribute.name == "value_strings":
        return helper.make_tensor(name, _STRING, [len(attribute.strings)], attribute.strings)
    return None


def cut_out(
    node: SourceNode,
    functions: Iterable[onnx.FunctionProto],
    type_of: Callable[[str], onnx.TypeProto | None],
    tensors: Mapping[str, onnx.TensorProto],
    ir_version: int,
) -> tuple[onnx.ModelProto, list[str]]:
    """Return a model of one node, and the names of its inputs.

    Args:
        node: the node; outer tensors that its inner graphs read become inputs too.
        functions: the model's own functions; those that it calls are included.
        type_of: the type of a tensor, where it is known.
        tensors: constants that become initializers.
        ir_version: IR version of the model.
    """
    import onnx

    model = onnx.ModelProto(ir_version=ir_version, producer_name="vkmnn")
    model.graph.name = node.name
    model.graph.node.append(node.proto)
    separate_outputs(model.graph.node[0])
    read = dict.fromkeys((*node.proto.input, *sorted(reads(node.proto))))
    inputs = [name for name in read if name and name not in tensors]
    for name in inputs:
        model.graph.input.append(onnx.ValueInfoProto(name=name, type=type_of(name)))
    for name in node.proto.output:
        if name:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    model.graph.initializer.extend(tensors[name] for name in read if name in tensors)
    called = _called(node.proto, {(normal_domain(f.domain), f.name): f for f in functions})
    model.functions.extend(called)
    opsets = dict(node.opsets)
    opsets.setdefault(node.domain, 1)
    for function in called:
        opsets.setdefault(normal_domain(function.domain), 1)
    for domain, version in opsets.items():
        model.opset_import.append(onnx.OperatorSetIdProto(domain=domain, version=version))
    return model, inputs


def _called(
    node: onnx.NodeProto, functions: Mapping[tuple[str, str], onnx.FunctionProto]
) -> list[onnx.FunctionProto]:
    """Return the functions that a node calls, in its inner graphs or by way of others.

    Each comes after those that it calls, as the reference evaluator requires.
    """
    found: dict[int, onnx.FunctionProto] = {}
    seen: set[int] = set()

    def visit(one: onnx.NodeProto) -> None:
        for graph in inner_graphs(one):
            for inner in graph.node:
                visit(inner)
        function = functions.get((normal_domain(one.domain), one.op_type))
        if function is not None and id(function) not in seen:
            seen.add(id(function))
            for inner in function.node:
                visit(inner)
            found[id(function)] = function

    if functions:
        visit(node)
    return list(found.values())


def output_types(
    model: onnx.ModelProto, constants: Mapping[str, Array]
) -> dict[str, onnx.TypeProto]:
    """Return the types of a one-node model's outputs, as far as ONNX's rules infer them.

    Args:
        model: the model; the outputs of its inner graphs get the sizes that the rules tell.
        constants: values of inputs; small ones may decide shapes.
    """
    import onnx
    from onnx import numpy_helper

    known = onnx.ModelProto()
    known.CopyFrom(model)
    for value in model.graph.input:
        array = constants.get(value.name)
        if array is not None and array.nbytes <= _KNOWN_BYTES:
            known.graph.initializer.append(numpy_helper.from_array(array, value.name))
    try:
        inferred = infer_shapes(known)
    except Exception:  # noqa: BLE001 - native code, which throws what it likes
        return {}
    for mine, other in zip(model.graph.node, inferred.graph.node, strict=True):
        _take_sizes(mine, other)
    symbols = {dim for value in model.graph.input for dim in _symbols(value.type)}
    types = {}
    for value in inferred.graph.output:
        if value.type.WhichOneof("value") and not _is_open(value.type):
            _forget(value.type, symbols)
            types[value.name] = value.type
    return {**_declared_types(model), **types}


def _declared_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the element types that the node's schema fixes, as few are inferred for ai.onnx.ml."""
    import onnx

    (node,) = model.graph.node
    version = next(
        (
            entry.version
            for entry in model.opset_import
            if entry.domain == normal_domain(node.domain)
        ),
        1,
    )
    try:
        schema = onnx.defs.get_schema(node.op_type, version, normal_domain(node.domain))
    except onnx.defs.SchemaError:
        return {}
    types = {}
    for name, formal in zip(node.output, schema.outputs, strict=False):
        allowed = formal.types
        code = TEXT_TYPES.get(next(iter(allowed))) if len(allowed) == 1 else None
        if name and code is not None:
            types[name] = onnx.helper.make_tensor_type_proto(code, None)
    return types


def _take_sizes(node: onnx.NodeProto, inferred: onnx.NodeProto) -> None:
    """Add inferred sizes to the outputs of inner graphs: those of a loop that never iterates."""
    for mine, other in zip(inner_graphs(node), inner_graphs(inferred), strict=True):
        for value, like in zip(mine.output, other.output, strict=True):
            if value.type.WhichOneof("value") != "tensor_type" or _is_open(like.type):
                continue
            shape, known = value.type.tensor_type.shape, like.type.tensor_type.shape
            if not value.type.tensor_type.HasField("shape"):
                shape.CopyFrom(known)
            for dim, size in zip(shape.dim, known.dim, strict=False):
                if size.HasField("dim_value"):
                    dim.dim_value = size.dim_value


def _symbols(proto: onnx.TypeProto) -> Iterable[str]:
    if proto.WhichOneof("value") == "tensor_type":
        yield from (dim.dim_param for dim in proto.tensor_type.shape.dim if dim.dim_param)


def _forget(proto: onnx.TypeProto, symbols: Collection[str]) -> None:
    """Remove names invented by shape inference, which are the same for every node."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        for dim in getattr(proto, kind).shape.dim:
            if dim.dim_param and dim.dim_param not in symbols:
                dim.ClearField("dim_param")
    elif kind in ("sequence_type", "optional_type"):
        _forget(getattr(proto, kind).elem_type, symbols)


def _is_open(proto: onnx.TypeProto) -> bool:
    return proto.WhichOneof("value") == "tensor_type" and not proto.tensor_type.elem_type


def host_attrs(
    node: SourceNode, model: onnx.ModelProto, inputs: Iterable[str], reason: str
) -> HostGraphAttrs:
    """Return the attributes of the op for a node."""
    kind = f"{node.domain}::{node.op}" if node.domain else node.op
    outputs = tuple(node.proto.output)
    return HostGraphAttrs(model.SerializeToString(), tuple(inputs), outputs, kind, reason)


def object_types(infos: Iterable[TensorInfo], values: HostValues) -> dict[str, str]:
    """Return the ONNX types, as text, of those values that are objects."""
    return {
        info.name: type_text(values.types[info.name])
        for info in infos
        if info.dtype is DType.OBJECT and info.name in values.types
    }
