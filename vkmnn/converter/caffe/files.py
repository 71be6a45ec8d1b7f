"""Caffe's files: a network as text, its weights, and how each locates the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vkmnn.converter.caffe.schema import Message, message_class
from vkmnn.converter.onnx.wire import Bytes, Fields, NotAModelError, Splitter
from vkmnn.errors import ModelError, ModelFileError
from vkmnn.ir import Array

TEXT, WEIGHTS = ".prototxt", ".caffemodel"

_TEXT_BYTES = 4 << 20
_DEEPEST = 16
_MESSAGES = 100_000
"""Limits of a network, twenty times those of published files. Parsing takes a hundred times the
memory of the text.
"""

_CUT_BYTES = 256
"""Arrays of a blob of at least this many bytes are extracted before protobuf parses the file."""

_REST_BYTES = 16 << 20
"""Limit of a file without its arrays."""

_MARK = b"#"
"""Prefix of an array's placeholder: five bytes, which no float array has."""

_MOST_AXES = 32


@dataclass(frozen=True, slots=True)
class Blob:
    """Weights of a layer: `shape` is as the file states it, four sizes in old files."""

    shape: tuple[int, ...]
    values: Array


@dataclass(frozen=True, slots=True)
class CaffeFile:
    """A network, its weights by the layer's name, and the message for missing ones."""

    net: Message
    name: str
    blobs: Mapping[str, list[Blob]] = field(default_factory=dict)
    missing: str = "the network holds no weights"
    hint: str | None = None


def read_file(path: Path) -> CaffeFile:
    """Read a network with its weights.

    A `.prototxt` uses the weights of the file of the same stem, else the only `.caffemodel` next to
    it. Weights use the network of the `.prototxt` of the same stem, else their own.

    Raises:
        ModelFileError: a file is missing, or is not Caffe's.
    """
    if path.suffix.lower() == WEIGHTS:
        beside = path.with_suffix(TEXT)
        return _read_pair(beside, path) if beside.is_file() else _read_weights(path)
    named = path.with_suffix(WEIGHTS)
    if named.is_file():
        return _read_pair(path, named)
    net = parse_text(_content(path), f"'{path}'")
    try:
        others = sorted(path.parent.glob(f"*{WEIGHTS}"))
    except OSError:
        others = []
    if len(others) == 1:
        return _read_pair(path, others[0])
    missing = f"'{path}' needs its weights, and there is no '{named.name}' beside it"
    listed = ", ".join(one.name for one in others[:4])
    hint = f"put the weights beside it as '{named.name}'"
    hint += f"; the folder has {listed}{', …' if len(others) > 4 else ''}" if others else ""
    return CaffeFile(net, path.stem, missing=missing, hint=hint)


def _read_pair(text: Path, weights: Path) -> CaffeFile:
    net = parse_text(_content(text), f"'{text}'")
    with _opened(weights) as file:
        blobs = _blobs(*_parse(file, weights.stat().st_size, "NetWeights", f"'{weights}'"))
    return CaffeFile(net, text.stem, blobs, f"'{weights}' holds none")


def _read_weights(path: Path) -> CaffeFile:
    with _opened(path) as file:
        return read_weights(file, path.stat().st_size, path.stem, f"'{path}'")


def read_weights(stream: BinaryIO, nbytes: int, name: str, what: str) -> CaffeFile:
    """Read weights with the network that is in them.

    Args:
        stream: a serialised NetParameter.
        nbytes: how long it is.
        name: the name of the network.
        what: its kind, for messages.

    Raises:
        ModelFileError: it is not such a file, or has weights only.
    """
    net, arrays = _parse(stream, nbytes, "NetParameter", what)
    for layer in (*net.layer, *net.layers):  # protobuf returns bytes if they are not UTF-8
        if not all(isinstance(one, str) for one in (layer.name, *layer.bottom, *layer.top)):
            raise ModelFileError(
                f"{what} has names that are not text: {layer.name!r}", hint="the file is damaged"
            )
    if not net.layer and not net.layers:
        raise ModelFileError(
            f"{what} holds no layers",
            hint=f"give the network's {TEXT} file, along with its weights",
        )
    return CaffeFile(net, name, _blobs(net, arrays), f"{what} holds none")


def parse_text(data: bytes, what: str) -> Message:
    """Return a network from text.

    Raises:
        ModelFileError: it is not one, or too large or too deep for one.
    """
    from google.protobuf import text_format

    if len(data) > _TEXT_BYTES:
        raise ModelFileError(
            f"{what} is longer than a network as text, which has at most {_TEXT_BYTES:,} bytes",
            hint=f"is it the right file? weights are in a {WEIGHTS} file",
        )
    try:
        text = data.decode("utf-8-sig")
        _check_nesting(text)
        net = message_class("NetParameter")()
        text_format.Parse(text, net, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, OverflowError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ModelFileError(
            f"{what} is not a network of Caffe as text: {reason}",
            hint="the file is damaged, or of another kind",
        ) from error
    if not net.layer and not net.layers:
        raise ModelFileError(
            f"{what} has no layers",
            hint="give the network, which is often called deploy.prototxt; a solver has none",
        )
    return net


_TOKENS = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{<\[]|[}>\]]""")


def _check_nesting(text: str) -> None:
    """Refuse text that would overload a recursive parser.

    Raises:
        ValueError: it is too deep, or has too many messages.
    """
    depth = messages = 0
    for token in _TOKENS.finditer(text):
        if token[0] in "{<[":
            depth, messages = depth + 1, messages + 1
            if depth > _DEEPEST:
                raise ValueError(f"messages are nested more than {_DEEPEST} deep")
        elif token[0] in "}>]":
            depth -= 1
    if messages > _MESSAGES:
        raise ValueError(f"it has {messages:,} messages, more than {_MESSAGES:,}")


def _content(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read(_TEXT_BYTES + 1)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file.

    Raises:
        ModelFileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as error:
        missing = (
            "does not exist" if isinstance(error, FileNotFoundError) else f"is unread: {error}"
        )
        raise ModelFileError(
            f"the model file '{path}' {missing}", hint="check the path and its permissions"
        ) from error


# --- weights ---------------------------------------------------------------------------------


class _Arrays(Splitter):
    """Extracts the arrays of blobs from a file and leaves their indices in place."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.cut: list[Bytes] = []
        self.messages = 0

    def network(self, nbytes: int) -> bytes:
        """Return the file without its arrays."""
        blob = self.counted({5: self.array, 8: self.array, 12: self.array})
        layer = self.counted({7: blob})
        v0 = self.counted({50: blob})
        v1 = self.counted({1: v0, 6: blob})
        return self.message(nbytes, {2: v1, 100: layer})

    def counted(self, fields: Fields) -> Callable[[int], bytes]:
        """Return a function that copies a message of these fields, and counts them."""

        def read(nbytes: int) -> bytes:
            self.messages += 1
            if self.messages > _MESSAGES:
                raise NotAModelError
            return self.message(nbytes, fields)

        return read

    def array(self, nbytes: int) -> bytes:
        """Cut an array out, if it is worth it."""
        if nbytes < _CUT_BYTES:
            return self.take(nbytes)
        self.cut.append(self.take_array(nbytes))
        return _MARK + (len(self.cut) - 1).to_bytes(4, "little")


def _parse(stream: BinaryIO, nbytes: int, kind: str, what: str) -> tuple[Message, list[Bytes]]:
    """Return a file without its arrays, as a message of a kind, and the arrays."""
    from google.protobuf.message import DecodeError

    splitter = _Arrays(stream)
    try:
        rest = splitter.network(nbytes)
        if len(rest) > _REST_BYTES:
            raise NotAModelError
        return message_class(kind).FromString(rest), splitter.cut
    except (NotAModelError, DecodeError) as error:
        raise ModelFileError(
            f"{what} is not a Caffe model",
            hint="the download did not finish, or the file is of another kind; of forks with "
            f"fields of their own, give the {TEXT} file",
        ) from error


def _blobs(net: Message, arrays: list[Bytes]) -> dict[str, list[Blob]]:
    """Return the weights by the layer's name."""
    found: dict[str, list[Blob]] = {}
    for layer in net.layers:
        holder = layer.layer if layer.HasField("layer") else layer
        found.setdefault(holder.name, [_blob(one, arrays, holder.name) for one in holder.blobs])
    for layer in net.layer:
        found.setdefault(layer.name, [_blob(one, arrays, layer.name) for one in layer.blobs])
    return {name: blobs for name, blobs in found.items() if blobs}


_RAW: dict[int, np.dtype[Any]] = {0: np.dtype("<f8"), 1: np.dtype("<f4"), 2: np.dtype("<f2")}
"""Element types of NVIDIA's fork by their number."""


def _blob(proto: Message, arrays: list[Bytes], layer: str) -> Blob:
    """Return a blob.

    Raises:
        ModelError: its size is not that of its shape.
    """
    legacy = (proto.num, proto.channels, proto.height, proto.width)
    shape = tuple(proto.shape.dim) if proto.HasField("shape") else legacy
    raw = _RAW.get(proto.raw_data_type)
    if proto.raw_data and raw is not None:
        values = _joined(proto.raw_data, arrays, raw)
    elif proto.double_data:
        values = _joined(proto.double_data, arrays, np.dtype("<f8"))
    else:
        values = _joined(proto.data, arrays, np.dtype("<f4"))
    if values is None or len(shape) > _MOST_AXES or min(shape, default=1) < 0:
        raise ModelError(f"a blob of layer '{layer}' is damaged", node=layer)
    if values.size != prod(shape):
        raise ModelError(
            f"a blob of layer '{layer}' holds {values.size:,} numbers, its shape {list(shape)} "
            f"takes {prod(shape):,}",
            node=layer,
        )
    return Blob(shape, values)


def _joined(chunks: Sequence[bytes], arrays: list[Bytes], dtype: np.dtype[Any]) -> Array | None:
    """Return the numbers of a field that may consist of several pieces; None if there are none."""
    parts = []
    for chunk in chunks:
        data: Any = chunk
        if len(chunk) == len(_MARK) + 4:
            number = int.from_bytes(chunk[len(_MARK) :], "little")
            if not chunk.startswith(_MARK) or number >= len(arrays):
                return None
            data = arrays[number]
        if len(data) % dtype.itemsize:
            return None
        parts.append(np.frombuffer(data, dtype))
    found = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])
    return found.astype(np.float32, copy=False)
