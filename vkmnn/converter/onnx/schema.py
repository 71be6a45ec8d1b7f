"""onnx's operator schemas: validity of nodes, and function bodies of operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from vkmnn.converter.onnx.node import UnknownTensorError, UnsupportedCaseError
from vkmnn.converter.onnx.source import SourceNode
from vkmnn.converter.onnx.types import tensor_type
from vkmnn.errors import ModelError
from vkmnn.ir import DType, TensorInfo

if TYPE_CHECKING:
    import onnx

# onnx.defs.OpSchema; its type hints lack the members used here.
Schema: TypeAlias = Any

_KIND = re.compile("bool|int|float|double")


def find_schema(node: SourceNode) -> Schema | None:
    """Return the schema of the node's operator at its opset, or None when onnx has none."""
    from onnx import defs

    try:
        return defs.get_schema(node.op, node.opset, node.domain)
    except defs.SchemaError:
        return None


def check_node(node: SourceNode, schema: Schema) -> None:
    """Check the numbers of inputs and outputs and the attributes against the schema.

    Raises:
        ModelError: the node does not fit.
    """
    proto = node.proto

    def error(what: str) -> ModelError:
        return ModelError(
            what,
            op=node.op,
            node=node.name,
            hint=f"the model is not valid for opset {node.opset}; export it again",
        )

    for what, names, minimum, maximum in (
        ("inputs", proto.input, schema.min_input, schema.max_input),
        ("outputs", proto.output, schema.min_output, schema.max_output),
    ):
        if not minimum <= len(names) <= maximum:
            raise error(
                f"{node.op} takes {minimum} to {maximum} {what}, this node has {len(names)}"
            )
    if schema.min_output and proto.output and not any(proto.output):
        raise error("none of its outputs has a name")
    single = type(schema).FormalParameterOption.Single
    for formal, name in zip(schema.inputs, proto.input, strict=False):
        if not name and formal.option == single:
            raise error(f"required input '{formal.name}' is missing")
    seen = set()
    for attribute in proto.attribute:
        expected = schema.attributes.get(attribute.name)
        if expected is None:
            raise error(f"{node.op} has no attribute '{attribute.name}'")
        if int(expected.type.value) != attribute.type:
            raise error(f"attribute '{attribute.name}' is not of type {expected.type.name}")
        if attribute.name in seen:
            raise error(f"attribute '{attribute.name}' is given twice")
        seen.add(attribute.name)
    for name, expected in schema.attributes.items():
        if expected.required and name not in seen:
            raise error(f"required attribute '{name}' is missing")


@lru_cache(maxsize=4096)
def _kinds(op: str, domain: str, since: int, index: int) -> frozenset[str]:
    """Return the kinds of elements that an input may have."""
    from onnx import defs

    schema = defs.get_schema(op, since, domain)
    return frozenset(map(_kind, schema.inputs[min(index, len(schema.inputs) - 1)].types))


def _kind(name: str) -> str:
    """Return the class of an element type: "int" for all integers, "bool", …."""
    match = _KIND.search(name)
    return match[0].replace("double", "float") if match else name


def check_types(node: SourceNode, schema: Schema, info: Callable[[str], TensorInfo | None]) -> None:
    """Check the element types of inputs against the schema, as far as `info` knows them.

    Any integer matches others, and any float: kernels compute the same.

    Raises:
        ModelError: the operator takes none of that kind.
    """
    for index, name in enumerate(node.proto.input):
        found = info(name) if name else None
        if found is None or found.dtype is DType.OBJECT or not schema.inputs:
            continue
        kinds = _kinds(schema.name, schema.domain, schema.since_version, index)
        if _kind(found.dtype.onnx) not in kinds:
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]
            raise ModelError(
                f"{node.op} does not accept {found.dtype.value} as its input '{formal.name}'",
                op=node.op,
                node=node.name,
                hint=f"the model is not valid for opset {node.opset}; put a Cast before this node",
            )


def function_body(
    node: SourceNode, schema: Schema, info: Callable[[str], TensorInfo | None]
) -> onnx.FunctionProto | None:
    """Return the body that defines the operator by others, or None when it has none.

    `info` returns what is known of a tensor.

    Raises:
        UnknownTensorError: the body depends on input types that nothing says.
        UnsupportedCaseError: onnx cannot build the body for this node.
    """
    import onnx

    version = _best_version(schema.function_opset_versions, node.opset)
    if version is not None:
        return _parsed(schema.get_function_with_opset_version(version))
    version = _best_version(schema.context_dependent_function_opset_versions, node.opset)
    if version is None:
        return None
    known = []
    for name in node.proto.input:
        found = info(name) if name else None
        if name and found is None:
            raise UnknownTensorError(f"the type of '{name}' is not known")
        proto = tensor_type(found) if found else onnx.TypeProto()
        known.append(proto.SerializeToString())
    return _context_body(schema, version, node.proto, known)


def sample_body(schema: Schema) -> onnx.FunctionProto | None:
    """Return the body for a node with the fewest inputs and attributes; None if there is none."""
    import onnx

    if schema.function_opset_versions:
        data = schema.get_function_with_opset_version(max(schema.function_opset_versions))
        return _parsed(data)
    if not schema.context_dependent_function_opset_versions:
        return None
    node = onnx.NodeProto(op_type=schema.name, domain=schema.domain, output=["y"])
    node.input.extend(f"x{index}" for index in range(schema.min_input))
    tensor = tensor_type(TensorInfo("x", DType.FLOAT32, (1, 2, 3, 4))).SerializeToString()
    version = max(schema.context_dependent_function_opset_versions)
    try:
        return _context_body(schema, version, node, [tensor] * schema.min_input)
    except UnsupportedCaseError:
        return None


def _context_body(
    schema: Schema, version: int, node: onnx.NodeProto, types: Sequence[bytes]
) -> onnx.FunctionProto | None:
    try:
        data = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), types
        )
    except Exception as error:  # the C++ side throws untyped errors
        raise UnsupportedCaseError(f"onnx cannot expand it: {error}") from error
    return _parsed(data)


def _best_version(versions: Sequence[int], opset: int) -> int | None:
    """Return the newest body for an opset, or the oldest if all are newer.

    All bodies of one schema define the same function, in operators of different opsets.
    """
    if not versions:
        return None
    return max((v for v in versions if v <= opset), default=min(versions))


def _parsed(data: bytes) -> onnx.FunctionProto | None:
    import onnx

    body = onnx.FunctionProto()
    body.ParseFromString(data)
    return body if body.node else None


def schema_defaults(schema: Schema) -> list[onnx.AttributeProto]:
    """Return the default values of the operator's attributes."""
    defaults = (attribute.default_value for attribute in schema.attributes.values())
    return [default for default in defaults if default.name]
