"""Col2Im: blocks of an image, summed where they overlap."""

from __future__ import annotations

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.ops import Col2ImAttrs


@converter("Col2Im", since=18)
def _col2im(node: NodeContext) -> None:
    strides, dilations, pads = (node.ints(name, ()) for name in ("strides", "dilations", "pads"))
    node.finish("Col2Im", node.inputs, Col2ImAttrs(strides, dilations, pads))
