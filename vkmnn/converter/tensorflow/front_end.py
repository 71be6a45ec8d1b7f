"""Frozen graphs of TensorFlow as a front end."""

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
_FIRST = b"\x0a"
"""A GraphDef starts with a node; an ONNX model, which may be called .pb, too, does not."""


@front_end("TensorFlow")
class TensorflowFrontEnd(FrontEnd):
    """Reads paths to frozen graphs.

    The modules that read operators are imported with the first graph.
    """

    def recognises(self, model: object, start: bytes) -> bool:
        if not isinstance(model, str | os.PathLike):
            return False
        path = Path(os.fspath(model))
        named = path.suffix.lower() == SUFFIX and path.name != "saved_model.pb"
        return named and start[:1] in (_FIRST, b"")

    def read(self, model: Any) -> Any:
        from vkmnn.converter.tensorflow.files import read_graph

        path = Path(os.fspath(model))
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

        model = to_onnx(source, conversion.meter, conversion.shapes)
        onnx = OnnxFrontEnd()
        return onnx.convert(onnx.read(model), conversion)


@lists_operators("tensorflow")
def read_operators() -> dict[str, bool]:
    """Return the operators that are known, and whether they are read."""
    from vkmnn.converter.tensorflow.graph import read_operators

    return read_operators()
