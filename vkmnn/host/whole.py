"""An ONNX model as one op: an evaluator runs it as a whole."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.external import load_whole
from vkmnn.ir import HOST_GRAPH, Graph, HostGraphAttrs, Op

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger(__name__)


def whole_model(graph: Graph, origin: str | Path | bytes) -> Graph | None:
    """Return a network of one op with the inputs and outputs of another; None without onnxruntime.

    Args:
        graph: the network converted from the model.
        origin: the model, or its path.
    """
    import onnx

    if find_spec("onnxruntime") is None:
        return None
    try:
        model = onnx.load_from_string(origin) if isinstance(origin, bytes) else load_whole(origin)
        _name_outputs(model.graph, [info.name for info in graph.outputs])
        data = model.SerializeToString()
    except Exception as error:  # noqa: BLE001 - protobuf raises what it likes
        _log.info("onnxruntime is not tried: %s", error)
        return None
    inputs, outputs = ([info.name for info in many] for many in (graph.inputs, graph.outputs))
    attrs = HostGraphAttrs(data, tuple(inputs), tuple(outputs), "Model", "")
    op = Op(HOST_GRAPH, "model", inputs, outputs, attrs, graph.name)
    return Graph(graph.name, list(graph.inputs), list(graph.outputs), [op], types=graph.types)


def _name_outputs(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    """Give outputs the network's names: one that the model lists twice has two names there."""
    import onnx

    for value, name in zip(graph.output, names, strict=True):
        if value.name != name:
            copy = onnx.NodeProto(op_type="Identity", name=name, input=[value.name], output=[name])
            graph.node.append(copy)
            value.name = name
