"""The head of NanoDet: classes, and distances to the sides of a box as distributions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads.candidates import Candidates, best_of, sigmoid, softmax
from vkmnn.pipelines.heads.signature import Signature
from vkmnn.pipelines.heads.yolo import STRIDES, cells, cells_of, table_output

_BINS = 8
"""Bins of a distance, in strides."""
_USUAL = 80


def is_nanodet(signature: Signature) -> bool:
    """A table [n, cells, classes + 32] for three or four grids."""
    one = table_output(signature)
    if one is None or len(signature.outputs) != 1 or not _strides(one.shape[1], signature):
        return False
    return one.shape[2] == (signature.classes or _USUAL) + 4 * _BINS


def _strides(count: int | None, signature: Signature) -> tuple[int, ...]:
    grids = (STRIDES, (*STRIDES, 64))
    return next((each for each in grids if cells(signature.size, each) == count), ())


def distances(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode mean distances from the corner of each cell; scores may be logits."""
    one = table_output(signature)
    assert one is not None
    assert signature.size is not None
    values = outputs[one.name].astype(np.float32)
    places, scales = cells_of(signature.size, _strides(values.shape[1], signature))
    scores, bins = values[:, :, : -4 * _BINS], values[:, :, -4 * _BINS :]
    if scores.size and (scores.min() < 0 or scores.max() > 1):
        scores = sigmoid(scores)
    chances = softmax(bins.reshape(*bins.shape[:2], 4, _BINS))
    reach = (chances * np.arange(_BINS, dtype=np.float32)).sum(3) * scales
    middle = places * scales
    boxes = np.concatenate([middle - reach[..., :2], middle + reach[..., 2:]], 2)
    return [best_of(box, score) for box, score in zip(boxes, scores, strict=True)]
