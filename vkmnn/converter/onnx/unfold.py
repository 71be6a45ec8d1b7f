"""Col2Im: blocks of an image, added up where they overlap."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir.ops import AxisAttrs, BinaryAttrs, PadAttrs, ReshapeAttrs

_MAX_TAPS = 64


@converter("Col2Im", since=18)
def _col2im(node: NodeContext) -> None:
    """For each place in a block: spread what stands there over the image, and add."""
    x = node.input(0)
    image, kernel = (_constant(node, name) for name in node.inputs[1:3])
    axes = len(image)
    ones = (1,) * axes
    dilations, strides = node.ints("dilations", ones), node.ints("strides", ones)
    pads = node.ints("pads", (0,) * 2 * axes)
    if prod(kernel) > _MAX_TAPS:
        raise node.unsupported(f"blocks of {prod(kernel)} elements")
    blocks = [
        (size + before + after - dilation * (extent - 1) - 1) // stride + 1
        for size, before, after, dilation, extent, stride in zip(
            image, pads[:axes], pads[axes:], dilations, kernel, strides, strict=True
        )
    ]
    taps = _reshaped(node, x, [0, -1, prod(kernel), *blocks])
    total = ""
    for number, place in enumerate(product(*map(range, kernel))):
        offsets = [
            k * dilation - pad for k, dilation, pad in zip(place, dilations, pads, strict=False)
        ]
        tap = node.emit("Gather", [taps, node.constant(np.int64(number))], AxisAttrs(2))
        tap = _placed(node, tap, blocks, strides, offsets, image)
        if total:
            tap = node.emit("BinaryOp", [total, tap], BinaryAttrs("ADD"))
        total = tap
    node.finish("Identity", [total])


def _placed(
    node: NodeContext,
    tap: str,
    blocks: list[int],
    strides: tuple[int, ...],
    offsets: list[int],
    image: list[int],
) -> str:
    """Return one element of each block where it stands in the image, with zeros around."""
    spread = [blocks[axis] * strides[axis] for axis in range(len(blocks))]
    if any(stride > 1 for stride in strides):
        tap = _reshaped(node, tap, [0, 0, *(size for count in blocks for size in (count, 1))])
        gaps = [0, 0, *(gap for stride in strides for gap in (0, stride - 1))]
        tap = _padded(node, tap, [0] * len(gaps), gaps)
        tap = _reshaped(node, tap, [0, 0, *spread])
    after = [
        size - offset - extent for size, offset, extent in zip(image, offsets, spread, strict=True)
    ]
    return _padded(node, tap, [0, 0, *offsets], [0, 0, *after])


def _reshaped(node: NodeContext, x: str, shape: list[int]) -> str:
    return node.emit("Reshape", [x, node.ints_constant(shape)], ReshapeAttrs())


def _padded(node: NodeContext, x: str, before: list[int], after: list[int]) -> str:
    if not any((*before, *after)):
        return x
    return node.emit("Pad", [x, node.ints_constant([*before, *after])], PadAttrs())


def _constant(node: NodeContext, name: str) -> list[int]:
    value = node.const_value(name)
    if value is None:
        raise node.unsupported("the sizes of image and blocks are not constant")
    return [int(size) for size in value.reshape(-1)]
