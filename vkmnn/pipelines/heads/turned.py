"""Rotated boxes: ultralytics' task `obb`."""

from __future__ import annotations

import numpy as np

from vkmnn.pipelines.arrays import Array


def outlines(extra: Array) -> Array:
    """Return the corners of rotated boxes, [n, 4, 2].

    Args:
        extra: [n, 5]: centre x and y, width, height, and the angle in radians.
    """
    x, y, width, height, angle = extra.astype(np.float64).T
    along = np.stack([np.cos(angle), np.sin(angle)], 1) * (width / 2)[:, None]
    down = np.stack([-np.sin(angle), np.cos(angle)], 1) * (height / 2)[:, None]
    centre = np.stack([x, y], 1)
    corners = [centre - along - down, centre + along - down, centre + along + down,
               centre - along + down]  # fmt: skip
    return np.stack(corners, 1)


def around(extra: Array) -> Array:
    """Return the axis-aligned boxes around rotated ones, [n, 4]."""
    corners = outlines(extra)
    return np.concatenate([corners.min(1), corners.max(1)], 1)


def likeness(one: Array, other: Array) -> Array:
    """Return the similarity of rotated boxes, [n, m] from 0 to 1, by Gaussians' Hellinger distance.

    Args:
        one: [n, 5].
        other: [m, 5].
    """
    first, second = _gaussian(one)[:, :, None], _gaussian(other)[:, None, :]
    (x, y, a, b, c), (u, v, d, e, f) = first, second
    size = (a + d) * (b + e) - (c + f) ** 2
    apart = ((a + d) * (y - v) ** 2 + (b + e) * (x - u) ** 2) / (4 * size + _TINY)
    apart += (c + f) * (u - x) * (y - v) / (2 * size + _TINY)
    own = np.sqrt(np.maximum(a * b - c**2, 0) * np.maximum(d * e - f**2, 0))
    apart += 0.5 * np.log(size / (4 * own + _TINY) + _TINY)
    distance = np.sqrt(1 - np.exp(-np.clip(apart, _TINY, 100)) + _TINY)
    return np.asarray(1 - distance)


def _gaussian(extra: Array) -> Array:
    """Return centre and covariance of boxes: x, y, xx, yy, xy, as [5, n]."""
    x, y, width, height, angle = extra.astype(np.float64).T
    along, across = width**2 / 12, height**2 / 12
    cos, sin = np.cos(angle), np.sin(angle)
    xx, yy = along * cos**2 + across * sin**2, along * sin**2 + across * cos**2
    return np.stack([x, y, xx, yy, (along - across) * cos * sin])


_TINY = 1e-7
_MOST = 2000


def suppress_turned(
    extra: Array, scores: Array, classes: Array, most_overlap: float, most: int
) -> Array:
    """Return the indices of rotated boxes after suppression within each class.

    Args:
        extra: [n, 5].
        scores: [n].
        classes: [n].
        most_overlap: the greatest similarity that is allowed.
        most: maximum number of remaining boxes.
    """
    order = np.argsort(-scores, kind="stable")[:_MOST]
    alike = likeness(extra[order], extra[order]) >= most_overlap
    alike &= classes[order][:, None] == classes[order][None]
    kept = ~np.triu(alike, 1).any(0)
    return np.asarray(order[kept][:most])
