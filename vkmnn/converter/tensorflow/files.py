"""Frozen graphs of TensorFlow: files, and their constants."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

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


@dataclass(frozen=True, slots=True)
class GraphFile:
    """A graph, the arrays that were cut out of it, and its name."""

    graph: Message
    arrays: list[Bytes]
    name: str


class _Arrays(Splitter):
    """Extracts the contents of tensors from a graph and leaves their numbers in place."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.cut: list[Bytes] = []
        self.messages = 0

    def graph(self, nbytes: int) -> bytes:
        """Return the file without its arrays."""

        def inside(fields: Fields) -> Any:
            return lambda size: self.message(size, fields)

        tensor = inside({4: self.content})
        node = {5: inside({2: inside({8: tensor})})}

        def counted(size: int) -> bytes:
            self.messages += 1
            if self.messages > _NODES:
                raise NotAModelError
            return self.message(size, node)

        return self.message(nbytes, {1: counted})

    def content(self, nbytes: int) -> bytes:
        """Cut an array out, if it is worth it."""
        if nbytes < _CUT_BYTES:
            return self.take(nbytes)
        self.cut.append(self.take_array(nbytes))
        return _MARK + (len(self.cut) - 1).to_bytes(4, "little")


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
    from google.protobuf.message import DecodeError

    splitter = _Arrays(stream)
    try:
        rest = splitter.graph(nbytes)
        if len(rest) > _REST_BYTES:
            raise NotAModelError
        graph = message_class("GraphDef").FromString(rest)
    except (NotAModelError, DecodeError) as error:
        raise ModelFileError(
            f"{what} is not a frozen graph of TensorFlow",
            hint="the download did not finish, or the file is of another kind",
        ) from error
    if not graph.node or not all(node.name and node.op for node in graph.node):
        raise ModelFileError(
            f"{what} is not a frozen graph of TensorFlow: it has no nodes",
            hint="the file is of another kind",
        )
    for node in graph.node:  # protobuf hands out bytes where they are not valid UTF-8
        texts = (node.name, node.op, *node.input, *(one.key for one in node.attr))
        if not all(isinstance(text, str) for text in texts):
            raise ModelFileError(
                f"{what} has names that are not text: {node.name!r}", hint="the file is damaged"
            )
    return GraphFile(graph, splitter.cut, name)


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
