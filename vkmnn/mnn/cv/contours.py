"""MNN.cv's contours: found in images, and measured."""

from __future__ import annotations

from math import atan2, degrees, radians
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.cv.images import image_var, pixels_of, to_plain
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.matrix import points_of

_EXTERNAL = CONSTANTS["RETR_EXTERNAL"]
_ALL_POINTS = CONSTANTS["CHAIN_APPROX_NONE"]
_SIMPLE = CONSTANTS["CHAIN_APPROX_SIMPLE"]

# Steps to the neighbours of a pixel, counterclockwise from the right: x, y.
_STEPS = ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1))

# Marks of pixels on a border: those whose right neighbour is background are negative.
_ON, _RIGHT = 2, -2


def findContours(
    image: Any, mode: int = _EXTERNAL, method: int = _SIMPLE, offset: Any = (0, 0)
) -> tuple[list[Var], str]:
    """Return the borders of the regions of an image, by border following (Suzuki, Abe 1985).

    Args:
        image: [height, width]; what is not 0 belongs to regions. Its outermost pixels do not.
        mode: RETR_EXTERNAL for outer borders alone; all others for those of holes, too.
        method: CHAIN_APPROX_NONE for all points, else only those where the direction changes.
        offset: x and y, which are added to the points.

    Returns:
        Contours [points, 1, 2], the last one found first, and "no hierarchy".
    """
    pixels = pixels_of(image)
    if pixels.shape[-1] != 1:
        raise ArgumentError(f"findContours takes an image of one channel, not {pixels.shape}")
    labels = (pixels[..., 0] > 0).astype(np.int8)
    labels[[0, -1]] = labels[:, [0, -1]] = 0
    dx, dy = (int(one) for one in np.asarray(to_plain(offset)).reshape(-1).tolist())
    found = [
        image_var(np.asarray(points, np.int32).reshape(-1, 1, 2) + np.asarray([dx, dy], np.int32))
        for points in _borders(labels, mode == _EXTERNAL, method == _ALL_POINTS)
    ]
    return found[::-1], "no hierarchy"


def _borders(labels: Array, outer_only: bool, every: bool) -> list[list[tuple[int, int]]]:
    """Follow all borders, row by row; marks them in `labels`."""
    found = []
    regions = labels != 0
    for y in np.flatnonzero(regions.any(1)).tolist():
        changes = np.flatnonzero(regions[y, 1:] != regions[y, :-1]) + 1
        met = 0  # the mark of the last border pixel on the left
        seen = 0
        for x in changes.tolist():
            before = labels[y, seen:x]
            marks = before[(before != 0) & (before != 1)]
            met = int(marks[-1]) if marks.size else met
            seen = x
            outer = regions[y, x]
            if outer and labels[y, x] != 1:
                continue
            if not outer and labels[y, x - 1] < 1:
                continue
            if outer_only and (not outer or met > 0):
                continue
            start = (x, y) if outer else (x - 1, y)
            found.append(_followed(labels, start, not outer, every))
    return found


def _followed(
    labels: Array, start: tuple[int, int], hole: bool, every: bool
) -> list[tuple[int, int]]:
    """Return the points of one border, and mark them."""

    def at(point: tuple[int, int], code: int) -> tuple[int, int]:
        return point[0] + _STEPS[code & 7][0], point[1] + _STEPS[code & 7][1]

    def is_on(point: tuple[int, int]) -> bool:
        return bool(labels[point[1], point[0]])

    first = 0 if hole else 4
    code = next((first - turn for turn in range(1, 8) if is_on(at(start, first - turn))), None)
    if code is None:
        labels[start[1], start[0]] = _RIGHT
        return [start]
    second = at(start, code)
    points: list[tuple[int, int]] = []
    here, code, came = start, code & 7, (code & 7) ^ 4
    while True:
        end = code
        code = next(code + turn for turn in range(1, 9) if is_on(at(here, code + turn)))
        passed = {one & 7 for one in range(end + 1, code)}
        code &= 7
        x, y = here
        if 0 in passed:  # the neighbour on the right is background
            labels[y, x] = _RIGHT
        elif labels[y, x] == 1:
            labels[y, x] = _ON
        if every or code != came:
            points.append(here)
            came = code
        there = at(here, code)
        if there == start and here == second:
            return points
        here, code = there, (code + 4) & 7


def contourArea(points: Any, oriented: bool = False) -> float:
    """Return the area inside a contour; with a sign by its direction if `oriented`."""
    x, y = points_of(to_plain(points)).T
    area = float((np.roll(x, 1) * y - x * np.roll(y, 1)).sum() / 2)
    return area if oriented else abs(area)


def _hull(points: Array) -> list[int]:
    """Return the indices of the convex hull's corners, by Andrew's monotone chain."""
    order = np.lexsort((points[:, 1], points[:, 0])).tolist()

    def half(indices: list[int]) -> list[int]:
        chain: list[int] = []
        for index in indices:
            while len(chain) > 1:
                (ax, ay), (bx, by) = (
                    points[chain[-1]] - points[chain[-2]],
                    (points[index] - points[chain[-2]]),
                )
                if ax * by - ay * bx > 0:
                    break
                chain.pop()
            chain.append(index)
        return chain

    lower, upper = half(order), half(order[::-1])
    found = lower[:-1] + upper[:-1] or lower[:1]
    return list(dict.fromkeys(found))


def convexHull(points: Any, clockwise: bool = False, returnPoints: bool = True) -> Any:
    """Return the corners of the convex hull of points [n, 1, 2], or their indices."""
    given = np.asarray(to_plain(points))
    places = points_of(given)
    indices = _hull(places)
    lowest = indices.index(min(indices))
    indices = indices[lowest:] + indices[:lowest]
    if clockwise:
        indices = indices[::-1]
    if not returnPoints:
        return indices
    kind = np.float32 if given.dtype.kind == "f" else np.int32
    return image_var(places[indices].astype(kind)[:, None])


def boundingRect(points: Any) -> list[int]:
    """Return x, y, width and height of the smallest upright rectangle around points."""
    x, y = np.floor(points_of(to_plain(points))).astype(np.int64).T
    if not x.size:
        return [0, 0, 0, 0]
    return [int(one) for one in (x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1)]


def minAreaRect(points: Any) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Return centre, sizes and angle in degrees of the smallest rectangle around points.

    One of the rectangle's sides lies on the convex hull (Freeman, Shapira 1975).
    """
    places = points_of(to_plain(points))
    if not len(places):
        return (0.0, 0.0), (0.0, 0.0), 0.0
    hull = places[_hull(places)]
    if len(hull) < 3:
        return _flat(hull)
    best: tuple[float, Any] | None = None
    for first, last in zip(hull, np.roll(hull, -1, 0), strict=True):
        along = (last - first) / np.hypot(*(last - first))
        across = np.array([-along[1], along[0]])
        u, v = hull @ along, hull @ across
        area = float(np.ptp(u) * np.ptp(v))
        if best is None or area < best[0] - 1e-9:
            best = area, (along, across, u, v)
    assert best is not None
    along, across, u, v = best[1]
    centre = along * (u.min() + u.max()) / 2 + across * (v.min() + v.max()) / 2
    return _upright(centre, float(np.ptp(u)), float(np.ptp(v)), degrees(atan2(along[1], along[0])))


def _flat(hull: Array) -> tuple[tuple[float, float], tuple[float, float], float]:
    first, last = hull[0], hull[-1]
    length, angle = np.hypot(*(last - first)), degrees(atan2(*(last - first)[::-1]))
    return _upright((first + last) / 2, float(length), 0.0, angle)


def _upright(
    centre: Array, width: float, height: float, angle: float
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Return a rectangle with an angle above 0 and up to 90 degrees."""
    while angle > 90:
        width, height, angle = height, width, angle - 90
    while angle <= 0:
        width, height, angle = height, width, angle + 90
    return (float(centre[0]), float(centre[1])), (width, height), angle


def boxPoints(box: Any) -> Var:
    """Return the corners [4, 2] of a rectangle as `minAreaRect` returns it."""
    (x, y), (width, height), angle = box
    turn = radians(angle)
    b, a = np.cos(turn) / 2, np.sin(turn) / 2
    first = [x - a * height - b * width, y + b * height - a * width]
    second = [x + a * height - b * width, y - b * height - a * width]
    corners = [first, second, [2 * x - first[0], 2 * y - first[1]]]
    corners.append([2 * x - second[0], 2 * y - second[1]])
    return image_var(np.asarray(corners, np.float32))


def connectedComponentsWithStats(image: Any, connectivity: int = 8) -> tuple[int, Var, Var, Var]:
    """Return the number of an image's regions, their labels, statistics and centres.

    Args:
        image: [height, width, 1]; what is not 0 belongs to regions, the rest to region 0.
        connectivity: 8 or 4 neighbours of a pixel.

    Returns:
        The number; labels [1, height, width, 1]; left, top, width, height and area [regions, 5];
        centres [regions, 2].
    """
    if connectivity not in (4, 8):
        raise ArgumentError(f"a pixel has 4 or 8 neighbours, not {connectivity}")
    on = pixels_of(image)[..., 0] != 0
    labels, count = _labelled(on, connectivity == 8)
    stats, centres = _statistics(labels, count)
    return (
        count,
        image_var(labels.astype(np.int32)[None, ..., None]),
        image_var(stats),
        image_var(centres),
    )


def _statistics(labels: Array, count: int) -> tuple[Array, Array]:
    flat = labels.reshape(-1)
    areas = np.bincount(flat, minlength=count)
    stats = np.zeros((count, 5), np.int32)
    centres = np.zeros((count, 2), np.float32)
    with np.errstate(invalid="ignore"):
        for place, one in enumerate(np.indices(labels.shape)[::-1]):
            values = one.reshape(-1)
            low, high = np.full(count, np.iinfo(np.int32).max), np.full(count, -1)
            np.minimum.at(low, flat, values)
            np.maximum.at(high, flat, values)
            stats[:, place] = np.where(areas, low, -1 if place == 0 else low)
            stats[:, 2 + place] = np.where(areas, high - low + 1, 0)
            centres[:, place] = np.bincount(flat, values, count) / areas
    stats[:, 4] = areas
    return stats, centres


def _labelled(on: Array, diagonal: bool) -> tuple[Array, int]:
    """Return the number of each pixel's region, in the order of their first pixels."""
    runs: list[tuple[int, int, int]] = []
    parents: list[int] = []

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    above: list[int] = []
    reach = 1 if diagonal else 0
    for row, line in enumerate(on):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.view(np.int8), [0]])))
        here = []
        for start, end in edges.reshape(-1, 2).tolist():
            index = len(runs)
            runs.append((row, start, end))
            parents.append(index)
            for other in above:
                if runs[other][1] < end + reach and start < runs[other][2] + reach:
                    one, two = root(other), root(index)
                    parents[max(one, two)] = min(one, two)
            here.append(index)
        above = here
    numbers = {one: count for count, one in enumerate(sorted({root(i) for i in parents}), 1)}
    labels = np.zeros(on.shape, np.int64)
    for index, (row, start, end) in enumerate(runs):
        labels[row, start:end] = numbers[root(index)]
    return labels, len(numbers) + 1


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(boundingRect, boxPoints, connectedComponentsWithStats, contourArea, convexHull),
        *(findContours, minAreaRect),
    )
}
