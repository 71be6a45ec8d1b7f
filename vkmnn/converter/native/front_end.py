"""vkmnn's own model files as a front end."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.errors import InvalidInputError, ModelError, ModelFileError
from vkmnn.ir import HOST_GRAPH, Graph
from vkmnn.mapped_files import MappedFile

if TYPE_CHECKING:
    from vkmnn.converter.native.read import ModelFile

SUFFIX = ".vkmnn"
IDENTIFIER = b"VKMN"
"""As in the schema, which is read when there is such a file."""


@front_end("vkmnn")
class NativeFrontEnd(FrontEnd):
    """Reads paths and bytes; weights in files are mapped, not read."""

    optimised = True

    def recognises(self, model: object, start: bytes) -> bool:
        named = isinstance(model, str | os.PathLike) and os.fspath(model).lower().endswith(SUFFIX)
        return named or start[4:8] == IDENTIFIER

    def read(self, model: Any) -> ModelFile:
        from vkmnn.converter.native.read import ModelFile, open_buffer

        if isinstance(model, bytes):
            buffer, start, size, external = open_buffer(memoryview(model))
            if external:
                raise ModelFileError(
                    f"the model's constants are in a file of their own, '{external}'",
                    hint="pass the path of the model instead of its bytes",
                )
            return ModelFile(buffer, memoryview(model)[start : start + size])
        path = Path(os.fspath(model))
        whole = _mapped(path)
        buffer, start, size, external = open_buffer(whole)
        if not external:
            return ModelFile(buffer, whole[start : start + size])
        data = _mapped(_beside(path, external), allow_empty=size == 0)
        if len(data) < size:
            raise ModelFileError(
                f"'{external}' has {len(data)} bytes, the model says {size}",
                hint="put the data that was written with the model beside it",
            )
        return ModelFile(buffer, data[:size])

    def convert(self, source: ModelFile, conversion: Conversion) -> Graph:
        from vkmnn.converter.native.read import read_graph

        if conversion.as_inputs:
            raise InvalidInputError(
                f"'{min(conversion.as_inputs)}' is a constant in this file",
                hint="feed it in the model that the file was made from",
            )
        graph = read_graph(source, conversion.meter)
        if conversion.shapes:
            graph = graph.with_input_shapes(conversion.shapes)
        if any(op.type == HOST_GRAPH for op in graph.ops):
            from vkmnn.converter.onnx.host_models import check_host_models

            check_host_models(graph, conversion.host)
        return graph


def _beside(path: Path, name: str) -> Path:
    """Return the path of a file in the model's folder."""
    plain = name not in (".", "..") and not {"/", "\\", "\0"}.intersection(name)
    found = path.with_name(name) if plain else None
    if found is None or found.resolve().parent != path.resolve().parent:
        raise ModelError(
            f"the model's constants are in '{name}', outside its folder",
            hint="the file may be malicious; put the data beside the model",
        )
    return found


def _mapped(path: Path, *, allow_empty: bool = False) -> memoryview:
    """Return the bytes of a file, mapped into memory."""
    try:
        if not path.is_file():
            missing = "is a folder" if path.is_dir() else "does not exist"
            raise ModelFileError(f"the model file '{path}' {missing}", hint="check the path")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                if allow_empty:
                    return memoryview(b"")
                raise ModelFileError(
                    f"the model file '{path}' is empty",
                    hint="the file is truncated or of another kind; convert the model again",
                )
            return memoryview(MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"the model file '{path}' cannot be read: {error}",
            hint="check the path and its permissions",
        ) from error
