"""An optimised graph as an ONNX file for viewers such as Netron: nobody runs it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn._version import __version__
from vkmnn.base.whole_files import replacing
from vkmnn.ir import DType, Graph, Op, TensorInfo

if TYPE_CHECKING:
    import onnx

DOMAIN = "vkmnn"
"""The domain of all nodes: vkmnn's ops are not those of ONNX, even where names are equal."""

_LARGEST = 1 << 16
"""Bytes of a value in an attribute, at most; larger ones are left out."""

_MAX_WEIGHTS = (1 << 31) - (1 << 24)


def write_onnx(graph: Graph, path: Path, infos: Mapping[str, TensorInfo] | None = None) -> None:
    """Write a graph as an ONNX file whose nodes are vkmnn's ops, in a domain of their own.

    Each node's doc_string says which nodes of the model it was made of. Weights are in the file,
    or without values where they would take more than the 2 GiB that protobuf allows.

    Args:
        graph: the graph.
        path: the file.
        infos: shapes of tensors that are known beyond those that the graph declares.

    Raises:
        OSError: the file cannot be written.
    """
    data = onnx_model(graph, infos).SerializeToString()
    with replacing(path) as file:
        file.write(data)


def onnx_model(graph: Graph, infos: Mapping[str, TensorInfo] | None = None) -> onnx.ModelProto:
    """Return the model that `write_onnx` writes."""
    from onnx import helper

    known = {**graph.infos, **(infos or {})}
    whole = sum(array.nbytes for array in graph.constants.values()) <= _MAX_WEIGHTS
    used = {name for op in graph.ops for name in op.inputs} | graph.output_names()
    constants = {name: array for name, array in graph.constants.items() if name in used}
    made = helper.make_graph(
        [_node(op) for op in graph.ops],
        graph.name or "graph",
        [_value(known.get(info.name, info)) for info in graph.inputs],
        [_value(known.get(info.name, info)) for info in graph.outputs],
        [_weight(name, array) for name, array in constants.items()] if whole else [],
        doc_string="optimised by vkmnn, for viewers: its operators are vkmnn's",
    )
    if not whole:
        made.input.extend(
            _value(TensorInfo(name, DType.from_numpy(array.dtype), array.shape))
            for name, array in constants.items()
        )
    ends = {value.name for value in (*made.input, *made.output)}
    inner = (name for op in graph.ops for name in op.outputs if name and name not in ends)
    made.value_info.extend(_value(known[name]) for name in inner if name in known)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    model: onnx.ModelProto = helper.make_model(made, opset_imports=opsets, ir_version=8)
    model.producer_name, model.producer_version = "vkmnn", __version__
    return model


def _value(info: TensorInfo) -> onnx.ValueInfoProto:
    import onnx
    from onnx import helper

    if info.dtype is DType.OBJECT:
        return onnx.ValueInfoProto(name=info.name)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(info.dtype.numpy))
    shape = None if info.shape is None else list(info.shape)
    return helper.make_tensor_value_info(info.name, kind, shape)


def _weight(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _node(op: Op) -> onnx.NodeProto:
    from onnx import helper

    kind = getattr(op.attrs, "kind", op.type) if op.type == "HostGraph" else op.type
    node = helper.make_node(
        str(kind), op.inputs, op.outputs, name=op.name, domain=DOMAIN, doc_string=op.source
    )
    for one in fields(op.attrs):
        value = _plain(getattr(op.attrs, one.name))
        if value is not None:
            node.attribute.append(helper.make_attribute(one.name, value))
    return node


def _plain(value: Any) -> Any:
    """Return an attribute's value as ONNX has it; None for those that are absent or too large."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, tuple) and not value):
        return None
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else str(value)
    if isinstance(value, float):
        return value
    if isinstance(value, str | bytes):
        return value if len(value) <= _LARGEST else None
    if isinstance(value, tuple):
        items = [_plain(item) for item in value]
        for kind in (int, str):
            if all(isinstance(item, kind) for item in items):
                return items
        if all(isinstance(item, int | float) for item in items):
            return [float(item) for item in items]
    if is_dataclass(value) or isinstance(value, tuple):
        text = repr(value)
        return text if len(text) <= _LARGEST else None
    return str(value)[:_LARGEST]
