"""Keras's files, and its models in memory, as a front end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.tensorflow import TensorflowFrontEnd
from vkmnn.ir import Graph

SUFFIXES = (".keras", ".h5", ".hdf5")
_WEIGHTS = (".weights.h5", ".caffemodel.h5")
_STARTS = (b"PK\x03\x04", b"\x89HDF\r\n\x1a\n")
_MODEL = "keras.src.models.model.Model"


@dataclass(frozen=True, slots=True)
class _Exported:
    """What TensorFlow's front end has read of a SavedModel, and the folder with its variables."""

    file: Any
    folder: TemporaryDirectory[str]


@front_end("Keras")
class KerasFrontEnd(FrontEnd):
    """Reads paths to `.keras` and `.h5` files, and models in memory, through Keras."""

    def recognises(self, model: object, start: bytes) -> bool:
        if isinstance(model, str | os.PathLike):
            name = os.fspath(model).lower()
            named = name.endswith(SUFFIXES) and not name.endswith(_WEIGHTS)
            return named and start.startswith(_STARTS)
        names = {f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__}
        return _MODEL in names

    def read(self, model: Any) -> _Exported:
        from vkmnn.converter.keras.export import export, load

        made = load(Path(os.fspath(model))) if isinstance(model, str | os.PathLike) else model
        folder = TemporaryDirectory(prefix="vkmnn-keras-")
        path = Path(folder.name) / str(getattr(made, "name", "keras")).replace(os.sep, "_")
        export(made, path)
        return _Exported(TensorflowFrontEnd().read(path), folder)

    def convert(self, source: _Exported, conversion: Conversion) -> Graph:
        return TensorflowFrontEnd().convert(source.file, conversion)
