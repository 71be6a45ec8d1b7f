"""Sizes of images that are assembled from blocks (Col2Im)."""

from __future__ import annotations

from math import prod

from vkmnn.base.records import dataclass
from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import Col2ImAttrs
from vkmnn.shape.common import Infos, Outputs, Shape, Values, dtype_of, int_list, shape_of
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.rules import shape_rule


@dataclass(frozen=True, slots=True)
class Blocks:
    """Positions of blocks in an image; one entry per spatial axis.

    Attributes:
        image: sizes of the image.
        kernel: sizes of a block.
        counts: how many blocks there are along each axis.
        strides: from one block to the next.
        dilations: from one element of a block to the next.
        begins: where, before the image's first element, the first block begins.
        images: samples times channels.
    """

    image: Shape
    kernel: Shape
    counts: Shape
    strides: Shape
    dilations: Shape
    begins: Shape
    images: int


def blocks_of(attrs: Col2ImAttrs, shape: Shape, values: Values) -> Blocks:
    """Return the positions of the blocks of a tensor [N, C · block elements, blocks] in an image.

    Raises:
        ShapeError: sizes, attributes and the tensor do not fit together.
    """
    image = tuple(int_list(values, 1, "the sizes of the image"))
    kernel = tuple(int_list(values, 2, "the sizes of a block"))
    axes = len(image)
    strides = attrs.strides or (1,) * axes
    dilations, pads = attrs.dilations or (1,) * axes, attrs.pads or (0,) * 2 * axes
    if [len(kernel), len(strides), len(dilations), len(pads)] != [axes, axes, axes, 2 * axes]:
        raise ShapeError(f"blocks of {kernel} in an image of {image} do not fit the attributes")
    if min((*kernel, *strides, *dilations), default=1) < 1 or min(image, default=0) < 0:
        raise ShapeError(f"blocks of {kernel} in an image of {image}, {strides} apart")
    room = [size + pads[i] + pads[axes + i] for i, size in enumerate(image)]
    free = [room[i] - dilations[i] * (kernel[i] - 1) - 1 for i in range(axes)]
    counts = tuple(max(0, size // step + 1) for size, step in zip(free, strides, strict=True))
    taps = prod(kernel)
    if len(shape) != 3 or shape[1] % taps or shape[2] != prod(counts):
        raise ShapeError(
            f"a tensor of shape {shape} does not hold {counts} blocks of {kernel}",
            hint="it has samples, channels times elements of a block, and blocks",
        )
    images = shape[0] * (shape[1] // taps)
    return Blocks(image, kernel, counts, strides, dilations, pads[:axes], images)


@size_computer("Col2Im")
def _col2im(op: Op[Col2ImAttrs], inputs: Infos, values: Values) -> Outputs:
    shape = shape_of(inputs, 0)
    blocks = blocks_of(op.attrs, shape, values)
    channels = shape[1] // prod(blocks.kernel)
    return [(dtype_of(inputs, 0), (shape[0], channels, *blocks.image))]


@shape_rule("Col2Im")
def _named_col2im(op: Op[Col2ImAttrs], facts: Facts) -> list[Found]:
    dtype, shape = facts.dtype(op), facts.shape(op)
    image, kernel = facts.vector(op, 1), facts.ints(op, 2)
    if image is None:
        return [(dtype, None)]
    samples, channels = (None, None) if shape is None else shape[:2]
    channels = None if kernel is None else facts.algebra.divide(channels, prod(kernel))
    return [(dtype, (samples, channels, *image))]
