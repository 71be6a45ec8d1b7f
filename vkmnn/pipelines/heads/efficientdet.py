"""Heads of EfficientDet: with built-in suppression, and raw by level."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads.candidates import Candidates, best_of, sigmoid
from vkmnn.pipelines.heads.signature import Output, Signature

_YXYX = [1, 0, 3, 2]
_SCALES = tuple(2 ** (octave / 3) for octave in range(3))
_RATIOS = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
_ANCHORS = len(_SCALES) * len(_RATIOS)
_BASE = 4.0
"""Side of an anchor in strides."""


def is_final(signature: Signature) -> bool:
    """One output [n, rows, 7]: image, top, left, bottom, right, score, class from 1."""
    return (
        len(signature.outputs) == 1
        and signature.outputs[0].like(None, None, 7)
        and (signature.outputs[0].shape[2] == 7)
    )


def final(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners in pixels of the input."""
    return [
        Candidates(
            rows[:, 1:5][:, _YXYX].astype(np.float32),
            rows[:, 5].astype(np.float32),
            np.rint(rows[:, 6]).astype(np.int64),
            unique=True,
        )
        for rows in outputs[signature.outputs[0].name]
    ]


def _levels(signature: Signature) -> tuple[list[Output], list[Output], int] | None:
    """Return scores and boxes by level, and the axis of their channels."""
    if len(signature.outputs) != 10 or any(one.rank != 4 for one in signature.outputs):
        return None
    for axis in (1, 3):
        if any((one.shape[axis] or 1) % _ANCHORS for one in signature.outputs):
            continue
        boxes = [one for one in signature.outputs if one.shape[axis] == 4 * _ANCHORS]
        if len(boxes) == 10:  # as many classes as a box has coordinates; scores come first
            named = [one for one in boxes if "box" in one.name.lower()]
            boxes = named if len(named) == 5 else boxes[5:]
        if len(boxes) == 5:
            return [one for one in signature.outputs if one not in boxes], boxes, axis
    return None


def is_raw(signature: Signature) -> bool:
    """Scores and boxes of five levels, nine anchors per cell."""
    return _levels(signature) is not None


def raw(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode (y, x, log height, log width) relative to anchors; each class has its own score."""
    found = _levels(signature)
    assert found is not None
    scores, boxes, axis = found

    def sorted_levels(group: list[Output]) -> list[Array]:
        arrays = [outputs[one.name].astype(np.float32) for one in group]
        turned = [one.transpose(0, 2, 3, 1) if axis == 1 else one for one in arrays]
        return sorted(turned, key=lambda one: -one.shape[1])

    parts = []
    for score, box in zip(sorted_levels(scores), sorted_levels(boxes), strict=True):
        n, rows, columns, _ = box.shape
        anchors = _anchors(rows, columns, signature)
        offsets = box.reshape(n, -1, 4)
        centres = offsets[:, :, :2] * anchors[:, 2:] + anchors[:, :2]
        sizes = np.exp(np.minimum(offsets[:, :, 2:], 20)) * anchors[:, 2:]
        corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], 2)[:, :, _YXYX]
        parts.append((corners, sigmoid(score.reshape(n, offsets.shape[1], -1))))
    joined = [np.concatenate(each, 1) for each in zip(*parts, strict=True)]
    return [best_of(one, score) for one, score in zip(*joined, strict=True)]


def _anchors(rows: int, columns: int, signature: Signature) -> Array:
    """Return centre and size (y, x, height, width) of the anchors of a level, in pixels."""
    height = signature.size[0] if signature.size else rows * 8
    stride = 2.0 ** round(float(np.log2(height / rows)))
    y, x = np.mgrid[:rows, :columns]
    centres = (np.stack([y, x], -1).reshape(-1, 1, 2) + 0.5) * stride
    sizes = [
        (_BASE * stride * scale * tall, _BASE * stride * scale * wide)
        for scale in _SCALES
        for wide, tall in _RATIOS
    ]
    shapes = np.array(sizes)[None].repeat(len(centres), 0)
    anchors = np.concatenate([np.broadcast_to(centres, shapes.shape), shapes], 2)
    return anchors.reshape(-1, 4).astype(np.float32)
