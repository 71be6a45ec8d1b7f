"""Frozen graphs of TensorFlow: files, and their constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, BinaryIO, Protocol

import numpy as np

from vkmnn.converter.nodes.scope import (
    BOOL,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    NUMPY_TYPES,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
)
from vkmnn.converter.onnx.wire import Bytes, Fields, NotAModelError, Splitter
from vkmnn.converter.tensorflow.schema import Message, message_class
from vkmnn.errors import ModelError, ModelFileError
from vkmnn.ir import Array

TYPES = {
    1: FLOAT, 2: DOUBLE, 3: INT32, 4: UINT8, 5: INT16, 6: INT8, 9: INT64, 10: BOOL, 17: UINT16,
    19: FLOAT16, 22: UINT32, 23: UINT64,
}  # fmt: skip
"""ONNX's numbers of element types by TensorFlow's."""

_VALUES = {
    FLOAT: "float_val", DOUBLE: "double_val", INT32: "int_val", UINT8: "int_val",
    INT16: "int_val", INT8: "int_val", INT64: "int64_val", BOOL: "bool_val", UINT16: "int_val",
    FLOAT16: "half_val", UINT32: "uint32_val", UINT64: "uint64_val",
}  # fmt: skip
"""Fields of numbers that are not stored as bytes."""

_NODES = 200_000
_CUT_BYTES = 256
_REST_BYTES = 64 << 20
_MOST_BYTES = 1 << 31
_MARK = b"\0vkmnn"
"""Prefix of an array's placeholder: no array has this size and type."""


class Values(Protocol):
    """Values of variables, by their keys in files.

    Attributes:
        entries: what is known of them.
    """

    entries: dict[str, Message]

    def array(self, key: str, name: str) -> Array:
        """Return a value; the name is for messages."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What callers give a SavedModel, and get: tensors of its graph by public names.

    Attributes:
        inputs: the names of tensors, their element types and shapes, by public name.
        outputs: the same of results.
    """

    inputs: Mapping[str, Message] = field(default_factory=dict)
    outputs: Mapping[str, Message] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GraphFile:
    """A graph.

    Attributes:
        graph: the graph, with placeholders of arrays.
        arrays: the arrays that were cut out of it.
        name: what it is called.
        signature: the signature of a SavedModel that was asked for; None for a frozen graph.
        signatures: the keys of all.
        values: the values of a SavedModel's variables.
        restore: the node that would read them.
    """

    graph: Message
    arrays: list[Bytes]
    name: str
    signature: Signature | None = None
    signatures: tuple[str, ...] = ()
    values: Values | None = None
    restore: str = ""


class _Arrays(Splitter):
    """Extracts the contents of tensors from a graph and leaves their numbers in place."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.cut: list[Bytes] = []
        self.messages = 0

    def without(self, nbytes: int, path: tuple[int, ...]) -> bytes:
        """Return the file without its arrays.

        Args:
            nbytes: its length.
            path: the fields that lead to its graphs.
        """

        def inside(fields: Fields) -> Any:
            return lambda size: self.message(size, fields)

        tensor = inside({4: self.content})
        node = {5: inside({2: inside({8: tensor})})}

        def counted(size: int) -> bytes:
            self.messages += 1
            if self.messages > _NODES:
                raise NotAModelError
            return self.message(size, node)

        fields: Fields = {1: counted, 2: inside({1: inside({3: counted})})}
        for number in reversed(path):
            fields = {number: inside(fields)}
        return self.message(nbytes, fields)

    def content(self, nbytes: int) -> bytes:
        """Cut an array out, if it is worth it."""
        if nbytes < _CUT_BYTES:
            return self.take(nbytes)
        self.cut.append(self.take_array(nbytes))
        return _MARK + (len(self.cut) - 1).to_bytes(4, "little")


def read_message(
    stream: BinaryIO, nbytes: int, kind: str, what: str, path: tuple[int, ...] = ()
) -> tuple[Message, list[Bytes]]:
    """Read a message with graphs; return it, and the arrays that were cut out of them.

    Args:
        stream: the file.
        nbytes: how long it is.
        kind: the class of the message.
        what: what the file is to be, for messages: "'a.pb' is not a frozen graph".
        path: the fields that lead to its graphs.

    Raises:
        ModelFileError: it is not one.
    """
    from google.protobuf.message import DecodeError

    splitter = _Arrays(stream)
    try:
        rest = splitter.without(nbytes, path)
        if len(rest) > _REST_BYTES:
            raise NotAModelError
        return message_class(kind).FromString(rest), splitter.cut
    except (NotAModelError, DecodeError) as error:
        raise ModelFileError(
            what, hint="the download did not finish, or the file is of another kind"
        ) from error


def read_graph(stream: BinaryIO, nbytes: int, name: str, what: str) -> GraphFile:
    """Read a graph.

    Args:
        stream: a serialised GraphDef.
        nbytes: how long it is.
        name: what the graph is called.
        what: what it is, for messages.

    Raises:
        ModelFileError: it is not one.
    """
    refusal = f"{what} is not a frozen graph of TensorFlow"
    graph, arrays = read_message(stream, nbytes, "GraphDef", refusal)
    check_graph(graph, refusal, what)
    return GraphFile(graph, arrays, name)


def check_graph(graph: Message, refusal: str, what: str) -> None:
    """Check that a graph has nodes, and that names are text.

    Raises:
        ModelFileError: it has none, or they are not.
    """
    if not graph.node or not all(node.name and node.op for node in graph.node):
        raise ModelFileError(f"{refusal}: it has no nodes", hint="the file is of another kind")
    functions = graph.library.function
    nodes = [*graph.node, *(node for one in functions for node in one.node_def)]
    for node in nodes:  # protobuf hands out bytes where they are not valid UTF-8
        texts = [node.name, node.op, *node.input]
        for one in node.attr:
            called = one.value.func.name if one.value.HasField("func") else ""
            texts += [one.key, called, *(each.name for each in one.value.list.func)]
        check_texts(texts, what, node.name)
    for one in functions:
        texts = [one.signature.name]
        texts += [arg.name for arg in (*one.signature.input_arg, *one.signature.output_arg)]
        texts += [text for each in (*one.ret, *one.control_ret) for text in (each.key, each.value)]
        check_texts(texts, what, one.signature.name)


def check_texts(texts: list[Any], what: str, where: Any) -> None:
    """Check that names are text.

    Raises:
        ModelFileError: they are not.
    """
    if not all(isinstance(text, str) for text in texts):
        raise ModelFileError(
            f"{what} has names that are not text: {where!r}", hint="the file is damaged"
        )


def array_of(file: GraphFile, tensor: Message, node: str) -> Array:
    """Return a tensor.

    Fewer values than elements mean that the last one is repeated.

    Raises:
        ModelError: it contradicts itself, or has elements that are no numbers.
    """
    kind = TYPES.get(tensor.dtype)
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if kind is None:
        raise ModelError(
            f"a constant with elements of TensorFlow's type {tensor.dtype}", op="Const", node=node,
            hint="vkmnn runs networks on numbers: cut off what reads texts",
        )  # fmt: skip
    dtype = np.dtype(NUMPY_TYPES[kind])
    count = prod(shape)
    if min(shape, default=0) < 0 or len(shape) > 32 or count * dtype.itemsize > _MOST_BYTES:
        raise ModelError(f"a constant of shape {shape}", op="Const", node=node)
    content: Any = tensor.tensor_content
    if len(content) == len(_MARK) + 4 and content.startswith(_MARK):
        number = int.from_bytes(content[len(_MARK) :], "little")
        content = file.arrays[number] if number < len(file.arrays) else b""
    if len(content):
        if len(content) != count * dtype.itemsize:
            raise ModelError(
                f"a constant of shape {shape} has {len(content)} bytes", op="Const", node=node
            )
        stored = np.frombuffer(content, dtype.newbyteorder("<"))
        return stored.astype(dtype, copy=False).reshape(shape)
    values = np.array(getattr(tensor, _VALUES[kind]))
    if kind == FLOAT16:
        values = values.astype(np.uint16).view(np.float16)
    if values.size > count:
        raise ModelError(
            f"a constant of shape {shape} has {values.size} values", op="Const", node=node
        )
    found = np.zeros(count, dtype)
    found[: values.size] = values
    if values.size:
        found[values.size :] = values[-1]
    return found.reshape(shape)
