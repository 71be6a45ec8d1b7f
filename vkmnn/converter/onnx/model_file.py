"""From a path, bytes or a protobuf to a checked ModelProto."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from vkmnn.converter.onnx.branches import inner_graphs
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.converter.onnx.wire import Bytes, NotAModelError, split
from vkmnn.errors import ConversionError, ModelError, ModelFileError
from vkmnn.ir import ModelMetadata

if TYPE_CHECKING:
    import onnx

MIN_OPSET = 7
MAX_VERSION = 2**31 - 1

# What the first bytes of files say that people take for ONNX models: (offset, magic, what it is).
_OTHER_FORMATS = (
    (0, b"version https://git-lfs", "a Git LFS pointer; run `git lfs pull` to get the model"),
    (0, b"PK\x03\x04", "a zip archive (PyTorch's .pt?); export the model with torch.onnx.export"),
    (0, b"\x80\x02", "a Python pickle; export the model with torch.onnx.export"),
    (0, b"\x89HDF", "an HDF5 file (Keras?); convert it with tf2onnx"),
    (0, b"GGUF", "a GGUF file, which is not supported"),
    (4, b"TFL3", "a TensorFlow Lite model; convert it with tf2onnx"),
    (4, b"ORTM", "an ORT-format model; give the .onnx file it was made from"),
    (0, b"<!DOCTYPE", "a web page; download the file itself, not its page"),
    (0, b"7767517\n", "an ncnn .param file; give the .onnx file it was made from"),
    (8, b'{"', "a safetensors file, which holds weights only; export the model to ONNX"),
    (0, b"<?xml", "an XML file (OpenVINO's?); give the .onnx file it was made from"),
    (0, b"<html", "a web page; download the file itself, not its page"),
)
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+$")
_MAGIC_BYTES = max(offset + len(magic) for offset, magic, _ in _OTHER_FORMATS)


class ModelFile(NamedTuple):
    """A model as it was read.

    `weights` holds the data of large initializers, by their number in the graph: `proto` has them
    with empty raw_data. `folder` is where external data may lie.
    """

    proto: onnx.ModelProto
    weights: Mapping[int, Bytes]
    folder: Path | None


def read_model(model: str | Path | bytes | onnx.ModelProto | ModelFile) -> ModelFile:
    """Read and check a model; one that was read before is checked again.

    Raises:
        ModelFileError: no such file, or not an ONNX model.
        ModelError: a model that contradicts itself.
        ConversionError: an IR version or opset that the installed onnx package does not know.
        TypeError: the argument is none of these.
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
            raise TypeError(
                f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}"
            )
        file = ModelFile(model, {}, None)
    _check_header(file.proto)
    return file


def _read(path: Path) -> tuple[onnx.ModelProto, Mapping[int, Bytes]]:
    try:
        if not path.exists():
            if _REMOTE.match(str(path)):
                raise ModelFileError(
                    f"'{re.sub(':/+', '://', str(path), count=1)}' is an address, not a file",
                    hint="download the .onnx file first; vkmnn downloads nothing",
                )
            if _HUB_ID.match(str(path)) and not path.parent.exists():
                raise ModelFileError(
                    f"no such file: '{path}'",
                    hint="if this is the name of a model on a hub, download its .onnx file first; "
                    "vkmnn downloads nothing",
                )
            raise ModelFileError(
                f"no such file: '{path}'", hint="check the path; relative to the current folder?"
            )
        if not path.is_file():
            raise ModelFileError(
                f"'{path}' is not a regular file", hint="give the path of an .onnx file"
            )
        with path.open("rb") as file:
            return _parse(file, path.stat().st_size, f"'{path}'")
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{path}' cannot be read: {error}", hint="check the path and its permissions"
        ) from error


def _parse(stream: BinaryIO, nbytes: int, what: str) -> tuple[onnx.ModelProto, Mapping[int, Bytes]]:
    if not nbytes:
        raise ModelFileError(f"{what} is empty", hint="the download or the export did not finish")
    start = stream.read(_MAGIC_BYTES)
    stream.seek(0)
    hint = "the file is truncated or not an ONNX model; export or download it again"
    for offset, magic, other in _OTHER_FORMATS:
        if start[offset : offset + len(magic)] == magic:
            hint = f"this is {other}"
    weights: Mapping[int, Bytes] = {}
    try:
        data, weights = split(stream, nbytes)
    except NotAModelError:  # protobuf says what is wrong
        stream.seek(0)
        data = stream.read()
    # Not before: what is read by then waits for no other thread's imports.
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(f"{what} is not an ONNX model: {error}", hint=hint) from error
    # Any bytes may parse as a protobuf of unknown fields, so ask for what a model must have.
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelFileError(f"{what} is not an ONNX model: it has no graph or no opset", hint=hint)
    return proto, weights


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
    # Converters may list a domain twice, which says nothing new as long as the versions agree.
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
    """Check that names are text: protobuf hands out bytes where they are not valid UTF-8."""
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
    """Return what the file says about itself."""
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
    """Return what may be bytes where it is not valid UTF-8."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def node_count(proto: onnx.ModelProto) -> int:
    """Return how many nodes the file holds: of the graph, of functions and of branches."""
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
