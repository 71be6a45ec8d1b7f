"""Caffe's networks as a front end."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.nodes import lists_operators
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.ir import Graph

SUFFIXES = (".prototxt", ".caffemodel")


@front_end("Caffe")
class CaffeFrontEnd(FrontEnd):
    """Reads paths to a network as text or to weights, and the bytes of weights.

    The modules that read layers are imported with the first network.
    """

    def recognises(self, model: object, start: bytes) -> bool:
        if isinstance(model, str | os.PathLike):
            return os.fspath(model).lower().endswith(SUFFIXES)
        return isinstance(model, bytes) and _is_network(start)

    def read(self, model: Any) -> Any:
        from vkmnn.converter.caffe.files import read_file, read_weights

        if isinstance(model, bytes):
            return read_weights(BytesIO(model), len(model), "model", "the model")
        return read_file(Path(os.fspath(model)))

    def convert(self, source: Any, conversion: Conversion) -> Graph:
        from vkmnn.converter.caffe.network import to_onnx

        model, states = to_onnx(source, conversion.meter, conversion.shapes)
        onnx = OnnxFrontEnd()
        graph = onnx.convert(onnx.read(model), conversion)
        graph.states = states
        return graph


def _is_network(start: bytes) -> bool:
    """Return whether a binary file starts as Caffe's do: with a name, then layers or inputs."""
    if len(start) < 3 or start[0] != 0x0A or start[1] > 0x7F:
        return False
    after = start[2 + start[1] :]
    return after[:1] in (b"\x12", b"\x1a") or after[:2] == b"\xa2\x06"


@lists_operators("caffe")
def read_layers() -> dict[str, bool]:
    """Return the known types of layers, and whether they are supported."""
    from vkmnn.converter.caffe.network import known_layers

    return known_layers()
