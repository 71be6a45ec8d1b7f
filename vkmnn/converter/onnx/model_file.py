"""From a path, bytes or a protobuf to a checked ModelProto."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from vkmnn.converter.onnx.branches import inner_graphs
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.converter.onnx.wire import Bytes, NotAModelError, split
from vkmnn.errors import ConversionError, InvalidInputError, ModelError, ModelFileError
from vkmnn.ir import ModelMetadata

if TYPE_CHECKING:
    import onnx

MIN_OPSET = 7
MAX_VERSION = 2**31 - 1

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_HEAD_BYTES = 4096
# The tags that a ModelProto may begin with; other formats begin with them by chance.
_FIRST_TAGS = frozenset(b"\x08\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca")


class ModelFile(NamedTuple):
    """A model as it was read.

    `weights` holds the data of large initializers, by their index in the graph: `proto` has them
    with empty raw_data. `folder` may contain external data. `again` returns, by that index, a
    function that reads data once more; None if the data is not in files.
    """

    proto: onnx.ModelProto
    weights: Mapping[int, Bytes]
    folder: Path | None
    again: Callable[[int], Callable[[], Bytes]] | None = None


def read_model(model: str | Path | bytes | onnx.ModelProto | ModelFile) -> ModelFile:
    """Read and check a model; one that was read before is checked again.

    Raises:
        ModelFileError: no such file, or not an ONNX model.
        ModelError: a model that contradicts itself.
        ConversionError: an IR version or opset that the installed onnx package does not know.
        InvalidInputError: the argument is none of these.
    """
    if isinstance(model, ModelFile):
        file = model
    elif isinstance(model, bytes):
        file = ModelFile(*_parse(BytesIO(model), len(model), "the given data"), None)
    elif isinstance(model, str | os.PathLike):
        file = ModelFile(*_read(Path(model)), Path(model).parent)
    else:
        import onnx

        if not isinstance(model, onnx.ModelProto):
            raise InvalidInputError(
                f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}",
                hint=_instead(model),
            )
        file = ModelFile(model, {}, None)
    _check_header(file.proto)
    return file


def _instead(model: object) -> str:
    """Return a hint on what to pass instead of an object that is not a model."""
    if hasattr(model, "read"):
        return "pass the file's path, or its bytes: file.read() of a file opened with mode 'rb'"
    if isinstance(model, bytearray | memoryview):
        return "pass bytes(model)"
    if any(base.__module__.startswith("torch") for base in type(model).__mro__):
        return "compile it: vkmnn.torch.compile(module, args)"
    return "load or export the model, and pass the path of the .onnx file"


def _read(path: Path) -> tuple[onnx.ModelProto, Mapping[int, Bytes]]:
    try:
        if not path.exists():
            if _REMOTE.match(str(path)):
                raise ModelFileError(
                    f"'{re.sub(':/+', '://', str(path), count=1)}' is an address, and was passed "
                    "as a path",
                    hint="pass it as a str: then it is downloaded",
                )
            raise ModelFileError(
                f"no such file: '{path}'", hint="check the path; relative to the current folder?"
            )
        if not path.is_file():
            raise _not_a_file(path)
        with path.open("rb") as file:
            return _parse(file, path.stat().st_size, f"'{path}'", path)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{path}' cannot be read: {error}", hint="check the path and its permissions"
        ) from error


def _not_a_file(path: Path) -> ModelFileError:
    from vkmnn.converter.foreign import kind_of_folder

    kind = kind_of_folder(path) if path.is_dir() else None
    if kind is None:
        what = "is a folder, not a regular file" if path.is_dir() else "is not a regular file"
        return ModelFileError(f"'{path}' {what}", hint="give the path of an .onnx file")
    return ModelFileError(f"'{path}' is {kind.name}, not a regular file", hint=kind.advice)


def _parse(
    stream: BinaryIO, nbytes: int, what: str, path: Path | None = None
) -> tuple[onnx.ModelProto, Mapping[int, Bytes]]:
    if not nbytes:
        raise ModelFileError(f"{what} is empty", hint="the download or the export did not finish")
    head = stream.read(_HEAD_BYTES)
    stream.seek(0)
    if head[0] not in _FIRST_TAGS:
        _refuse_other_formats(head, what, path)
    weights: Mapping[int, Bytes] = {}
    try:
        data, weights = split(stream, nbytes)
    except NotAModelError:  # protobuf decides whether it is a model anyway
        _refuse_other_formats(head, what, path)
        stream.seek(0)
        data = stream.read()
    # Not before: reading up to here waits for no other thread's imports.
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise _not_onnx(what, head, path, "it is truncated or damaged") from error
    # Any bytes may parse as a protobuf of unknown fields, so required fields are checked.
    if not proto.HasField("graph") or not proto.opset_import:
        raise _not_onnx(what, head, path, "it has no graph or no opset")
    return proto, weights


def _refuse_other_formats(head: bytes, what: str, path: Path | None) -> None:
    """Refuse a file whose first bytes mark another format, before the whole of it is read."""
    from vkmnn.converter.foreign import kind_of

    if (kind := kind_of(head, path)) is not None:
        raise ModelFileError(f"{what} is {kind.name}, not an ONNX model", hint=kind.advice)


def _not_onnx(what: str, head: bytes, path: Path | None, otherwise: str) -> ModelFileError:
    from vkmnn.converter.foreign import READ, likely_kind

    kind = likely_kind(head, path)
    if kind is None:
        hint = f"export or download it again; vkmnn reads {', '.join(READ)} files"
        return ModelFileError(f"{what} is not an ONNX model: {otherwise}", hint=hint)
    return ModelFileError(f"{what} is {kind.name}, not an ONNX model", hint=kind.advice)


def _check_header(proto: onnx.ModelProto) -> None:
    import onnx

    if not proto.HasField("graph"):
        raise ModelError("the model has no graph", hint="give a complete ModelProto")
    if proto.ir_version > onnx.IR_VERSION:
        raise ConversionError(
            f"the model has IR version {proto.ir_version}, the installed onnx package knows up to "
            f"{onnx.IR_VERSION}",
            hint="upgrade the onnx package, or export the model for an older IR version",
        )
    _check_strings(proto)
    for entry in proto.opset_import:
        if not 0 <= entry.version <= MAX_VERSION:
            raise ModelError(
                f"the model imports version {entry.version} of domain '{entry.domain}'",
                hint="the file is damaged; export or download it again",
            )
    # Exporters may list a domain twice, which is harmless if the versions agree.
    opsets = {entry.version for entry in proto.opset_import if not normal_domain(entry.domain)}
    if len(opsets) > 1:
        raise ModelError(
            f"the model imports ONNX's operators in {len(opsets)} versions: {sorted(opsets)}",
            hint="a model has one opset for each domain; export it again",
        )
    for opset in opsets:
        _check_opset(opset, 1)
    for function in proto.functions:
        for entry in function.opset_import:
            if not normal_domain(entry.domain):
                _check_opset(entry.version)


def _check_strings(proto: onnx.ModelProto) -> None:
    """Check that names are text: protobuf returns bytes if they are not valid UTF-8."""
    graph = proto.graph
    nodes = list(chain(graph.node, *(function.node for function in proto.functions)))
    while nodes:
        node = nodes.pop()
        for inner in inner_graphs(node):
            nodes.extend(inner.node)
            _check_text((tensor.name for tensor in inner.initializer), "initializer")
            _check_text((value.name for value in chain(inner.input, inner.output)), "value")
        names = chain(
            (node.name, node.op_type, node.domain, node.overload),
            node.input,
            node.output,
            (attribute.name for attribute in node.attribute),
            (attribute.ref_attr_name for attribute in node.attribute),
        )
        _check_text(names, "node")
    for function in proto.functions:
        names = chain((function.name, function.domain), function.input, function.output)
        _check_text(chain(names, function.attribute), "function")
    values = chain(graph.input, graph.output, graph.value_info)
    _check_text((value.name for value in values), "value")
    _check_text((tensor.name for tensor in graph.initializer), "initializer")
    _check_text((graph.name,), "graph")
    _check_text((entry.domain for entry in proto.opset_import), "operator set")


def metadata_of(proto: onnx.ModelProto) -> ModelMetadata:
    """Return the metadata of the file."""
    graph = proto.graph
    texts = (proto.producer_name, proto.domain, proto.doc_string, graph.name, graph.doc_string)
    producer, domain, description, graph_name, graph_description = map(_as_text, texts)
    return ModelMetadata(
        producer=producer,
        domain=domain,
        version=proto.model_version,
        description=description,
        graph_name=graph_name,
        graph_description=graph_description,
        properties={_as_text(one.key): _as_text(one.value) for one in proto.metadata_props},
    )


def _as_text(text: str | bytes) -> str:
    """Return text, or bytes if it is not valid UTF-8."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def node_count(proto: onnx.ModelProto) -> int:
    """Return the number of nodes in the file: of the graph, of functions and of branches."""
    count = 0
    work = [proto.graph.node, *(function.node for function in proto.functions)]
    while work:
        nodes = work.pop()
        count += len(nodes)
        work.extend(inner.node for node in nodes for inner in inner_graphs(node))
    return count


def _check_text(names: Iterable[str], kind: str) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ModelError(
                f"a {kind} has the name {name!r}, which is not text",
                hint="the file is damaged; export or download it again",
            )


def check_oldest(proto: onnx.ModelProto) -> None:
    """Refuse a model in operators of opsets before 7.

    Raises:
        ConversionError: it is one.
    """
    for entry in proto.opset_import:
        if not normal_domain(entry.domain):
            _check_opset(entry.version)


def _check_opset(opset: int, oldest: int = MIN_OPSET) -> None:
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    if opset > newest:
        raise ConversionError(
            f"the model uses opset {opset}, the installed onnx package knows up to {newest}",
            hint="upgrade the onnx package, or export the model for an older opset",
        )
    if opset < oldest:
        raise ConversionError(
            f"the model uses opset {opset}, the oldest supported one is {MIN_OPSET}",
            hint=f"convert it first: onnx.version_converter.convert_version(model, {MIN_OPSET})",
        )
