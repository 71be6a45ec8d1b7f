"""Connected regions of a map, and their minimum-area rectangles (DBNet)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vkmnn.pipelines.arrays import Array


def regions_of(mask: Array) -> list[Array]:
    """Return the boundary points of each region of a mask: x and y, int64 [n, 2].

    Pixels that touch at a corner are connected. The points are the ends of the region's rows.

    Args:
        mask: bool [rows, columns].
    """
    parents: list[int] = []
    runs: list[tuple[int, int, int]] = []  # row, first and last column
    before: list[int] = []

    def root(one: int) -> int:
        while parents[one] != one:
            parents[one] = parents[parents[one]]
            one = parents[one]
        return one

    for row, first, last in _rows(mask):
        here = []
        at = 0
        for start, stop in zip(first, last, strict=True):
            number = len(runs)
            runs.append((row, int(start), int(stop)))
            parents.append(number)
            here.append(number)
            while at < len(before) and runs[before[at]][2] < start - 1:
                at += 1
            next_at = at
            while next_at < len(before) and runs[before[next_at]][1] <= stop + 1:
                if runs[before[next_at]][0] == row - 1:
                    parents[root(before[next_at])] = root(number)
                next_at += 1
        before = here
    groups: dict[int, list[tuple[int, int]]] = {}
    for number, (row, start, stop) in enumerate(runs):
        groups.setdefault(root(number), []).extend(((start, row), (stop, row)))
    return [np.array(points, np.int64) for points in groups.values()]


def _rows(mask: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield each row with the first and last columns of its runs."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    for row in np.flatnonzero(mask.any(1)):
        yield int(row), np.flatnonzero(edges[row] == 1), np.flatnonzero(edges[row] == -1) - 1


def hull_of(points: Array) -> Array:
    """Return the corners of the convex hull, in order (Andrew's monotone chain)."""
    ordered = np.unique(points, axis=0)
    if len(ordered) < 3:
        return ordered

    def chain(rows: Array) -> list[Array]:
        made: list[Array] = []
        for point in rows:
            while len(made) > 1 and _turn(made[-2], made[-1], point) <= 0:
                made.pop()
            made.append(point)
        return made[:-1]

    return np.array(chain(ordered) + chain(ordered[::-1]))


def _turn(a: Array, b: Array, c: Array) -> float:
    return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))


def least_rectangle(points: Array) -> tuple[Array, float, float]:
    """Return the minimum-area rectangle around points: corners [4, 2], and both sides.

    Corners start at the top left and run clockwise. One side of the rectangle is collinear with a
    side of the hull.
    """
    hull = hull_of(points).astype(np.float64)
    sides = np.roll(hull, -1, 0) - hull
    angles = np.unique(np.arctan2(sides[:, 1], sides[:, 0]) % (np.pi / 2))
    best: tuple[float, Array, float, float] | None = None
    for angle in angles if len(hull) > 2 else angles[:1]:
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        turned = hull @ turn
        low, high = turned.min(0), turned.max(0)
        width, height = high - low
        if best is None or width * height < best[0]:
            corners = np.array([low, [high[0], low[1]], high, [low[0], high[1]]]) @ turn.T
            best = width * height, corners, float(width), float(height)
    assert best is not None
    return in_order(best[1]), best[2], best[3]


def in_order(corners: Array) -> Array:
    """Return four corners as top left, top right, bottom right, bottom left."""
    by_column = corners[np.argsort(corners[:, 0], kind="stable")]
    left = by_column[:2][np.argsort(by_column[:2, 1], kind="stable")]
    right = by_column[2:][np.argsort(by_column[2:, 1], kind="stable")]
    return np.array([left[0], right[0], right[1], left[1]])


def grown(corners: Array, by: float) -> Array:
    """Return a rectangle with all sides moved outwards by a distance."""
    along, down = corners[1] - corners[0], corners[3] - corners[0]
    along = along / max(float(np.linalg.norm(along)), 1e-9) * by
    down = down / max(float(np.linalg.norm(down)), 1e-9) * by
    moves = np.array([-along - down, along - down, along + down, down - along])
    return np.asarray(corners + moves)


def mean_within(values: Array, corners: Array) -> float:
    """Return the mean of a map within a convex polygon, including its boundary."""
    height, width = values.shape
    left, top = np.clip(np.floor(corners.min(0)), 0, (width - 1, height - 1)).astype(int)
    right, bottom = np.clip(np.ceil(corners.max(0)), 0, (width - 1, height - 1)).astype(int)
    y, x = np.mgrid[top : bottom + 1, left : right + 1]
    inside = np.ones(x.shape, bool)
    for start, end in zip(corners, np.roll(corners, -1, 0), strict=True):
        side = (end[0] - start[0]) * (y - start[1]) - (end[1] - start[1]) * (x - start[0])
        inside &= side >= -1e-6 * max(1.0, float(np.abs(end - start).max()))
    part = values[top : bottom + 1, left : right + 1]
    return float(part[inside].mean()) if inside.any() else 0.0


def text_boxes(
    chances: Array, threshold: float, least: float, growth: float
) -> list[tuple[Array, float]]:
    """Return the rectangles around text: corners [4, 2] in the map, and scores (DBNet).

    Args:
        chances: probabilities [rows, columns].
        threshold: pixels above it are text.
        least: boxes with a lower mean are dropped.
        growth: the map shows only the core of each line; its box is expanded by area · growth /
            perimeter.
    """
    found = []
    ink = chances > threshold
    wide = ink.copy()  # dilate by a 2 × 2 square to join nearly touching regions
    wide[1:] |= ink[:-1]
    wide[:, 1:] |= wide[:, :-1].copy()
    for points in regions_of(wide):
        corners, width, height = least_rectangle(points)
        if min(width, height) < _SMALLEST:
            continue
        score = mean_within(chances, corners)
        if score < least:
            continue
        by = width * height * growth / (2 * (width + height))
        if min(width, height) + 2 * by >= _SMALLEST + 2:
            found.append((grown(corners, by), score))
    return found


_SMALLEST = 3.0
"""Minimum side of a box, in pixels of the map."""


def spelt(chances: Array, characters: list[str]) -> tuple[str, float]:
    """Return the text of a line and its mean score, by the best class of each column (CTC).

    Args:
        chances: probabilities [columns, classes]; class 0 is the blank.
        characters: the character of each class, from 0 on.
    """
    best = chances.argmax(1)
    new = np.concatenate([[True], best[1:] != best[:-1]]) & (best != 0)
    scores = chances[np.arange(len(best)), best][new]
    text = "".join(characters[one] if one < len(characters) else "�" for one in best[new])
    return text, float(scores.mean()) if len(scores) else 0.0
