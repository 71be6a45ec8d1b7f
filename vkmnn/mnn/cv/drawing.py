"""MNN.cv's drawing: lines, rectangles, circles and polygons, into a Var."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import atan2, cos, hypot, pi, sin
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.cv.images import floats_of, to_plain
from vkmnn.mnn.expr.cells import Cell
from vkmnn.mnn.expr.values import cast_array
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.matrix import points_of

_LINE = CONSTANTS["LINE_8"]
_FILLED = CONSTANTS["FILLED"]
_MOST = 1 << 24  # coordinates, so that their products fit 64 bits


def _point(value: Any, shift: int = 0) -> tuple[int, int]:
    try:
        x, y = (round(one / (1 << shift)) for one in floats_of(value))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"a point has x and y, not {value!r}") from error
    if max(abs(x), abs(y)) > _MOST:
        raise ArgumentError(f"the point ({x}, {y}) is too far away")
    return x, y


def _thickness(thickness: int) -> int:
    if thickness > _MOST:
        raise ArgumentError(f"a line of {thickness} pixels is too thick")
    return int(thickness)


def _colour(color: Any, channels: int) -> list[float]:
    """Return a colour's channels; those that are not given are 255."""
    given = [float(color)] if isinstance(color, int | float) else list(floats_of(color))
    return (given + [255.0] * channels)[:channels]


def _draw(img: Any, color: Any, mask: Array) -> None:
    """Give a Var the colour where a mask is set; Vars computed from it before keep their data."""
    pixels = img.read().copy()
    flat = pixels.reshape(*mask.shape, -1)
    flat[mask] = cast_array(np.asarray(_colour(color, flat.shape[-1])), pixels.dtype)
    made = Cell(pixels, img.data_format, img.name)
    img._cell = made


def _mask(img: Any) -> Array:
    if not isinstance(img, Var) or img.ndim not in (2, 3):
        raise ArgumentError("MNN.cv draws into a Var of shape [height, width, channels]")
    return np.zeros(img.shape[:2], bool)


def _thin(mask: Array, first: tuple[int, int], last: tuple[int, int]) -> None:
    """Mark a line of single pixels, 8-connected, from its left end."""
    (x0, y0), (x1, y1) = sorted((first, last)) if first[0] != last[0] else (first, last)
    dx, dy = x1 - x0, abs(y1 - y0)
    step = 1 if y1 >= y0 else -1
    height, width = mask.shape
    if dy > dx:
        low, high = (-y0, height - 1 - y0) if step > 0 else (y0 - height + 1, y0)
        i = np.arange(max(low, 0), min(high, dy) + 1)
        x, y = x0 - ((dy - 2 * dx * i) // (2 * dy)), y0 + step * i
    else:
        i = np.arange(max(-x0, 0), min(width - 1 - x0, dx) + 1)
        x, y = x0 + i, y0 - step * ((dx - 2 * dy * i) // (2 * dx) if dx else 0 * i)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    mask[y[inside], x[inside]] = True


def _thick(mask: Array, first: tuple[int, int], last: tuple[int, int], width: int) -> None:
    """Mark the pixels within half a width of a line."""
    y, x = np.mgrid[: mask.shape[0], : mask.shape[1]]
    (x0, y0), (x1, y1) = first, last
    dx, dy = x1 - x0, y1 - y0
    length = dx * dx + dy * dy
    along = np.clip(((x - x0) * dx + (y - y0) * dy) / length, 0, 1) if length else 0.0
    mask |= np.hypot(x - x0 - along * dx, y - y0 - along * dy) <= width / 2 + 0.3


def _segment(mask: Array, first: tuple[int, int], last: tuple[int, int], width: int) -> None:
    if width > 1:
        _thick(mask, first, last, width)
    else:
        _thin(mask, first, last)


def _outline(mask: Array, points: Sequence[tuple[int, int]], width: int) -> None:
    for number, point in enumerate(points):
        _segment(mask, points[number - 1], point, width)


def _crossings(polygon: Array, y: int) -> Iterator[float]:
    for (x0, y0), (x1, y1) in zip(np.roll(polygon, 1, 0), polygon, strict=True):
        if min(y0, y1) <= y < max(y0, y1):
            yield x0 + (y - y0) * (x1 - x0) / (y1 - y0)


def _fill(mask: Array, polygons: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Mark what lies inside an odd number of polygons, and their outlines."""
    arrays = [np.asarray(polygon, np.float64) for polygon in polygons]
    ys = np.concatenate([polygon[:, 1] for polygon in arrays]) if arrays else np.zeros(0)
    first, last = int(max(ys.min(initial=0), 0)), int(min(ys.max(initial=-1), len(mask) - 1))
    for y in range(first, last + 1):
        edges = sorted(x for polygon in arrays for x in _crossings(polygon, y))
        for left, right in zip(edges[::2], edges[1::2], strict=True):
            start, end = int(np.floor(left + 0.5)), int(np.ceil(right - 0.5))
            mask[y, max(start, 0) : max(end + 1, 0)] = True
    for polygon in polygons:
        _outline(mask, polygon, 1)


def line(
    img: Var,
    pt1: Any,
    pt2: Any,
    color: Any,
    thickness: int = 1,
    lineType: int = _LINE,
    shift: int = 0,
) -> None:
    """Draw a line.

    Args:
        img: [height, width, channels], which is changed.
        pt1: x and y of its start.
        pt2: x and y of its end.
        color: a number for each channel.
        thickness: in pixels.
        lineType: ignored: lines are 8-connected.
        shift: fractional bits of the coordinates.
    """
    mask = _mask(img)
    _segment(mask, _point(pt1, shift), _point(pt2, shift), _thickness(thickness))
    _draw(img, color, mask)


def arrowedLine(
    img: Var,
    pt1: Any,
    pt2: Any,
    color: Any,
    thickness: int = 1,
    lineType: int = _LINE,
    shift: int = 0,
    tipLength: float = 0.1,
) -> None:
    """Draw an arrow to `pt2`, whose tip is a part of its length; see `line`."""
    mask, width = _mask(img), _thickness(thickness)
    start, end = _point(pt1, shift), _point(pt2, shift)
    _segment(mask, start, end, width)
    tip = hypot(end[0] - start[0], end[1] - start[1]) * tipLength
    angle = atan2(start[1] - end[1], start[0] - end[0])
    for turn in (pi / 4, -pi / 4):
        side = (round(end[0] + tip * cos(angle + turn)), round(end[1] + tip * sin(angle + turn)))
        _segment(mask, side, end, width)
    _draw(img, color, mask)


def rectangle(
    src: Var,
    pt1: Any,
    pt2: Any,
    color: Any,
    thickness: int = 1,
    lineType: int = _LINE,
    shift: int = 0,
) -> None:
    """Draw a rectangle with two opposite corners; filled if `thickness` is negative."""
    mask, width = _mask(src), _thickness(thickness)
    (x0, y0), (x1, y1) = _point(pt1, shift), _point(pt2, shift)
    corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    if width < 0:
        (left, right), (top, bottom) = sorted((x0, x1)), sorted((y0, y1))
        mask[max(top, 0) : max(bottom + 1, 0), max(left, 0) : max(right + 1, 0)] = True
    else:
        _outline(mask, corners, width)
    _draw(src, color, mask)


def circle(
    img: Var,
    center: Any,
    radius: int,
    color: Any,
    thickness: int = 1,
    lineType: int = _LINE,
    shift: int = 0,
) -> None:
    """Draw a circle about a centre; filled if `thickness` is negative."""
    mask, width = _mask(img), _thickness(thickness)
    x0, y0 = _point(center, shift)
    size = int(radius) / (1 << shift)
    if size < 0:
        raise ArgumentError(f"a circle has no radius of {radius}")
    y, x = np.mgrid[: mask.shape[0], : mask.shape[1]]
    distance = np.hypot(x - x0, y - y0)
    if width < 0:
        mask |= distance <= size + 0.2
    else:
        mask |= np.abs(distance - size) <= max(width, 1) / 2
    _draw(img, color, mask)


def _polygons(contours: Any, shift: int = 0, offset: Any = (0, 0)) -> list[list[tuple[int, int]]]:
    dx, dy = _point(offset)
    given = contours if isinstance(contours, list | tuple) else [contours]
    if given and all(isinstance(one, int | float) for one in given):
        given = [given]
    made = []
    for contour in given:
        points = points_of(to_plain(contour))
        made.append([(x + dx, y + dy) for x, y in (_point(one, shift) for one in points)])
    return [polygon for polygon in made if polygon]


def drawContours(
    img: Var,
    contours: Any,
    contourIdx: int,
    color: Any,
    thickness: int = 1,
    lineType: int = _LINE,
) -> None:
    """Draw closed contours.

    Args:
        img: [height, width, channels], which is changed.
        contours: as `findContours` returns them, or lists of x, y, x, y, …
        contourIdx: which one; negative for all.
        color: a number for each channel.
        thickness: of the outlines; negative to fill the contours.
        lineType: ignored.

    Raises:
        ArgumentError: there is no such contour.
    """
    polygons = _polygons(contours)
    if contourIdx >= len(polygons):
        raise ArgumentError(f"there is no contour {contourIdx} among {len(polygons)}")
    chosen = polygons if contourIdx < 0 else [polygons[contourIdx]]
    mask, width = _mask(img), _thickness(thickness)
    if width < 0:
        _fill(mask, chosen)
    else:
        for polygon in chosen:
            _outline(mask, polygon, width)
    _draw(img, color, mask)


def fillPoly(
    img: Var,
    contours: Any,
    color: Any,
    lineType: int = _LINE,
    shift: int = 0,
    offset: Any = (0, 0),
) -> None:
    """Fill polygons, moved by an offset; see `drawContours`."""
    mask = _mask(img)
    _fill(mask, _polygons(contours, shift, offset))
    _draw(img, color, mask)


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (arrowedLine, circle, drawContours, fillPoly, line, rectangle)
}
