"""GGUF files, and folders of safetensors with config.json, as a front end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.language.gguf import is_gguf
from vkmnn.converter.language.source import LanguageSource, is_described, read_source
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.ir import Graph


@front_end("GGUF and safetensors")
class LanguageFrontEnd(FrontEnd):
    """Reads paths; the network is built from the architecture in the files."""

    def recognises(self, model: object, start: bytes) -> bool:
        if not isinstance(model, str | os.PathLike):
            return isinstance(model, LanguageSource)
        return is_gguf(start) or (not start and is_described(Path(os.fspath(model))))

    def read(self, model: Any) -> LanguageSource:
        return model if isinstance(model, LanguageSource) else read_source(Path(os.fspath(model)))

    def convert(self, source: LanguageSource, conversion: Conversion) -> Graph:
        return OnnxFrontEnd().convert(source.network(), conversion)
