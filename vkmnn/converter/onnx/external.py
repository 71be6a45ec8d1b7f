"""Models whose data lies in other files: the names of these, and models with all data in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.branches import inner_graphs
from vkmnn.converter.onnx.model_file import ModelFile, read_model
from vkmnn.converter.onnx.tensors import with_data

if TYPE_CHECKING:
    import onnx


def external_names(model: str | Path | bytes | onnx.ModelProto) -> list[str]:
    """Return the files with a model's external data, as it names them, each once.

    Raises:
        ModelError: it is not a model.
    """
    proto = read_model(model).proto
    names: dict[str, None] = {}
    for tensor in _tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                names[entry.value] = None
    return list(names)


def load_whole(path: str | Path) -> onnx.ModelProto:
    """Return a model with all its data in it; links of the hub's cache are followed.

    Raises:
        ModelError: data is missing, damaged or outside the model's folder.
    """
    import onnx

    proto = onnx.load(str(path), load_external_data=False)
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(with_data(tensor, tensor.name, Path(path).parent))
    return proto


def completed(file: ModelFile) -> onnx.ModelProto:
    """Return the model of a file with the weights that were read apart; external data stays."""
    if not file.weights:
        return file.proto
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    for number, data in file.weights.items():
        proto.graph.initializer[number].raw_data = bytes(data)
    return proto


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a model: initializers and attributes, of inner graphs too."""
    graphs = [proto.graph]
    nodes = [node for function in proto.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            nodes.extend(graph.node)
            continue
        node = nodes.pop()
        graphs.extend(inner_graphs(node))
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
