"""Regions cut out of images: rectangles, and affine warps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkmnn.pipelines.arrays import Array

Back = Callable[[Array], Array]
"""Maps points (x, y) of a region to points of the image."""


def warp(pixels: Array, matrix: Array, size: tuple[int, int], fill: int | None = 0) -> Array:
    """Return an image whose pixel (x, y) is the source's at matrix · (x, y, 1), bilinear.

    Args:
        pixels: uint8 [rows, columns, channels].
        matrix: [2, 3], from the result to the image, between pixel centres.
        size: rows and columns of the result.
        fill: the value outside the image; None repeats its edge.
    """
    y, x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    places = np.stack([x, y, np.ones_like(x)], -1) @ matrix.T
    columns, rows = places[..., 0], places[..., 1]
    height, width = pixels.shape[:2]
    if fill is None:
        columns, rows = np.clip(columns, 0, width - 1), np.clip(rows, 0, height - 1)
    left, top = np.floor(columns).astype(np.int64), np.floor(rows).astype(np.int64)
    along, down = (columns - left)[..., None], (rows - top)[..., None]

    def at(row: Array, column: Array) -> Array:
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        values = pixels[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
        values = values.astype(np.float64)
        return values if fill is None else np.where(inside[..., None], values, float(fill))

    upper = at(top, left) * (1 - along) + at(top, left + 1) * along
    lower = at(top + 1, left) * (1 - along) + at(top + 1, left + 1) * along
    return np.asarray(np.rint(upper * (1 - down) + lower * down).astype(np.uint8))


def crop_region(
    pixels: Array, corners: Sequence[float], size: tuple[int, int], padding: float
) -> tuple[Array, Back]:
    """Return the region around a box in the shape of a network's input, and the inverse map.

    Args:
        pixels: the image.
        corners: left, top, right and bottom of the box.
        size: rows and columns of the result.
        padding: ratio of the region's side to the box's.
    """
    left, top, right, bottom = corners
    width, height = max(right - left, 1.0), max(bottom - top, 1.0)
    ratio = size[1] / size[0]
    width, height = max(width, height * ratio), max(height, width / ratio)
    scale = width * padding / size[1]
    centre = np.array([(left + right) / 2, (top + bottom) / 2])
    first = centre - np.array([size[1], size[0]]) / 2 * scale
    matrix = np.array([[scale, 0, first[0]], [0, scale, first[1]]])
    return warp(pixels, matrix, size), lambda points: points * scale + first


def similarity(source: Array, target: Array) -> Array:
    """Return the [2, 3] similarity transform that best maps points onto others.

    Least squares by Umeyama's method (1991).

    Args:
        source: [n, 2].
        target: [n, 2].
    """
    centre, goal = source.mean(0), target.mean(0)
    own, other = source - centre, target - goal
    u, sizes, v = np.linalg.svd(other.T @ own / len(source))
    signs = np.array([1.0, np.sign(np.linalg.det(u) * np.linalg.det(v)) or 1.0])
    turn = u @ np.diag(signs) @ v
    scale = (sizes * signs).sum() / max(float((own**2).sum() / len(source)), 1e-12)
    return np.concatenate([scale * turn, (goal - scale * turn @ centre)[:, None]], 1)


def inverse(matrix: Array) -> Array:
    """Return the inverse of a [2, 3] matrix."""
    linear = np.linalg.inv(matrix[:, :2])
    return np.concatenate([linear, (-linear @ matrix[:, 2])[:, None]], 1)
