"""YOLO heads with grids of raw values, decoded with anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.description import parsed
from vkmnn.pipelines.heads.candidates import Candidates, best_of, corners_of, sigmoid, softmax
from vkmnn.pipelines.heads.signature import Output, Signature

ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Width and height of YOLOv3's and YOLOv5's anchors, by grid, the finest first."""
V4_ANCHORS = (
    ((12, 16), (19, 36), (40, 28)),
    ((36, 75), (76, 55), (72, 146)),
    ((142, 110), (192, 243), (459, 401)),
)
"""Anchors of YOLOv4 and YOLOv7."""
TINY_ANCHORS = (
    ((10, 14), (23, 27), (37, 58)),
    ((81, 82), (135, 169), (344, 319)),
)
"""Anchors of the tiny networks, with two grids of strides 16 and 32."""
V2_ANCHORS = ((1.08, 1.19), (3.42, 4.41), (6.63, 11.38), (9.42, 5.11), (16.62, 10.52))
"""Anchors of YOLOv2 on VOC, in cells."""
_V4_REACH = (1.2, 1.1, 1.05)
_Anchors = Sequence[Sequence[tuple[float, float]]]


def is_grids(signature: Signature) -> bool:
    """Two or three outputs [n, 3, rows, columns, 5 + classes] or [n, 3 · (5 + classes), …]."""
    return len(_grids(signature, 1)) in (2, 3)


def is_darknet(signature: Signature) -> bool:
    """Two or three outputs [n, rows, columns, 3, 5 + classes]."""
    return len(_grids(signature, 3)) in (2, 3)


def is_yolov2(signature: Signature) -> bool:
    """One output [n, 5 · (5 + classes), rows, columns]."""
    one = signature.outputs[0] if len(signature.outputs) == 1 else None
    if one is None or one.rank != 4 or one.shape[1] is None:
        return False
    return one.shape[1] % 5 == 0 and one.shape[1] > 25 and _is_grid(one.shape[2:], signature)


def _is_grid(sides: Sequence[int | None], signature: Signature) -> bool:
    if signature.size is None or None in sides:
        return False
    return tuple(sides) == tuple(side // 32 for side in signature.size)


def _grids(signature: Signature, axis: int) -> list[Output]:
    """Return the grid outputs with the anchors as an axis, the finest first."""
    found = []
    for one in signature.outputs:
        if one.integer:
            continue
        five = one.rank == 5 and one.shape[axis] == 3 and (one.shape[4] or 0) > 4
        flat = (
            axis == 1 and one.rank == 4 and (one.shape[1] or 1) % 3 == 0 and _flat(one, signature)
        )
        if five or flat:
            found.append(one)
    if axis == 3 or not found or all(one.shape[2] is not None for one in found):
        side = 1 if axis == 3 else 2
        found.sort(key=lambda one: -(one.shape[side] or 0))
    return found


def _flat(one: Output, signature: Signature) -> bool:
    """Return whether channels combine three anchors: 255 for COCO."""
    each = (one.shape[1] or 0) // 3
    if signature.classes:
        return each == 5 + signature.classes
    return each in (6, 25, 85)


def _anchors(signature: Signature, count: int, usual: _Anchors) -> _Anchors:
    """Return the anchors from the metadata, or the default ones, in pixels."""
    said = parsed(signature.properties.get("anchors"))
    try:
        pairs = np.array(said, np.float64).reshape(count, 3, 2)
        return [[(float(w), float(h)) for w, h in level] for level in pairs]
    except (TypeError, ValueError):
        return TINY_ANCHORS if count == 2 else usual


def grids(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode YOLOv5's and YOLOv7's grids: (2σ - 0.5 + cell) · stride, (2σ)² · anchor."""
    found = _grids(signature, 1)
    anchors = _anchors(signature, len(found), ANCHORS)
    parts = []
    for one, level in zip(found, anchors, strict=True):
        values = outputs[one.name].astype(np.float32)
        if values.ndim == 4:
            n, _, rows, columns = values.shape
            values = values.reshape(n, 3, -1, rows, columns).transpose(0, 1, 3, 4, 2)
        part = sigmoid(values)
        rows, columns = part.shape[2:4]
        stride = _stride(signature, rows, columns)
        cell = _cell(rows, columns)
        centres = (part[..., :2] * 2 - 0.5 + cell) * stride
        sizes = (part[..., 2:4] * 2) ** 2 * np.array(level, np.float32)[:, None, None]
        parts.append(_flattened(centres, sizes, part[..., 4:5] * part[..., 5:]))
    return _joined(parts)


def darknet(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode YOLOv3's and YOLOv4's grids: (σ · reach - (reach - 1) / 2 + cell) · stride."""
    found = _grids(signature, 3)
    anchors = _anchors(signature, len(found), V4_ANCHORS)
    reaches = _V4_REACH if len(found) == 3 else (1.0, 1.0)
    parts = []
    for one, level, reach in zip(found, anchors, reaches, strict=True):
        values = outputs[one.name].astype(np.float32)
        rows, columns = values.shape[1:3]
        stride = _stride(signature, rows, columns)
        cell = _cell(rows, columns)[:, :, None]
        centres = (sigmoid(values[..., :2]) * reach - 0.5 * (reach - 1) + cell) * stride
        sizes = np.exp(np.minimum(values[..., 2:4], 20)) * np.array(level, np.float32)
        scores = sigmoid(values[..., 4:5]) * sigmoid(values[..., 5:])
        parts.append(_flattened(centres, sizes, scores))
    return _joined(parts)


def yolov2(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode YOLOv2's grid: (σ + cell) · 32, exp · anchor, classes by softmax."""
    values = outputs[signature.outputs[0].name].astype(np.float32)
    n, _, rows, columns = values.shape
    values = values.reshape(n, 5, -1, rows, columns).transpose(0, 1, 3, 4, 2)
    centres = (sigmoid(values[..., :2]) + _cell(rows, columns)) * 32
    anchors = np.array(V2_ANCHORS, np.float32)[:, None, None] * 32
    sizes = np.exp(np.minimum(values[..., 2:4], 20)) * anchors
    scores = sigmoid(values[..., 4:5]) * softmax(values[..., 5:])
    return _joined([_flattened(centres, sizes, scores)])


def _stride(signature: Signature, rows: int, columns: int) -> Array:
    """Return width and height of a cell in pixels."""
    height, width = signature.size or (rows * 32, columns * 32)
    return np.array([width / columns, height / rows], np.float32)


def _cell(rows: int, columns: int) -> Array:
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x, y], -1).astype(np.float32)


def _flattened(centres: Array, sizes: Array, scores: Array) -> tuple[Array, Array]:
    boxes = corners_of(np.concatenate([centres, sizes], -1))
    n = len(boxes)
    return boxes.reshape(n, -1, 4), scores.reshape(n, -1, scores.shape[-1])


def _joined(parts: Sequence[tuple[Array, Array]]) -> list[Candidates]:
    boxes, scores = (np.concatenate(each, 1) for each in zip(*parts, strict=True))
    return [best_of(one, score) for one, score in zip(boxes, scores, strict=True)]
