"""PyTorch's programs and their files as a front end."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.converter.torch.sources import Program, Script
from vkmnn.errors import ConversionError
from vkmnn.ir import Graph

SUFFIXES = (".pt2", ".pt", ".pth", ".torchscript", ".jit", ".ts")
_ZIP = b"PK\x03\x04"


@front_end("Torch")
class TorchFrontEnd(FrontEnd):
    """Reads programs of torch.export, TorchScript modules, and files of both.

    What `torch.save` writes, a pickle, is refused by ONNX's front end, which names it.
    """

    def recognises(self, model: object, start: bytes) -> bool:
        if isinstance(model, bytes):
            from vkmnn.converter.torch.archive import kind_of_archive

            return start.startswith(_ZIP) and kind_of_archive(BytesIO(model)) is not None
        if isinstance(model, str | os.PathLike):
            return start.startswith(_ZIP) and os.fspath(model).lower().endswith(SUFFIXES)
        return isinstance(model, Program | Script) or _kind_of_object(model) is not None

    def read(self, model: Any) -> Any:
        from vkmnn.converter.torch.archive import kind_of_archive, load_program, load_script

        if isinstance(model, Program | Script):
            return model
        if (kind := _kind_of_object(model)) is not None:
            return kind(model)
        if isinstance(model, bytes):
            what, name, stream = "the model", "torch", BytesIO(model)
        else:
            path = Path(os.fspath(model))
            what, name = f"'{path}'", path.stem
            try:
                stream = BytesIO(path.read_bytes())
            except OSError:
                return OnnxFrontEnd().read(model)  # says why it cannot be read
        archive = kind_of_archive(stream)
        if archive is None:
            return OnnxFrontEnd().read(model)  # refuses it by its name
        load = load_program if archive == "program" else load_script
        return load(stream, what, name)

    def unstated(self, model: Any) -> tuple[str, ...]:
        if isinstance(model, str | os.PathLike):
            from vkmnn.converter.torch.archive import kind_of_archive

            try:
                with Path(os.fspath(model)).open("rb") as file:
                    if kind_of_archive(file) != "script":
                        return ()
            except OSError:
                return ()  # `read` says why
        source = self.read(model)
        if not isinstance(source, Script) or source.args is not None:
            return ()
        return tuple(one.name for one in source.module.forward.schema.arguments[1:])

    def convert(self, source: Any, conversion: Conversion) -> Graph:
        from vkmnn.converter.torch.exported import convert_program
        from vkmnn.converter.torch.scripted import convert_script

        if isinstance(source, Script):
            return convert_script(source, conversion)
        if isinstance(source, Program):
            return convert_program(source, conversion)
        raise ConversionError(f"{type(source).__name__} is not a program of PyTorch's")


def _kind_of_object(model: object) -> type[Program | Script] | None:
    """Return what an object of torch's is; without importing torch."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__}
    if "torch.export.exported_program.ExportedProgram" in names:
        return Program
    return Script if "torch.jit._script.ScriptModule" in names else None
