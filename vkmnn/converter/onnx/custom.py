"""The generic node vkmnn::Custom: its type is text, its attributes become bytes."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.custom import CUSTOM, CustomAttrs

_TYPE = "type"


@converter(CUSTOM, domain="vkmnn")
def _custom(node: NodeContext) -> None:
    found = []
    for name, kind in node.attribute_kinds.items():
        if name != _TYPE:
            found.append((name, _bytes(node, name, kind)))
    attrs = CustomAttrs(node.string(_TYPE), tuple(sorted(found)))
    node.emit(CUSTOM, node.inputs, attrs, node.outputs)


def _bytes(node: NodeContext, name: str, kind: str) -> bytes:
    """Return an attribute as bytes: strings as they are, numbers as ONNX stores them."""
    if kind == "a string":
        return node.bytes(name)
    if kind in ("an int", "ints"):
        return np.array(node.ints(name) if kind == "ints" else node.int(name), "<i8").tobytes()
    if kind in ("a float", "floats"):
        values = node.floats(name) if kind == "floats" else node.float(name)
        return np.array(values, "<f4").tobytes()
    if kind == "a tensor":
        array = node.tensor(name)
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    raise node.unsupported(f"attribute '{name}' is {kind}, which has no bytes")
