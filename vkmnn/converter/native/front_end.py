"""vkmnn's own model files as a front end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.base.budget import host_memory, size_text
from vkmnn.base.mapped_files import map_file, read_file
from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.errors import BudgetError, InvalidInputError, ModelError, ModelFileError
from vkmnn.ir import HOST_GRAPH, Graph

if TYPE_CHECKING:
    from vkmnn.converter.native.read import ModelFile

SUFFIX = ".vkmnn"
MAP_FILES = "VKMNN_MAP_FILES"
IDENTIFIER = b"VKMN"
"""As in the schema, which is read when there is such a file."""


@front_end("vkmnn")
class NativeFrontEnd(FrontEnd):
    """Reads paths and bytes; with `VKMNN_MAP_FILES=1`, weights in files are mapped, not read."""

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
                    f"the model's constants are in a separate file, '{external}'",
                    hint="pass the path of the model instead of its bytes",
                )
            return ModelFile(buffer, memoryview(model)[start : start + size])
        path = Path(os.fspath(model))
        whole = _content(path)
        buffer, start, size, external = open_buffer(whole)
        if not external:
            return ModelFile(buffer, whole[start : start + size])
        data = _content(_beside(path, external), allow_empty=size == 0)
        if len(data) < size:
            raise ModelFileError(
                f"'{external}' has {len(data)} bytes, but the model expects {size}",
                hint="put the data that was written with the model next to it",
            )
        return ModelFile(buffer, data[:size])

    def convert(self, source: ModelFile, conversion: Conversion) -> Graph:
        from vkmnn.converter.native.read import read_graph

        if conversion.as_inputs:
            raise InvalidInputError(
                f"'{min(conversion.as_inputs)}' is a constant in this file",
                hint="feed it in the original model",
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
            hint="the file may be malicious; put the data next to the model",
        )
    return found


def _content(path: Path, *, allow_empty: bool = False) -> memoryview:
    """Return the bytes of a file in memory of whole pages."""
    setting = os.environ.get(MAP_FILES) or "0"
    if setting not in ("0", "1"):
        raise InvalidInputError(
            f"{MAP_FILES}={setting!r} is neither 1 nor 0", hint="set it to 1 or 0"
        )
    try:
        if not path.is_file():
            missing = "is a folder" if path.is_dir() else "does not exist"
            raise ModelFileError(f"the model file '{path}' {missing}", hint="check the path")
        with path.open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes == 0:
                if allow_empty:
                    return memoryview(b"")
                raise ModelFileError(
                    f"the model file '{path}' is empty",
                    hint="the file is truncated or of another kind; convert the model again",
                )
            if setting == "1":
                return memoryview(map_file(file.fileno()))
            there = host_memory()
            if nbytes > there:
                raise BudgetError(
                    f"the model file '{path}' has {size_text(nbytes)}, but this process can "
                    "allocate "
                    f"{size_text(there)}",
                    hint=f"{MAP_FILES}=1 maps files instead of reading them",
                )
            return memoryview(read_file(file.fileno())).toreadonly()
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"the model file '{path}' cannot be read: {error}",
            hint="check the path and its permissions",
        ) from error
