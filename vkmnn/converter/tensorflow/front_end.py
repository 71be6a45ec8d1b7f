"""Frozen graphs and SavedModels of TensorFlow as a front end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.nodes import lists_operators
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.errors import ModelFileError
from vkmnn.ir import Graph

SUFFIX = ".pb"
_SAVED = "saved_model.pb"
_SIGNATURE = "#"
_FIRST = b"\x0a"
"""A GraphDef starts with a node; an ONNX model, which may be called .pb, too, does not."""


@front_end("TensorFlow")
class TensorflowFrontEnd(FrontEnd):
    """Reads paths to frozen graphs and to SavedModels, `#` and a signature behind these.

    The modules that read operators are imported with the first graph.
    """

    def recognises(self, model: object, start: bytes) -> bool:
        if not isinstance(model, str | os.PathLike):
            return False
        path = Path(os.fspath(model))
        if path.suffix.lower() == SUFFIX and start[:1] in (_FIRST, b""):
            return path.name != _SAVED or bool(start)
        return _saved_model(path) is not None

    def read(self, model: Any) -> Any:
        from vkmnn.converter.tensorflow.files import read_graph
        from vkmnn.converter.tensorflow.saved_model import read_saved_model

        path = Path(os.fspath(model))
        saved = _saved_model(path)
        if saved is not None:
            return read_saved_model(*saved)
        try:
            with path.open("rb") as file:
                return read_graph(file, path.stat().st_size, path.stem, f"'{path}'")
        except (OSError, ValueError) as error:
            missing = (
                "does not exist" if isinstance(error, FileNotFoundError) else f"is unread: {error}"
            )
            raise ModelFileError(
                f"the model file '{path}' {missing}", hint="check the path and its permissions"
            ) from error

    def convert(self, source: Any, conversion: Conversion) -> Graph:
        from vkmnn.converter.tensorflow.graph import to_onnx

        model, states = to_onnx(source, conversion.meter, conversion.shapes)
        onnx = OnnxFrontEnd()
        graph = onnx.convert(onnx.read(model), conversion)
        graph.states = states
        return graph


def _saved_model(path: Path) -> tuple[Path, str] | None:
    """Return the folder of a SavedModel and the signature that is asked for; None for others."""
    before, mark, signature = path.name.rpartition(_SIGNATURE)
    choices = [(path, "")]
    if mark and before:
        choices.append((path.with_name(before), signature))
    for one, name in choices:
        folder = one.parent if one.name == _SAVED else one
        try:
            if (folder / _SAVED).is_file():
                return folder, name
        except (OSError, ValueError):
            continue
    return None


@lists_operators("tensorflow")
def read_operators() -> dict[str, bool]:
    """Return the operators that are known, and whether they are read."""
    from vkmnn.converter.tensorflow.graph import read_operators

    return read_operators()
