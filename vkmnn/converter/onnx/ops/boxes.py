"""Operators on boxes, and operators that sample images at given points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    DeformColumnsAttrs,
    MatMulAttrs,
    NonMaxSuppressionAttrs,
    OpAttrs,
    ReshapeAttrs,
    RoiAlignAttrs,
    RoiPoolAttrs,
    ShapeAttrs,
)

_MAX_RATIO = 128
"""Maximum samples along a bin; more would take too long."""


@converter("NonMaxSuppression", since=10)
def _non_max_suppression(node: NodeContext) -> None:
    """Choose boxes, then keep as many rows as were chosen; the host reads that number."""
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


def _pair(node: NodeContext, name: str, default: Sequence[int] | None = None) -> tuple[int, int]:
    values = node.ints(name, default)
    if len(values) != 2:
        raise node.unsupported(f"{name} has {len(values)} numbers")
    return values[0], values[1]


@converter("RoiAlign", since=10)
def _roi_align(node: NodeContext) -> None:
    mode, ratio = node.string("mode", "avg"), node.int("sampling_ratio", 0)
    where = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    where = node.string("coordinate_transformation_mode", where)
    size = (node.int("output_height", 1), node.int("output_width", 1))
    if mode not in ("avg", "max") or where not in ("half_pixel", "output_half_pixel"):
        raise node.unsupported(f"mode '{mode}' with coordinates '{where}'")
    if not 0 <= ratio <= _MAX_RATIO or min(size) < 1:
        raise node.unsupported(f"sampling_ratio {ratio} of bins {size}")
    scale = node.float("spatial_scale", 1.0)
    attrs = RoiAlignAttrs(size, ratio, scale, where == "half_pixel", mode == "max")
    node.finish("RoiAlign", node.inputs, attrs)


@converter("MaxRoiPool", since=1)
def _max_roi_pool(node: NodeContext) -> None:
    size = _pair(node, "pooled_shape")
    if min(size) < 1:
        raise node.unsupported(f"pooled_shape {size}")
    node.finish("RoiPool", node.inputs, RoiPoolAttrs(size, node.float("spatial_scale", 1.0)))


@converter("DeformConv", since=19)
def _deform_conv(node: NodeContext) -> None:
    """Unfold the input (im2col), then multiply; a group of channels is a batch."""
    x, w, offsets, bias, factors = (node.input(place) for place in range(5))
    weights = node.shape(w)
    if len(weights) != 4 or not all(isinstance(size, int) for size in weights):
        raise node.unsupported("only two axes, and weights of known sizes")
    filters, channels, *taps = (int(size) for size in weights if isinstance(size, int))
    kernel = (taps[0], taps[1])
    if _pair(node, "kernel_shape", kernel) != kernel:
        raise node.unsupported("kernel_shape is not that of the weights")
    group = node.int("group", 1)
    pads = node.ints("pads", (0, 0, 0, 0))
    strides, dilations = _pair(node, "strides", (1, 1)), _pair(node, "dilations", (1, 1))
    if group < 1 or filters % group or len(pads) != 4 or min(*strides, *dilations) < 1:
        raise node.unsupported(f"{group} groups, pads {pads}, strides {strides}")
    attrs = DeformColumnsAttrs(
        kernel,
        strides,
        dilations,
        (pads[0], pads[1], pads[2], pads[3]),
        node.int("offset_group", 1),
    )
    columns = node.emit("DeformColumns", [x, offsets, *[factors] * bool(factors)], attrs)

    def reshaped(name: str, *shape: int) -> str:
        return node.emit("Reshape", [name, node.ints_constant(shape)], ReshapeAttrs())

    rows = channels * taps[0] * taps[1]
    many = node.ints_constant([0, group, rows, -1])
    columns = node.emit("Reshape", [columns, many], ReshapeAttrs())
    matrix = reshaped(w, 1, group, filters // group, rows)
    sums = node.emit("MatMul", [matrix, columns], MatMulAttrs())
    ends = node.emit("Shape", [offsets], ShapeAttrs(2))
    shape = node.emit("Concat", [node.ints_constant([0, filters]), ends], AxisAttrs(0))
    if not bias:
        node.finish("Reshape", [sums, shape], ReshapeAttrs())
        return
    sums = node.emit("Reshape", [sums, shape], ReshapeAttrs())
    node.finish("BinaryOp", [sums, reshaped(bias, filters, 1, 1)], BinaryAttrs("ADD"))
