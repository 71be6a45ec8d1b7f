"""Boxes that are turned by an angle: ultralytics' task `obb`."""

from __future__ import annotations

import numpy as np

from vkmnn.pipelines.arrays import Array


def outlines(extra: Array) -> Array:
    """Return the corners of turned boxes, [n, 4, 2].

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
    """Return the upright boxes around turned ones, [n, 4]."""
    corners = outlines(extra)
    return np.concatenate([corners.min(1), corners.max(1)], 1)
