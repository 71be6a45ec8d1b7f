"""A converter's view of a node, and its means of writing ops."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, get_type_hints

import numpy as np

from vkmnn.base.lazy_array import as_array
from vkmnn.converter.onnx.source import SourceNode
from vkmnn.converter.onnx.tensors import array_from_tensor
from vkmnn.errors import ConversionError, ModelError, PluginError
from vkmnn.ir import Array, Dim, DType, Graph, Op, OpAttrs, TensorInfo

if TYPE_CHECKING:
    import onnx


class UnsupportedCaseError(ConversionError):
    """A converter does not support this use of its operator; the message is the reason."""


class UnknownTensorError(UnsupportedCaseError):
    """A tensor's element type or rank is needed, but unknown or without counterpart."""


class ExpandError(UnsupportedCaseError):
    """A converter leaves this use of the operator to its ONNX function body."""


# AttributeProto.AttributeType of the ONNX IR specification, with the field of the value.
_FLOAT, _INT, _STRING, _TENSOR, _SPARSE_TENSOR = 1, 2, 3, 4, 11
_GRAPH, _FLOATS, _INTS, _STRINGS, _TENSORS, _GRAPHS, _SPARSE_TENSORS = 5, 6, 7, 8, 9, 10, 12
_TYPE_NAMES = {
    _FLOAT: "a float",
    _INT: "an int",
    _STRING: "a string",
    _TENSOR: "a tensor",
    _SPARSE_TENSOR: "a sparse tensor",
    _FLOATS: "floats",
    _INTS: "ints",
    _STRINGS: "strings",
    _GRAPH: "a graph",
    _GRAPHS: "graphs",
    _TENSORS: "tensors",
    _SPARSE_TENSORS: "sparse tensors",
}


# Types of fields and the methods of NodeContext that read them.
_READERS: Mapping[object, str] = {
    float: "float",
    int: "int",
    bool: "bool",
    str: "string",
    bytes: "bytes",
    tuple[int, ...]: "ints",
    tuple[float, ...]: "floats",
    tuple[str, ...]: "strings",
    tuple[bytes, ...]: "byte_strings",
}
_READABLE = "float, int, bool, str, bytes, or a tuple of ints, floats, strs or bytes"

_A = TypeVar("_A", bound=OpAttrs)


class Building(Protocol):
    """The graph as it grows, as a node sees it; docstrings are those of `GraphBuilder`."""

    folder: Path | None
    graph: Graph
    read_tensors: set[str]
    notes: dict[str, object]
    makers: dict[str, Op]

    def constant(self, array: Array) -> str: ...

    def new_tensor(self, name: str) -> str: ...

    def folded(self, name: str) -> Array | None: ...

    def set_constant(self, name: str, array: Array) -> None: ...

    def info(self, name: str) -> TensorInfo | None: ...

    def dense(self, sparse: onnx.SparseTensorProto, op: str, node: str) -> Array: ...

    def emit(
        self,
        source: SourceNode,
        op_type: str,
        inputs: Sequence[str],
        attrs: OpAttrs,
        outputs: Sequence[str] | None,
    ) -> str: ...


class NodeContext:
    """A node with typed access to its attributes and inputs, and the emitting of ops.

    Attributes:
        op: operator type. domain: "" for ONNX's own. opset: version of the domain.
        name: unique name in the model.
        inputs, outputs: tensor names, "" where an optional one is absent; trailing "" are removed.
    """

    def __init__(self, source: SourceNode, builder: Building) -> None:
        self._source = source
        self._builder = builder
        self._attributes = {a.name: a for a in source.proto.attribute}
        self._asked: set[str] = set()
        self.op = source.op
        self.domain = source.domain
        self.opset = source.opset
        self.name = source.name
        self.inputs = _trimmed(source.proto.input)
        self.outputs = _trimmed(source.proto.output)
        self.num_outputs = len(source.proto.output)

    # --- attributes ------------------------------------------------------------------------------

    def has(self, name: str) -> builtins.bool:
        """True when the node carries the attribute."""
        self._asked.add(name)
        return name in self._attributes

    @property
    def attribute_kinds(self) -> dict[str, str]:
        """Kinds of the node's attributes by name: "a float", "ints", "a graph", …."""
        return {
            name: _TYPE_NAMES.get(attribute.type, f"of type {attribute.type}")
            for name, attribute in self._attributes.items()
        }

    def unread(self) -> dict[str, str | None]:
        """Return the attributes that nothing has read, each with a similar known name.

        That is a name that was requested, is missing, and is similar.
        """
        absent = [name for name in self._asked if name not in self._attributes]
        left = [name for name in self._attributes if name not in self._asked]
        return {name: next(iter(get_close_matches(name, absent, 1)), None) for name in sorted(left)}

    def _attribute(self, name: str, kind: builtins.int) -> onnx.AttributeProto | None:
        self._asked.add(name)
        attribute = self._attributes.get(name)
        if attribute is not None and attribute.type != kind:
            raise ModelError(
                f"attribute '{name}' is not {_TYPE_NAMES[kind]}", op=self.op, node=self.name
            )
        return attribute

    def _required(self, name: str) -> ModelError:
        near = get_close_matches(name, [one for one in self._attributes if one != name], 1)
        return ModelError(
            f"required attribute '{name}' is missing",
            op=self.op,
            node=self.name,
            hint=f"there is '{near[0]}': is it misspelt?"
            if near and near[0] not in self._asked
            else "the model is not valid ONNX; export it again",
        )

    def _text(self, name: str, value: builtins.bytes) -> str:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(
                f"attribute '{name}' is not text in UTF-8: {error}",
                op=self.op,
                node=self.name,
                hint="a converter reads other bytes with node.bytes or node.byte_strings",
            ) from error

    def int(self, name: str, default: builtins.int | None = None) -> builtins.int:
        """Return an integer attribute; without a default it is required."""
        attribute = self._attribute(name, _INT)
        if attribute is not None:
            return int(attribute.i)
        if default is None:
            raise self._required(name)
        return default

    def bool(self, name: str, default: builtins.bool = False) -> builtins.bool:
        """Return an integer attribute as a flag."""
        return self.int(name, int(default)) != 0

    def axis(self, name: str, default: builtins.int, rank: builtins.int) -> builtins.int:
        """Return an axis of a tensor of this rank, counted from the front.

        Raises:
            ModelError: it is not between -rank and rank - 1.
        """
        axis = self.int(name, default)
        if not -rank <= axis < rank:
            raise ModelError(
                f"attribute '{name}' is {axis}, but the tensor has {rank} axes",
                op=self.op,
                node=self.name,
                hint="the model is not valid ONNX; export it again",
            )
        return axis % rank

    def float(self, name: str, default: builtins.float | None = None) -> builtins.float:
        """Return a float attribute; without a default it is required."""
        attribute = self._attribute(name, _FLOAT)
        if attribute is not None:
            return float(attribute.f)
        if default is None:
            raise self._required(name)
        return default

    def string(self, name: str, default: str | None = None) -> str:
        """Return a string attribute; without a default it is required."""
        attribute = self._attribute(name, _STRING)
        if attribute is not None:
            return self._text(name, attribute.s)
        if default is None:
            raise self._required(name)
        return default

    def ints(
        self, name: str, default: Sequence[builtins.int] | None = None
    ) -> tuple[builtins.int, ...]:
        """Return a list of integers; without a default it is required."""
        attribute = self._attribute(name, _INTS)
        if attribute is not None:
            return tuple(int(value) for value in attribute.ints)
        if default is None:
            raise self._required(name)
        return tuple(default)

    def floats(
        self, name: str, default: Sequence[builtins.float] | None = None
    ) -> tuple[builtins.float, ...]:
        """Return a list of floats; without a default it is required."""
        attribute = self._attribute(name, _FLOATS)
        if attribute is not None:
            return tuple(float(value) for value in attribute.floats)
        if default is None:
            raise self._required(name)
        return tuple(default)

    def strings(self, name: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return a list of strings; it is required if there is no default."""
        attribute = self._attribute(name, _STRINGS)
        if attribute is not None:
            return tuple(self._text(name, value) for value in attribute.strings)
        if default is None:
            raise self._required(name)
        return tuple(default)

    def bytes(self, name: str, default: builtins.bytes | None = None) -> builtins.bytes:
        """Return a string attribute as the bytes that it is; without a default it is required."""
        attribute = self._attribute(name, _STRING)
        if attribute is not None:
            return builtins.bytes(attribute.s)
        if default is None:
            raise self._required(name)
        return default

    def byte_strings(
        self, name: str, default: Sequence[builtins.bytes] | None = None
    ) -> tuple[builtins.bytes, ...]:
        """Return a list of strings as bytes; without a default it is required."""
        attribute = self._attribute(name, _STRINGS)
        if attribute is not None:
            return tuple(builtins.bytes(value) for value in attribute.strings)
        if default is None:
            raise self._required(name)
        return tuple(default)

    def graph(self, name: str) -> onnx.GraphProto:
        """Return a required attribute that is a graph, unconverted."""
        attribute = self._attribute(name, _GRAPH)
        if attribute is None:
            raise self._required(name)
        return attribute.g

    def graphs(self, name: str) -> tuple[onnx.GraphProto, ...]:
        """Return a required list of graphs, as the file has them."""
        attribute = self._attribute(name, _GRAPHS)
        if attribute is None:
            raise self._required(name)
        return tuple(attribute.graphs)

    def tensor(self, name: str) -> Array:
        """Return a required tensor attribute."""
        attribute = self._attribute(name, _TENSOR)
        if attribute is None:
            raise self._required(name)
        return array_from_tensor(attribute.t, self._builder.folder)

    def sparse_tensor(self, name: str) -> Array:
        """Return a required attribute that is a sparse tensor, in its dense form."""
        attribute = self._attribute(name, _SPARSE_TENSOR)
        if attribute is None:
            raise self._required(name)
        return self._builder.dense(attribute.sparse_tensor, self.op, self.name)

    def tensors(self, name: str) -> tuple[Array, ...]:
        """Return a required list of tensors."""
        attribute = self._attribute(name, _TENSORS)
        if attribute is None:
            raise self._required(name)
        return tuple(array_from_tensor(one, self._builder.folder) for one in attribute.tensors)

    def sparse_tensors(self, name: str) -> tuple[Array, ...]:
        """Return a required list of sparse tensors, in their dense form."""
        attribute = self._attribute(name, _SPARSE_TENSORS)
        if attribute is None:
            raise self._required(name)
        found = attribute.sparse_tensors
        return tuple(self._builder.dense(one, self.op, self.name) for one in found)

    def attributes(self, kind: type[_A]) -> _A:
        """Return the attributes as `kind`: each field holds the node's attribute of its name.

        A field has its default if the node has no such attribute. Fields are float, int, bool, str,
        bytes, or a tuple of any number of ints, floats, strs or bytes.

        Raises:
            ModelError: an attribute is of another type, or a field without default is missing.
            PluginError: a field is of no type that a node can hold.
        """
        types = get_type_hints(kind)
        given = {}
        for field in dataclasses.fields(kind):
            read = _READERS.get(types[field.name])
            if read is None:
                raise PluginError(
                    f"{kind.__name__}.{field.name} is a {types[field.name]}",
                    op=self.op,
                    hint=f"use {_READABLE}",
                )
            required = field.default is field.default_factory is dataclasses.MISSING
            if self.has(field.name) or required:
                given[field.name] = getattr(self, read)(field.name)
        return kind(**given)

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return a string attribute that has to be one of `allowed`.

        Raises:
            UnsupportedCaseError: it is not.
        """
        value = self.string(name, default)
        if value not in allowed:
            raise self.unsupported(f"{name} '{value}' is not one of {', '.join(allowed)}")
        return value

    # --- inputs and outputs ----------------------------------------------------------------------

    def input(self, index: builtins.int) -> str:
        """Return the name of an input, "" when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: builtins.int) -> str:
        """Return the name of an output, "" when it is absent."""
        return self.outputs[index] if index < len(self.outputs) else ""

    def is_read(self, index: builtins.int) -> builtins.bool:
        """True if some node or the caller reads this output."""
        return self.output(index) in self._builder.read_tensors

    def constant(self, value: object, dtype: DType | None = None) -> str:
        """Return the name of a constant tensor of this value (numpy's dtype unless given)."""
        return self._builder.constant(as_array(value, dtype.numpy if dtype else None))

    def ints_constant(self, values: Sequence[builtins.int]) -> str:
        """Return the name of a constant 1-D int64 tensor."""
        return self._builder.constant(np.array(values, np.int64))

    def const_value(self, tensor: str) -> Array | None:
        """Return the value of a tensor when it is a constant."""
        return self._builder.graph.constants.get(tensor)

    def known_value(self, tensor: str) -> Array | None:
        """Return the value of a tensor that follows from constants and sizes, else None."""
        return self._builder.folded(tensor) if tensor else None

    def set_constant(self, array: Array) -> None:
        """Make output 0 a constant."""
        self._builder.set_constant(self.outputs[0], array)

    def info(self, tensor: str) -> TensorInfo | None:
        """Return the info of a tensor."""
        return self._builder.info(tensor)

    @property
    def producer(self) -> str:
        """Producer of the model, as stated in the file."""
        return self._builder.graph.metadata.producer

    def note(self, tensor: str, what: object) -> None:
        """Store information on a tensor for the converters of nodes that read it."""
        self._builder.notes[tensor] = what

    def noted(self, tensor: str) -> object | None:
        """Return a note about a tensor."""
        return self._builder.notes.get(tensor)

    def maker(self, tensor: str) -> Op | None:
        """Return the op that produces a tensor, None for inputs and constants."""
        return self._builder.makers.get(tensor)

    def dtype(self, tensor: str) -> DType:
        """Return a tensor's element type.

        Raises:
            UnknownTensorError: it is unknown.
        """
        info = self.info(tensor)
        if info is None:
            raise UnknownTensorError(f"the element type of '{tensor}' is not known")
        return info.dtype

    def shape(self, tensor: str) -> tuple[Dim, ...]:
        """Return a tensor's shape, whose rank must be known.

        Raises:
            UnknownTensorError: it is unknown.
        """
        info = self.info(tensor)
        if info is None or info.shape is None:
            raise UnknownTensorError(f"the rank of '{tensor}' is not known")
        return info.shape

    def rank(self, tensor: str) -> builtins.int:
        """Return a tensor's rank; raises as `shape`."""
        return len(self.shape(tensor))

    def known_rank(self, tensor: str) -> builtins.int | None:
        """Return a tensor's rank, or None if it is unknown."""
        info = self.info(tensor)
        return None if info is None or info.shape is None else len(info.shape)

    # --- results ---------------------------------------------------------------------------------

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: OpAttrs | None = None,
        outputs: Sequence[str] | None = None,
    ) -> str:
        """Add an op and return the name of its first output.

        `outputs` None makes one new tensor; pass `self.outputs` to write the node's own.
        """
        return self._builder.emit(self._source, op_type, inputs, attrs or OpAttrs(), outputs)

    def new(self, name: str) -> str:
        """Return a name for a tensor within the node: one of several outputs of an op."""
        return self._builder.new_tensor(f"{self.name}/{name}")

    def finish(self, op_type: str, inputs: Sequence[str], attrs: OpAttrs | None = None) -> None:
        """Add the op that writes the node's output 0."""
        self.emit(op_type, inputs, attrs, self.outputs[:1])

    def expand(self) -> ExpandError:
        """Return the exception to raise, before any op is emitted, to use the function body."""
        return ExpandError("its function body cannot be used", op=self.op, node=self.name)

    def unsupported(self, reason: str) -> UnsupportedCaseError:
        """Return the exception to raise when this use of the operator cannot be converted."""
        return UnsupportedCaseError(reason, op=self.op, node=self.name)


def _trimmed(names: Sequence[str]) -> list[str]:
    listed = list(names)
    while listed and not listed[-1]:
        listed.pop()
    return listed
