"""Operators on boxes."""

from __future__ import annotations

import numpy as np

from vkmnn.testing.fuzz.recipes.table import recipe
from vkmnn.testing.fuzz.sketch import Sketch


@recipe("NonMaxSuppression")
def _non_max_suppression(s: Sketch, op: str) -> None:
    """Boxes of whole numbers, whose overlaps have few values; scores with and without ties."""
    batch, count, classes = s.choose(1, 2), s.choose(1, 3, 7, 16, 70, 301), s.choose(1, 2, 3)
    corners = s.draws.integers(0, 24, (batch, count, 2)).astype(np.float32)
    sizes = s.draws.integers(0, 9, (batch, count, 2)).astype(np.float32)
    center = s.choose(None, 0, 1)
    pair = [corners, sizes] if center else [corners, corners + sizes]
    if not center and s.chance(0.3):
        pair.reverse()
    place = s.parameter(np.concatenate(pair, 2), constant=0.3)
    shape = (batch, classes, count)
    order = s.draws.permutation(batch * classes * count).reshape(shape)
    levels = s.choose(order.size, 5)
    scores = s.parameter((order % levels / levels).astype(np.float32), constant=0.2)
    most = s.parameter([s.choose(0, 1, 3, 100)]) if s.chance(0.9) else None
    overlap = s.parameter([s.choose(0.13, 0.45, 0.9)], "float32") if s.chance(0.9) else None
    least = s.parameter([s.choose(0.013, 0.313)], "float32") if s.chance(0.5) else None
    s.one(op, place, scores, most, overlap, least, center_point_box=center)
