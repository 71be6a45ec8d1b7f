"""Boxes from a head, before suppression."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidate boxes of one image.

    Attributes:
        boxes: float [n, 4]: left, top, right, bottom in pixels of the network's input, or of the
            image if `in_picture`.
        scores: [n], from 0 to 1.
        classes: [n].
        extra: other values of each box, [n, k]: mask coefficients, keypoints.
        unique: whether the network has already suppressed overlapping boxes.
        in_picture: whether boxes are in pixels of the image.
        count: the number of classes; 0 if the network returns only class indices.
        turned: whether `extra` holds centre, size and angle of rotated boxes.
    """

    boxes: Array
    scores: Array
    classes: Array
    extra: Array | None = None
    unique: bool = False
    in_picture: bool = False
    count: int = 0
    turned: bool = False

    def chosen(self, which: Array) -> Candidates:
        """Return the candidates of an index or a mask."""
        extra = None if self.extra is None else self.extra[which]
        return Candidates(
            self.boxes[which],
            self.scores[which],
            self.classes[which],
            extra,
            self.unique,
            self.in_picture,
            self.count,
            self.turned,
        )


def corners_of(centres: Array) -> Array:
    """Return left, top, right, bottom from centre x, centre y, width, height, on the last axis."""
    half = centres[..., 2:4] / 2
    made: Array = np.concatenate([centres[..., :2] - half, centres[..., :2] + half], -1)
    return made


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values.astype(np.float32))))


def softmax(values: Array, axis: int = -1) -> Array:
    """Return exp(x) over its sum along an axis."""
    shifted = np.exp(values - values.max(axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis, keepdims=True))


def best_of(boxes: Array, scores: Array, extra: Array | None = None) -> Candidates:
    """Return each box with its highest-scoring class.

    Args:
        boxes: [n, 4].
        scores: [n, classes].
        extra: [n, k].
    """
    classes = scores.argmax(1)
    best = np.take_along_axis(scores, classes[:, None], 1)[:, 0]
    return Candidates(boxes, best, classes, extra, count=scores.shape[1])
