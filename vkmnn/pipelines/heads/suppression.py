"""Non-maximum suppression."""

from __future__ import annotations

import numpy as np

from vkmnn.pipelines.arrays import Array

MAX_CANDIDATES = 30_000


def overlaps(box: Array, others: Array) -> Array:
    """Return the intersection over union (IoU) of a box and each of the others.

    Args:
        box: [4], left, top, right, bottom.
        others: [n, 4].
    """
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), 1)
    areas = np.prod(np.maximum(others[:, 2:] - others[:, :2], 0), 1)
    own = float(np.prod(np.maximum(box[2:] - box[:2], 0)))
    made: Array = common / np.maximum(areas + own - common, 1e-12)
    return made


def suppress(boxes: Array, scores: Array, classes: Array, most_overlap: float, most: int) -> Array:
    """Return the indices of the remaining boxes, highest score first.

    Args:
        boxes: float [n, 4], left, top, right, bottom.
        scores: [n].
        classes: [n]; boxes of different classes do not suppress each other.
        most_overlap: boxes with a greater overlap with a box of higher score are dropped.
        most: maximum number of remaining boxes.
    """
    order = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
    if not len(order):
        return order
    spread = float(np.abs(boxes[order]).max()) * 2 + 1  # boxes of different classes never overlap
    apart = boxes[order].astype(np.float64) + (classes[order].astype(np.float64) * spread)[:, None]
    left = np.arange(len(order))
    kept: list[int] = []
    while len(left) and len(kept) < most:
        first, left = left[0], left[1:]
        kept.append(first)
        left = left[overlaps(apart[first], apart[left]) <= most_overlap]
    return np.asarray(order[np.array(kept)])
