"""Heads of face detectors: boxes and five points from the cells of three grids."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads.candidates import Candidates

_STRIDES = (8, 16, 32)
_POINTS = 5


def _by_columns(outputs: Mapping[str, Array], columns: int) -> list[Array]:
    """Return the outputs with this many columns, most rows first: [n, rows, columns]."""
    found = [one.astype(np.float32) for one in outputs.values() if one.shape[-1] == columns]
    shaped = [one.reshape(-1, *one.shape[-2:]) for one in found if one.ndim in (2, 3)]
    return sorted(shaped, key=lambda one: -one.shape[1])


def is_scrfd(outputs: Mapping[str, Array]) -> bool:
    """Scores, distances and points of each grid: three outputs per stride."""
    counts = [len(_by_columns(outputs, one)) for one in (1, 4, 2 * _POINTS)]
    return counts in ([3, 3, 3], [3, 3, 0])


def is_yunet(outputs: Mapping[str, Array]) -> bool:
    """Two scores, boxes and points of each grid: four outputs per stride."""
    return [len(_by_columns(outputs, one)) for one in (1, 4, 2 * _POINTS)] == [6, 3, 3]


def scrfd(outputs: Mapping[str, Array], size: tuple[int, int]) -> list[Candidates]:
    """Decode distances from cell centres, in strides (SCRFD, two anchors per cell)."""
    scores, boxes, points = (_by_columns(outputs, one) for one in (1, 4, 2 * _POINTS))
    parts = []
    for level, stride in enumerate(_STRIDES):
        centres = _centres(size, stride, boxes[level].shape[1])
        reach = boxes[level] * stride
        corners = np.concatenate([centres - reach[..., :2], centres + reach[..., 2:]], 2)
        found = points[level] if points else np.zeros((*corners.shape[:2], 0), np.float32)
        own = found.reshape(*corners.shape[:2], -1, 2) * stride + centres[:, None]
        parts.append((corners, scores[level], own.reshape(*corners.shape[:2], -1)))
    return _joined(parts)


def yunet(outputs: Mapping[str, Array], size: tuple[int, int]) -> list[Candidates]:
    """Decode offsets within cells and logarithms of sizes (YuNet)."""
    classes, objects = (
        sorted(
            (
                one.astype(np.float32).reshape(len(one), -1, 1)
                for name, one in outputs.items()
                if name.lower().startswith(kind)
            ),
            key=lambda one: -one.shape[1],
        )
        for kind in ("cls", "obj")
    )
    boxes, points = (_by_columns(outputs, one) for one in (4, 2 * _POINTS))
    parts = []
    for level, stride in enumerate(_STRIDES):
        corner = _centres(size, stride, boxes[level].shape[1])
        middle = (boxes[level][..., :2] * stride) + corner
        half = np.exp(np.minimum(boxes[level][..., 2:], 20)) * stride / 2
        own = points[level].reshape(*middle.shape[:2], -1, 2) * stride + corner[:, None]
        score = np.sqrt(np.clip(classes[level], 0, 1) * np.clip(objects[level], 0, 1))
        corners = np.concatenate([middle - half, middle + half], 2)
        parts.append((corners, score, own.reshape(*middle.shape[:2], -1)))
    return _joined(parts)


def _centres(size: tuple[int, int], stride: int, count: int) -> Array:
    """Return x and y of each anchor of a grid, [count, 2]."""
    rows, columns = size[0] // stride, size[1] // stride
    cells = np.array(list(product(range(rows), range(columns))), np.float32)[:, ::-1] * stride
    return np.repeat(cells, max(count // max(len(cells), 1), 1), 0)


def _joined(parts: list[tuple[Array, Array, Array]]) -> list[Candidates]:
    boxes, scores, points = (np.concatenate(each, 1) for each in zip(*parts, strict=True))
    return [
        Candidates(box, score[:, 0], np.zeros(len(box), np.int64), point, count=1)
        for box, score, point in zip(boxes, scores, points, strict=True)
    ]
