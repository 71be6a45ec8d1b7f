"""ONNX as a front end."""

from __future__ import annotations

import os
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.onnx.builder import GraphBuilder
from vkmnn.converter.onnx.model_file import ModelFile, check_oldest, read_model
from vkmnn.converter.onnx.old_opsets import is_old, upgraded
from vkmnn.ir import Graph

_NATIVE = b"VKMN"
"""Identifier of vkmnn's own files, after an offset of any value."""

_IR_VERSION = b"\x08"
"""First byte of nearly every ONNX file: the field `ir_version`."""


@front_end("ONNX")
class OnnxFrontEnd(FrontEnd):
    """Reads paths, bytes and `onnx.ModelProto`; a `ModelFile` has been read already."""

    def recognises(self, model: object, start: bytes) -> bool:
        if start[4:8] == _NATIVE:
            return False
        if isinstance(model, str | os.PathLike):
            named = os.fspath(model).lower().endswith(".onnx")
            return named or start.startswith(_IR_VERSION)
        if isinstance(model, bytes):
            return start.startswith(_IR_VERSION)
        return type(model).__name__ in ("ModelProto", "ModelFile")

    def read(self, model: Any) -> ModelFile:
        return read_model(model)

    def convert(self, source: ModelFile, conversion: Conversion) -> Graph:
        if conversion.host is None:
            check_oldest(source.proto)
        elif is_old(source.proto):
            source = upgraded(source)
        if conversion.told is not None:
            conversion.told(source)
        wanted = conversion.as_inputs, conversion.host, conversion.shapes
        return GraphBuilder(source, conversion.meter, conversion.evaluate, *wanted).build()
