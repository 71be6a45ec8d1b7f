"""Preparation of a model for the tools (current opset, named nodes, external data), and saving."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import inner_graphs
from vkmnn.converter.onnx.external import external_names, load_whole
from vkmnn.converter.onnx.model_file import read_model
from vkmnn.converter.onnx.types import tensor_info
from vkmnn.errors import ConversionError, InvalidInputError, ModelError
from vkmnn.ir import TensorInfo

if TYPE_CHECKING:
    import onnx

MIN_OPSET = 13  # the first with a scale per channel
FLOAT_TYPES = frozenset({1, 10, 11, 16})
"""Element types of floats, as TensorProto numbers them."""
_LARGE = 3 << 29  # a protobuf ends at 2 GiB


def load(model: str | Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with all its data included, its functions inlined, every node named.

    Raises:
        ModelFileError: no such file, or not an ONNX model.
        ModelError: external data is missing.
        ConversionError: an opset that cannot be brought to one with a scale per channel.
    """
    import onnx

    checked = read_model(model)
    if isinstance(model, str | Path):
        try:
            proto = load_whole(model)
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(
                f"the data of '{model}' cannot be read: {error}",
                hint="keep the model's external data next to it",
            ) from error
    elif isinstance(model, bytes):
        proto = onnx.load_from_string(model)
    else:
        proto = onnx.ModelProto()
        proto.CopyFrom(checked.proto)
    if proto.functions:
        from onnx import inliner

        proto = inliner.inline_local_functions(proto)
    proto = _current(proto)
    name_nodes(proto)
    return proto


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those inside its nodes, outer ones first."""
    yield graph
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from graphs_of(inner)


def inputs_of(proto: onnx.ModelProto) -> list[TensorInfo]:
    """Return the inputs of a model that have no default.

    Raises:
        ConversionError: one is not a tensor.
    """
    weights = {tensor.name for tensor in proto.graph.initializer}
    infos = []
    for value in proto.graph.input:
        if value.name in weights:
            continue
        info = tensor_info(value.name, value.type)
        if info is None:
            raise ConversionError(f"input '{value.name}' is not a tensor of numbers")
        infos.append(info)
    return infos


def is_large(proto: onnx.ModelProto) -> bool:
    """True for a model that needs a second file for its weights."""
    return sum(len(tensor.raw_data) for tensor in proto.graph.initializer) > _LARGE


def data_path(path: Path) -> Path:
    """Return the path of a model's external weights."""
    return path.with_name(f"{path.name}.data")


def external_files(model: str | Path | bytes | onnx.ModelProto) -> set[Path]:
    """Return the external files that contain a model's weights."""
    if not isinstance(model, str | Path):
        return set()
    folder = Path(model).parent
    return {(folder / name).resolve() for name in external_names(model)}


def has_external_data(model: str | Path | bytes | onnx.ModelProto) -> bool:
    """True for a model with external weight files."""
    return any(tensor.external_data for tensor in read_model(model).proto.graph.initializer)


def save(proto: onnx.ModelProto, path: Path, external: bool) -> list[Path]:
    """Write a model, and its weights to PATH.data if `external`; return the files.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    import onnx

    beside = data_path(path)
    try:
        if external:
            onnx.save_model(
                proto,
                str(path),
                save_as_external_data=True,
                location=beside.name,
                size_threshold=1024,
            )
            # Saving has moved the data out of the model, which is needed again.
            onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
        else:
            path.write_bytes(proto.SerializeToString())
    except OSError as error:
        raise InvalidInputError(
            f"'{path}' cannot be written: {error.strerror or error}",
            hint="temporary files are in the folder of the output, and need several times its size",
        ) from error
    return [one for one in (beside, path) if one.exists()]


def _current(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in an opset that has a scale per channel."""
    from onnx import version_converter

    opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 0)
    if not 0 < opset < MIN_OPSET:
        return proto
    try:
        return version_converter.convert_version(proto, MIN_OPSET)
    except Exception as error:  # C++ may raise anything
        raise ConversionError(
            f"the model is of opset {opset} and cannot be converted to {MIN_OPSET}: {error}",
            hint="export it with a newer opset",
        ) from error


def name_nodes(proto: onnx.ModelProto) -> None:
    """Give every node a name of its own."""
    taken: set[str] = set()
    nodes = [node for graph in graphs_of(proto.graph) for node in graph.node]
    named = {node.name for node in nodes}
    for number, node in enumerate(nodes):
        if not node.name or node.name in taken:
            wanted = node.name or f"{node.op_type}_{number}"
            while wanted in taken or (wanted in named and not node.name):
                wanted += "_"
            node.name = wanted
        taken.add(node.name)
