"""Operators on boxes: detections and regions of interest."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.ops import NonMaxSuppressionAttrs, OpAttrs


@converter("NonMaxSuppression", since=10)
def _non_max_suppression(node: NodeContext) -> None:
    """Choose boxes, then keep as many rows as were chosen: the host reads that number."""
    center = node.int("center_point_box", 0)
    if center not in (0, 1):
        raise node.unsupported(f"center_point_box is {center}")
    boxes, scores, most, *limits = (node.input(place) for place in range(5))
    most = most or node.constant(np.int64(0))
    rows, count = node.new("rows"), node.new("count")
    inputs = [boxes, scores, most, *limits]
    node.emit("NonMaxSuppression", inputs, NonMaxSuppressionAttrs(center == 1), [rows, count])
    zero = node.ints_constant([0])
    node.finish("Slice", [rows, zero, count, zero], OpAttrs())
