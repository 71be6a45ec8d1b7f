"""Operators on boxes."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, optional, required
from vkmnn.ir import Op
from vkmnn.ir.ops import NonMaxSuppressionAttrs
from vkmnn.shape.boxes import boxes_per_class


def _edges(boxes: AnyArray, *, center: bool) -> AnyArray:
    """Return [N, 4]: the lower and the upper edges along both axes."""
    if center:
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _overlaps(one: AnyArray, others: AnyArray, limit: AnyArray) -> AnyArray:
    """Say which of the others a box suppresses."""
    sides = np.minimum(one[2:], others[:, 2:]) - np.maximum(one[:2], others[:, :2])
    common = sides[:, 0] * sides[:, 1]
    extent = others[:, 2:] - others[:, :2]
    area = (one[2] - one[0]) * (one[3] - one[1])
    areas = extent[:, 0] * extent[:, 1]
    union = area + areas - common
    real = (sides > 0).all(1) & (common > 0) & (area > 0) & (areas > 0) & (union > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(real & (common / union > limit))


def _chosen(edges: AnyArray, scores: AnyArray, most: int, limit: AnyArray) -> list[int]:
    """Return the boxes that are chosen of one class, in order; NaN is above all scores."""
    nothing = np.isnan(scores)
    left = np.lexsort((-np.where(nothing, 0, scores), ~nothing))  # stable: ties in order
    found: list[int] = []
    while left.size and len(found) < most:
        found.append(int(left[0]))
        suppressed = _overlaps(edges[left[0]], edges[left[1:]], limit)
        left = left[1:][~suppressed]
    return found


@cpu_execution("NonMaxSuppression")
def _non_max_suppression(op: Op[NonMaxSuppressionAttrs], inputs: Inputs) -> list[AnyArray]:
    boxes, scores = required(inputs, 0), required(inputs, 1)
    most = boxes_per_class(inputs, boxes.shape[1])
    given, least = optional(inputs, 3), optional(inputs, 4)
    limit = np.float32(0) if given is None else given.reshape(())
    rows: list[tuple[int, int, int]] = []
    for image, per_class in enumerate(scores if most else ()):
        edges = _edges(boxes[image], center=op.attrs.center)
        for number, row in enumerate(per_class):
            places = (
                np.arange(row.size) if least is None else np.flatnonzero(row > least.reshape(()))
            )
            kept = _chosen(edges[places], row[places], most, limit)
            rows += [(image, number, int(places[place])) for place in kept]
    result = np.zeros((scores.shape[0] * scores.shape[1] * most, 3), np.int64)
    if rows:
        result[: len(rows)] = rows
    return [result, np.array([len(rows)], np.int64)]
