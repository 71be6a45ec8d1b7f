"""Shapes of operators on boxes."""

from __future__ import annotations

from math import prod

from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, DType, Op
from vkmnn.ir.ops import NonMaxSuppressionAttrs
from vkmnn.shape.common import Infos, Outputs, Values, int_scalar, shape_of
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.rules import shape_rule


def boxes_per_class(values: Values, count: int) -> int:
    """Return how many of `count` boxes can be chosen, by what input 2 of a NonMaxSuppression says.

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
