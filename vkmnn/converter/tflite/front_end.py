"""TFLite's files as a front end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.nodes import lists_operators
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.errors import ModelError, ModelFileError
from vkmnn.ir import Graph, GraphState
from vkmnn.schema import Buffer, load_schema

SUFFIX = ".tflite"
_IDENTIFIER = b"TFL3"
_SIGNATURE = "#"


@dataclass(frozen=True, slots=True)
class TfliteFile:
    """The bytes of a file, the name for its graph, and the requested signature."""

    data: memoryview
    name: str
    signature: str


@front_end("TFLite")
class TfliteFrontEnd(FrontEnd):
    """Reads paths, optionally followed by `#` and a signature; and bytes."""

    def recognises(self, model: object, start: bytes) -> bool:
        if start[4:8] == _IDENTIFIER:
            return True
        if not isinstance(model, str | os.PathLike):
            return False
        path, _ = _parts(model)
        return path.suffix.lower() == SUFFIX

    def read(self, model: Any) -> TfliteFile:
        if isinstance(model, bytes):
            return _checked(model, "the model", "model", "")
        path, signature = _parts(model)
        try:
            data = path.read_bytes()
        except (OSError, ValueError) as error:
            missing = (
                "does not exist" if isinstance(error, FileNotFoundError) else f"is unread: {error}"
            )
            raise ModelFileError(
                f"the model file '{path}' {missing}", hint="check the path and its permissions"
            ) from error
        return _checked(data, f"'{path}'", path.stem, signature)

    def convert(self, source: TfliteFile, conversion: Conversion) -> Graph:
        from vkmnn.converter.tflite import operators  # noqa: F401
        from vkmnn.converter.tflite.model import LiteModel

        buffer = Buffer(source.data, load_schema("tflite"), "TFLite")
        model = LiteModel(buffer, source.data, conversion.meter, conversion.shapes)
        onnx = OnnxFrontEnd()
        made = model.convert(source.name, source.signature)
        graph = onnx.convert(onnx.read(made), conversion)
        graph.states = [
            GraphState(state.name, state.output, state.initial)
            for state in model.variables.states.values()
        ]
        return graph


@lists_operators("tflite")
def read_ops() -> Mapping[str, bool]:
    """Return every operator that a file may have, and whether it is read; custom ones by name."""
    from vkmnn.converter.tflite import operators

    return operators.read_ops()


def _parts(model: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the path and the signature that is asked for."""
    path = Path(os.fspath(model))
    before, mark, signature = path.name.rpartition(_SIGNATURE)
    if mark and before.lower().endswith(SUFFIX) and not path.exists():
        return path.with_name(before), signature
    return path, ""


def _checked(data: bytes, what: str, name: str, signature: str) -> TfliteFile:
    if data[4:8] != _IDENTIFIER:
        from vkmnn.converter.foreign import likely_kind

        kind = likely_kind(data[:4096])
        known = f"is {kind.name}, not" if kind else "is not"
        raise ModelFileError(
            f"{what} {known} a TFLite model: it does not begin like one",
            hint=kind.advice if kind else "the download or the conversion did not finish",
        )
    try:
        Buffer(memoryview(data), load_schema("tflite"), "TFLite").root()
    except ModelError as error:
        raise ModelFileError(
            f"{what} is not a TFLite model: {error.message}", hint="the file is damaged"
        ) from error
    return TfliteFile(memoryview(data), name, signature)
