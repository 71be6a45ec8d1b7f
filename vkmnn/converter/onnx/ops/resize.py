"""Resize and Upsample."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import BinaryAttrs, InterpAttrs

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")
_MODES = ("nearest", "linear", "cubic")


_FRAMEWORKS = ("pytorch", "paddlepaddle", "tf2onnx", "mnn")
"""Producers, in lower case, whose frameworks align the last elements whatever the scales are."""


def _is_of_framework(node: NodeContext) -> bool:
    """Whether a node follows an exporting framework instead of ONNX's reference.

    Tools that rewrite models replace the producer's name, but keep attributes: the exporters of
    PyTorch and TensorFlow write a `nearest_mode` for every mode.
    """
    idle = node.has("nearest_mode") and node.string("mode", "nearest") != "nearest"
    return idle or node.producer.lower().startswith(_FRAMEWORKS)


def _early_attrs(node: NodeContext, nearest_mode: str = "floor") -> InterpAttrs:
    """Upsample and Resize-10 have no half pixels: x_in = x_out / scale."""
    mode = node.choice("mode", "nearest", ("nearest", "linear", "bilinear"))
    mode = "linear" if mode == "bilinear" else mode
    return InterpAttrs(mode, coordinate_mode="asymmetric", nearest_mode=nearest_mode)


@converter("Upsample", since=7)
def _upsample_attribute(node: NodeContext) -> None:
    scales = node.constant(node.floats("scales"), DType.FLOAT32)
    node.finish("Interp", [node.input(0), "", scales], _early_attrs(node))


@converter("Upsample", since=9)
def _upsample(node: NodeContext) -> None:
    node.finish("Interp", [node.input(0), "", node.input(1)], _early_attrs(node))


@converter("Resize", since=10)
def _resize_by_scales(node: NodeContext) -> None:
    """Nearest rounds down along axes that grow and up along those that shrink: two steps."""
    x, scales = node.input(0), node.input(1)
    attrs = _early_attrs(node)
    value = node.const_value(scales)
    known = None if value is None else np.asarray(value, np.float32)
    if attrs.mode == "linear" or (known is not None and (known >= 1).all()):
        node.finish("Interp", [x, "", scales], attrs)
        return
    one = node.constant(1, DType.FLOAT32)
    growing = node.emit("BinaryOp", [scales, one], BinaryAttrs("MAX"))
    shrinking = node.emit("BinaryOp", [scales, one], BinaryAttrs("MIN"))
    if known is None or (known > 1).any():
        x = node.emit("Interp", [x, "", growing], attrs)
    node.finish("Interp", [x, "", shrinking], _early_attrs(node, "ceil"))


@converter("Resize", since=11)
def _resize(node: NodeContext) -> None:
    coordinates = node.choice("coordinate_transformation_mode", "half_pixel", _COORDINATES)
    attrs = InterpAttrs(
        mode=node.choice("mode", "nearest", _MODES),
        coordinate_mode=coordinates,
        nearest_mode=node.choice("nearest_mode", "round_prefer_floor", _NEAREST),
        cubic_coeff_a=node.float("cubic_coeff_a", -0.75),
        exclude_outside=node.bool("exclude_outside"),
        extrapolation_value=node.float("extrapolation_value", 0.0),
        antialias=node.bool("antialias"),
        axes=node.ints("axes", ()),
        keep_aspect_ratio_policy=node.choice("keep_aspect_ratio_policy", "stretch", _POLICIES),
        whole_lengths=coordinates == "align_corners" and _is_of_framework(node),
    )
    x, roi, scales, sizes = (_unless_empty(node, node.input(index)) for index in range(4))
    if coordinates != "tf_crop_and_resize":
        roi = ""
    if bool(scales) == bool(sizes):
        raise node.unsupported("exactly one of scales and sizes has to be given")
    node.finish("Interp", [x, roi, scales, sizes], attrs)


def _unless_empty(node: NodeContext, name: str) -> str:
    """Return "" for an empty constant, which opset 11 writes for an absent input."""
    value = node.const_value(name) if name else None
    return "" if value is not None and np.size(value) == 0 else name
