"""MNN's model files as a front end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.mnn.model import to_onnx
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.errors import ModelError, ModelFileError
from vkmnn.ir import Graph
from vkmnn.schema import Buffer, load_schema

SUFFIX = ".mnn"


@dataclass(frozen=True, slots=True)
class MnnFile:
    """The FlatBuffer of a file, the name for its graph, and the bytes of its external weights."""

    buffer: Buffer
    name: str
    weights: bytes


@front_end("MNN")
class MnnFrontEnd(FrontEnd):
    """Reads paths, and bytes that contain ops in MNN's schema.

    A file's first bytes do not identify it as MNN's.
    """

    def recognises(self, model: object, start: bytes) -> bool:
        if isinstance(model, bytes):
            return _is_mnn(model)
        return isinstance(model, str | os.PathLike) and os.fspath(model).lower().endswith(SUFFIX)

    def read(self, model: Any) -> MnnFile:
        if isinstance(model, bytes):
            return MnnFile(_buffer(model, "the model"), "model", b"")
        path = Path(os.fspath(model))
        buffer = _buffer(_content(path), f"'{path}'")
        beside = path.with_name(f"{path.name}.weight")
        weights = _content(beside) if beside.is_file() else b""
        return MnnFile(buffer, path.stem, weights)

    def convert(self, source: MnnFile, conversion: Conversion) -> Graph:
        model = to_onnx(source.buffer, source.name, source.weights, conversion.meter)
        onnx = OnnxFrontEnd()
        return onnx.convert(onnx.read(model), conversion)


def _is_mnn(data: bytes) -> bool:
    if int.from_bytes(data[:4], "little") > len(data) - 4:  # where the root begins
        return False
    try:
        _buffer(data, "")
    except ModelError:
        return False
    return True


def _buffer(data: bytes, what: str) -> Buffer:
    if len(data) < 8:
        raise ModelFileError(
            f"{what} is not an MNN model: it has {len(data)} bytes",
            hint="the download or the conversion did not finish",
        )
    buffer = Buffer(memoryview(data), load_schema("mnn"), "MNN")
    try:
        if not buffer.root().tables("oplists"):
            raise ModelError("it has no ops")
    except ModelError as error:
        raise ModelFileError(
            f"{what} is not an MNN model: {error.message}",
            hint="the file is damaged, or of another kind",
        ) from error
    return buffer


def model_uuid(path: str) -> str:
    """Return the identifier that MNN's converter writes into a file; "" if there is none.

    Raises:
        ModelFileError: the file does not exist, or it is not MNN's.
    """
    return MnnFrontEnd().read(path).buffer.root().text("mnn_uuid")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        missing = (
            "does not exist" if isinstance(error, FileNotFoundError) else f"is unread: {error}"
        )
        raise ModelFileError(
            f"the model file '{path}' {missing}", hint="check the path and its permissions"
        ) from error
