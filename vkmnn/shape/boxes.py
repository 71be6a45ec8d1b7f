"""Shapes of operators on boxes and of operators that sample images at given points."""

from __future__ import annotations

from math import prod

from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, DType, Op
from vkmnn.ir.ops import DeformColumnsAttrs, NonMaxSuppressionAttrs, RoiAlignAttrs, RoiPoolAttrs
from vkmnn.shape.common import Infos, Outputs, Values, dtype_of, int_scalar, same_dtype, shape_of
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.rules import shape_rule


def boxes_per_class(values: Values, count: int) -> int:
    """Return how many of `count` boxes can be selected, by input 2 of a NonMaxSuppression.

    Raises:
        ShapeError: it does not hold one integer.
    """
    return min(max(int_scalar(values, 2, "max_output_boxes_per_class"), 0), count)


@size_computer("NonMaxSuppression")
def _non_max_suppression(op: Op[NonMaxSuppressionAttrs], inputs: Infos, values: Values) -> Outputs:
    boxes, scores = shape_of(inputs, 0), shape_of(inputs, 1)
    if len(boxes) != 3 or len(scores) != 3 or boxes[2] != 4:
        raise ShapeError(f"boxes {boxes} and scores {scores} are not [B, N, 4] and [B, C, N]")
    if boxes[0] != scores[0] or boxes[1] != scores[2]:
        raise ShapeError(f"boxes {boxes} and scores {scores} differ in images or boxes")
    for place, what in ((3, "iou_threshold"), (4, "score_threshold")):
        given = inputs[place] if place < len(inputs) else None
        if given is not None and prod(given.dims) != 1:
            raise ShapeError(f"{what} must hold one number, got shape {given.dims}")
    rows = prod(scores[:2]) * boxes_per_class(values, boxes[1])
    return [(DType.INT64, (rows, 3)), (DType.INT64, (1,))]


@shape_rule("NonMaxSuppression")
def _named_suppression(op: Op, facts: Facts) -> list[Found]:
    scores, given = facts.shape(op, 1), facts.values(op, 2)
    rows: Dim | None = None
    if scores and given and isinstance(scores[-1], int) and isinstance(given[0], int):
        most = min(max(given[0], 0), scores[-1])
        rows = facts.algebra.product((*scores[:-1], most))
    return [(DType.INT64, (rows, 3)), (DType.INT64, (1,))]


def _regions(inputs: Infos, width: int) -> int:
    """Return the number of regions, after checking them and the images."""
    x, regions = shape_of(inputs, 0), shape_of(inputs, 1)
    if len(x) != 4 or len(regions) != 2 or regions[1] != width:
        raise ShapeError(f"images {x} and regions {regions} are not [N, C, H, W] and [R, {width}]")
    return regions[0]


@size_computer("RoiAlign")
def _roi_align(op: Op[RoiAlignAttrs], inputs: Infos, values: Values) -> Outputs:
    count, images = _regions(inputs, 4), shape_of(inputs, 2)
    if images != (count,) or not dtype_of(inputs, 2).is_integer:
        raise ShapeError(f"batch_indices {images} are not one integer for each of {count} regions")
    return [(same_dtype(inputs, 0, 1), (count, shape_of(inputs, 0)[1], *op.attrs.size))]


@size_computer("RoiPool")
def _roi_pool(op: Op[RoiPoolAttrs], inputs: Infos, values: Values) -> Outputs:
    count = _regions(inputs, 5)
    return [(same_dtype(inputs, 0, 1), (count, shape_of(inputs, 0)[1], *op.attrs.size))]


@shape_rule("RoiAlign", "RoiPool")
def _named_regions(op: Op[RoiAlignAttrs | RoiPoolAttrs], facts: Facts) -> list[Found]:
    x, regions = facts.shape(op), facts.shape(op, 1)
    count = regions[0] if regions else None
    return [(facts.dtype(op), (count, x[1] if x else None, *op.attrs.size))]


@size_computer("DeformColumns")
def _deform_columns(op: Op[DeformColumnsAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    x, offsets = shape_of(inputs, 0), shape_of(inputs, 1)
    taps = prod(attrs.kernel)
    if len(x) != 4 or attrs.groups < 1 or x[1] % attrs.groups:
        raise ShapeError(f"images {x} do not have channels for {attrs.groups} groups of offsets")
    places = tuple(
        (size + attrs.pads[axis] + attrs.pads[axis + 2] - dilation * (extent - 1) - 1) // stride + 1
        for axis, (size, extent, stride, dilation) in enumerate(
            zip(x[2:], attrs.kernel, attrs.strides, attrs.dilations, strict=True)
        )
    )
    wanted = (x[0], attrs.groups * taps * 2, *places)
    if offsets != wanted:
        raise ShapeError(f"offsets have shape {offsets}, expected {wanted}")
    factors = inputs[2].dims if len(inputs) > 2 and inputs[2] is not None else None
    if factors not in (None, (x[0], attrs.groups * taps, *places)):
        raise ShapeError(f"factors have shape {factors}, which does not fit offsets {offsets}")
    return [(same_dtype(inputs, 0, 1, 2), (x[0], x[1] * taps, prod(places)))]


@shape_rule("DeformColumns")
def _named_columns(op: Op[DeformColumnsAttrs], facts: Facts) -> list[Found]:
    x, offsets, algebra = facts.shape(op), facts.shape(op, 1), facts.algebra
    rows = algebra.multiply(x[1], prod(op.attrs.kernel)) if x and x[1] is not None else None
    places = algebra.product(offsets[2:]) if offsets and None not in offsets[2:] else None
    return [(facts.dtype(op), (x[0] if x else None, rows, places))]
