"""Files of torch.export and of TorchScript, which are zip archives.

torch's own loader of `.pt2` files unpickles parts of them without restrictions, and evaluates
expressions that stand in them. So a file is checked before: no pickle but those of tensors, no
compiled libraries, operators and expressions of sizes only.
"""

from __future__ import annotations

import json
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import IO, Any, Literal

from vkmnn.converter.torch.expressions import is_size
from vkmnn.converter.torch.packages import PROGRAM, need_torch
from vkmnn.converter.torch.sources import Program, Script
from vkmnn.errors import ConversionError, ModelFileError

_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.\w+(\.\w+)?|(_operator|math)\.[a-z]\w*|torch\.sym_\w+|torch\._sym_\w+"
)
_OPAQUE = re.compile(r"/data/constants/(custom_obj|opaque_obj)")
_COMPILED = re.compile(r"/data/aotinductor/|\.(so|dll|dylib|cubin)$")

# What zipfile and json raise; RuntimeError is of members that are encrypted.
_DAMAGES = (
    *(ValueError, KeyError, OSError, EOFError, RuntimeError, RecursionError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error),
)

Kind = Literal["program", "script"]


def kind_of_archive(stream: IO[bytes]) -> Kind | None:
    """Return what an archive holds; None for weights alone, and for other archives."""
    try:
        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
    except _DAMAGES:
        return None
    tails = {name.partition("/")[2] for name in names}
    if "archive_format" in tails or "serialized_exported_program.json" in names:
        return "program"
    if "constants.pkl" in tails and any(tail.startswith("code/") for tail in tails):
        return "script"
    return None


def load_program(stream: BytesIO, what: str, name: str) -> Program:
    """Load a file of `torch.export.save`.

    Raises:
        MissingExtraError: torch is not installed.
        ModelFileError: the file is damaged, or has what a program does not need.
        ConversionError: it is of another version of torch, or compiled.
    """
    torch = need_torch(PROGRAM)
    _check_program(torch, stream, what)
    stream.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.load(stream)
        except Exception as error:
            raise ConversionError(
                f"{what} cannot be loaded by PyTorch {torch.__version__}: {_line(error)}",
                hint="the file is damaged, or of another version of PyTorch: save it again",
            ) from error
    if hasattr(program, "_guards_code"):
        program._guards_code = []  # text that torch would run; the shapes say the same
    return Program(program, name)


def load_script(stream: BytesIO, what: str, name: str) -> Script:
    """Load a file of `torch.jit.save`, by torch's own interpreter of TorchScript.

    Raises:
        MissingExtraError: torch is not installed.
        ConversionError: the file is damaged, or of another version of torch.
    """
    torch = need_torch("a TorchScript file")
    stream.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        try:
            module = torch.jit.load(stream, map_location="cpu")
        except Exception as error:
            raise ConversionError(
                f"{what} cannot be loaded by PyTorch {torch.__version__}: {_line(error)}",
                hint="the file is damaged, or has operators of a library that is not installed",
            ) from error
    return Script(module, name)


def _check_program(torch: Any, stream: BytesIO, what: str) -> None:
    """Refuse what torch would unpickle, evaluate or load beyond tensors and operators."""
    with zipfile.ZipFile(stream) as archive:
        names = archive.namelist()
        if max(Counter(names).values()) > 1:
            raise ModelFileError(f"{what} has a member twice", hint="the file is damaged")
        if any(_COMPILED.search(f"/{name}") for name in names):
            raise ConversionError(
                f"{what} holds code that AOTInductor compiled for one machine",
                hint="give the program that it was made from: torch.export.save(program, FILE)",
            )
        if any(_OPAQUE.search(name) for name in names):
            raise ConversionError(
                f"{what} holds objects of Python or C++, which vkmnn does not load",
                hint="pass them to the module as tensors, and export it again",
            )
        size = sum(one.file_size for one in archive.infolist())
        if size > 2 * stream.getbuffer().nbytes + (1 << 20):
            raise ModelFileError(
                f"{what} is compressed; torch.export writes files as they are",
                hint="save the program again",
            )
        for name in names:
            try:
                if name.endswith(".pt"):
                    _check_pickle(torch, archive.read(name), name, what)
                elif name.endswith(".json"):
                    document = json.loads(archive.read(name))
                    _check_texts(document, what)
                    folder = name.rpartition("/")[0]
                    for member in _pickled(document):
                        _check_pickle(torch, archive.read(f"{folder}/{member}"), member, what)
            except _DAMAGES as error:
                raise ModelFileError(
                    f"{what} is damaged at '{name}': {error}", hint="save the program again"
                ) from error


def _check_pickle(torch: Any, data: bytes, name: str, what: str) -> None:
    """Check that a pickle holds tensors and containers only."""
    if not data:
        return
    try:
        torch.load(BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:
        raise ModelFileError(
            f"{what} holds a pickle of more than tensors, '{name}'",
            hint="vkmnn unpickles nothing: export the module with tensors as arguments, and save "
            "the program again",
        ) from error


def _pickled(document: Any) -> Iterator[str]:
    """Yield the members that a list of weights says are pickles."""
    for _, value in _walk(document):
        if isinstance(value, dict) and value.get("use_pickle"):
            yield str(value.get("path_name"))


def _check_texts(document: Any, what: str) -> None:
    for key, value in _walk(document):
        if not isinstance(value, str):
            continue
        wrong = key == "target" and value.startswith(("torch", "_operator", "math"))
        wrong = wrong and _OPERATOR.fullmatch(value) is None
        if key == "expr_str":
            wrong = not is_size(value)
        if wrong:
            raise ModelFileError(
                f"{what} has {value[:80]!r}, which is neither an operator nor a size",
                hint="the file is damaged; save the program again",
            )


def _walk(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value of a JSON document, with the key that it stands under."""
    todo: list[tuple[str, Any]] = [("", document)]
    while todo:
        key, value = todo.pop()
        yield key, value
        if isinstance(value, dict):
            todo.extend((str(name), inner) for name, inner in value.items())
        elif isinstance(value, list):
            todo.extend((key, inner) for inner in value)


def _line(error: Exception) -> str:
    """Return the first line of an error that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
