"""Reads an ONNX file with its large weights straight into arrays, outside the protobuf.

Protobuf's parser copies the whole file, and once more every requested tensor. Here one pass over
the wire format (Protocol Buffers, "Encoding") extracts the data of large initializers; the rest,
some kilobytes, is a valid model for the parser, which still judges everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

LARGE = 4096
"""Data of fewer bytes stays in the model."""

_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9  # field numbers of onnx.proto
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT_BYTES = 10


class NotAModelError(Exception):
    """The bytes cannot be split: truncated, or no protobuf of this form."""


def split(stream: BinaryIO, nbytes: int) -> tuple[bytes, dict[int, Bytes]]:
    """Return the model without the data of its large initializers, and that data.

    Args:
        stream: at the beginning of a serialised ModelProto.
        nbytes: how long it is.

    Returns:
        A serialised ModelProto in which that raw_data is empty, and the raw_data by the number of
        the initializer.

    Raises:
        NotAModelError: the bytes are not a protobuf message.
    """
    reader = _ModelSplitter(stream)
    tensor = {_TENSOR_RAW_DATA: reader.raw_data}
    graph = {_GRAPH_INITIALIZER: lambda size: reader.initializer(size, tensor)}
    model = {_MODEL_GRAPH: lambda size: reader.message(size, graph)}
    return reader.message(nbytes, model), reader.large


Fields = Mapping[int, Callable[[int], bytes]]
"""Replacement for the content of fields: a function of its length, by field number."""


class Splitter:
    """Copies a message from a stream, and lets functions replace the content of fields."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._position = 0

    def message(self, nbytes: int, fields: Fields) -> bytes:
        """Copy a message; functions replace the content of the numbered fields.

        Raises:
            NotAModelError: the bytes are no message.
        """
        end = self._position + nbytes
        parts: list[bytes] = []
        while self._position < end:
            tag, head = self._varint()
            kind = tag & 7
            if kind == _LENGTH:
                size, length = self._varint()
                if size > end - self._position:
                    raise NotAModelError
                rewrite = fields.get(tag >> 3)
                content = self.take(size) if rewrite is None else rewrite(size)
                parts += head, length if len(content) == size else _encoded(len(content)), content
            elif kind == _VARINT:
                parts += head, self._varint()[1]
            elif kind in (_FIXED64, _FIXED32):
                parts += head, self.take(8 if kind == _FIXED64 else 4)
            else:
                raise NotAModelError
        if self._position != end:
            raise NotAModelError
        return b"".join(parts)

    def take_array(self, nbytes: int) -> Bytes:
        """Return the next bytes in a new array."""
        data = np.empty(nbytes, np.uint8)
        if self._stream.readinto(data) != nbytes:  # type: ignore[attr-defined]  # all have it
            raise NotAModelError
        self._position += nbytes
        return data

    def _varint(self) -> tuple[int, bytes]:
        """Return a number and how it is written."""
        written = self.take(1)
        value = written[0] & 0x7F
        while written[-1] & 0x80:
            if len(written) == _MAX_VARINT_BYTES:
                raise NotAModelError
            written += self.take(1)
            value |= (written[-1] & 0x7F) << 7 * (len(written) - 1)
        return value, written

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes.

        Raises:
            NotAModelError: there are fewer.
        """
        data = self._stream.read(nbytes)
        if len(data) != nbytes:
            raise NotAModelError
        self._position += nbytes
        return data


class _ModelSplitter(Splitter):
    """Takes the data of large initializers out of a model."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._initializers = 0
        self.large: dict[int, Bytes] = {}

    def initializer(self, nbytes: int, fields: Fields) -> bytes:
        content = self.message(nbytes, fields)
        self._initializers += 1
        return content

    def raw_data(self, nbytes: int) -> bytes:
        # If a field occurs twice, the last one counts.
        self.large.pop(self._initializers, None)
        if nbytes < LARGE:
            return self.take(nbytes)
        self.large[self._initializers] = self.take_array(nbytes)
        return b""


def _encoded(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
