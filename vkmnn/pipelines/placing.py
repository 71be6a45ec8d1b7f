"""Placement of an image in a network's input: resized, then put on a canvas that crops or pads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How an image is fitted to the network's size.

    Attributes:
        how: a key of `FITS`.
        size: the canvas, or the target size for `how`.
        edge: length of the shortest edge, or of the longest one for "longest"; 0 for unused.
        longest: upper bound of the longest edge for "edges"; 0 for none.
        multiple: heights and widths are multiples of it.
        enlarge: whether small images are scaled up.
    """

    how: str = "stretch"
    size: Size | None = None
    edge: int = 0
    longest: int = 0
    multiple: int = 1
    enlarge: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """The placement of an image in a network's input.

    Attributes:
        original: the image's size.
        resized: its size after the resize.
        offset: row and column of its first pixel on the canvas; negative if it is cropped.
        canvas: size of the network's input.
    """

    original: Size
    resized: Size
    offset: tuple[int, int]
    canvas: Size

    @property
    def window(self) -> tuple[slice, slice]:
        """The part of the canvas that the image covers."""
        rows, columns = (
            slice(max(first, 0), min(first + count, whole))
            for first, count, whole in zip(self.offset, self.resized, self.canvas, strict=True)
        )
        return rows, columns

    def to_picture(self, points: Array) -> Array:
        """Map points (x, y) of the input to the image.

        Args:
            points: float [..., 2], in pixels of the input.
        """
        offset = np.array([self.offset[1], self.offset[0]], np.float64)
        return (points.astype(np.float64) - offset) * self._scale

    def to_input(self, points: Array) -> Array:
        """Map points (x, y) of the image to the input."""
        offset = np.array([self.offset[1], self.offset[0]], np.float64)
        return points.astype(np.float64) / self._scale + offset

    @property
    def _scale(self) -> Array:
        pairs = [(self.original[1], self.resized[1]), (self.original[0], self.resized[0])]
        return np.array([whole / max(part, 1) for whole, part in pairs], np.float64)

    def boxes(self, boxes: Array) -> Array:
        """Map boxes (left, top, right, bottom) of the input to the image, clipped to it."""
        corners = self.to_picture(boxes.reshape(-1, 2, 2)).reshape(-1, 4)
        height, width = self.original
        return np.clip(corners, 0, np.array([width, height, width, height], np.float64))


def place(fit: Fit, height: int, width: int) -> Placed:
    """Return the placement of an image of a size."""
    return FITS[fit.how](fit, height, width)


def _stretch(fit: Fit, height: int, width: int) -> Placed:
    size = fit.size or (height, width)
    return Placed((height, width), size, (0, 0), size)


def _shortest(fit: Fit, height: int, width: int) -> Placed:
    """Scale the shortest edge to a length and crop the centre (transformers, torchvision)."""
    edge = fit.edge or min(fit.size or (height, width))
    short, long = min(height, width), max(height, width)
    other = int(edge * long / short)
    down = fit.multiple
    edge, other = (max(side // down, 1) * down for side in (edge, other))
    resized = (edge, other) if height <= width else (other, edge)
    canvas = fit.size or resized
    rows, columns = (-((have - want) // 2) for have, want in zip(resized, canvas, strict=True))
    return Placed((height, width), resized, (rows, columns), canvas)


def _centre(fit: Fit, height: int, width: int) -> Placed:
    """Crop the centre without scaling."""
    canvas = fit.size or (height, width)
    rows, columns = (
        -((have - want) // 2) for have, want in zip((height, width), canvas, strict=True)
    )
    return Placed((height, width), (height, width), (rows, columns), canvas)


def _cropped(fit: Fit, height: int, width: int) -> Placed:
    """Scale to `edge` rows and `longest` columns, and crop the centre."""
    resized = fit.edge, fit.longest
    canvas = fit.size or resized
    rows, columns = (-((have - want) // 2) for have, want in zip(resized, canvas, strict=True))
    return Placed((height, width), resized, (rows, columns), canvas)


def _letterbox(fit: Fit, height: int, width: int) -> Placed:
    """Scale the image to fit into the canvas, centred (ultralytics)."""
    canvas = fit.size or (height, width)
    ratio = min(canvas[0] / height, canvas[1] / width)
    if not fit.enlarge:
        ratio = min(ratio, 1.0)
    resized = max(round(height * ratio), 1), max(round(width * ratio), 1)
    rows, columns = (
        round((whole - part) / 2 - 0.1) for whole, part in zip(canvas, resized, strict=True)
    )
    return Placed((height, width), resized, (rows, columns), canvas)


def _corner(fit: Fit, height: int, width: int) -> Placed:
    """Scale the image to fit into the canvas, at its top left (YOLOX, SCRFD)."""
    canvas = fit.size or (height, width)
    ratio = min(canvas[0] / height, canvas[1] / width)
    resized = max(int(height * ratio), 1), max(int(width * ratio), 1)
    return Placed((height, width), resized, (0, 0), canvas)


def _longest(fit: Fit, height: int, width: int) -> Placed:
    """Scale the longest edge to a length; the canvas is padded below and on the right (SAM)."""
    edge = fit.edge or max(fit.size or (height, width))
    ratio = edge / max(height, width)
    resized = max(int(height * ratio + 0.5), 1), max(int(width * ratio + 0.5), 1)
    return Placed((height, width), resized, (0, 0), fit.size or resized)


def _edges(fit: Fit, height: int, width: int) -> Placed:
    """Scale the shortest edge to a length, unless the longest would exceed another (DETR)."""
    short, long, edge = min(height, width), max(height, width), fit.edge or min(height, width)
    exact: float | None = None
    if fit.longest and long / short * edge > fit.longest:
        exact = fit.longest * short / long
        edge = round(exact)
    if edge == short:
        resized = height, width
    elif height <= width:
        resized = edge, int((exact or edge) * width / height)
    else:
        resized = int((exact or edge) * height / width), edge
    size = fit.size or resized
    if size[0] < resized[0] or size[1] < resized[1]:  # the network's size is static, and smaller
        return _corner(fit, height, width)
    return Placed((height, width), resized, (0, 0), size)


def _multiple(fit: Fit, height: int, width: int) -> Placed:
    """Scale by the side that changes less, to multiples of a number (DPT)."""
    want = fit.size or (height, width)
    ratios = want[0] / height, want[1] / width
    ratio = min(ratios, key=lambda one: abs(1 - one))

    def side(value: float) -> int:
        return max(round(value / fit.multiple), 1) * fit.multiple

    size = side(height * ratio), side(width * ratio)
    return Placed((height, width), size, (0, 0), size)


def _padded(fit: Fit, height: int, width: int) -> Placed:
    """Keep the image's size, and pad it below and on the right to multiples of a number."""
    up = fit.multiple
    if fit.size and (fit.size[0] < height or fit.size[1] < width):  # static and smaller
        return _corner(fit, height, width)
    canvas = fit.size or (math.ceil(height / up) * up, math.ceil(width / up) * up)
    return Placed((height, width), (height, width), (0, 0), canvas)


def _limited(fit: Fit, height: int, width: int) -> Placed:
    """Scale to multiples of a number, with a bound on the longest edge (PaddleOCR)."""
    if fit.size:  # the network's own size
        return _stretch(fit, height, width)
    ratio = min(fit.longest / max(height, width), 1.0) if fit.longest else 1.0
    if fit.edge and min(height, width) * ratio < fit.edge:
        ratio = fit.edge / min(height, width)

    def side(value: int) -> int:
        return max(int(round(int(value * ratio) / fit.multiple) * fit.multiple), fit.multiple)

    size = side(height), side(width)
    return Placed((height, width), size, (0, 0), size)


def _line(fit: Fit, height: int, width: int) -> Placed:
    """Scale a text line to `edge` rows, and pad it on the right (PaddleOCR)."""
    rows = fit.edge
    columns = math.ceil(rows * width / height)
    whole = max(columns, fit.longest)
    canvas = fit.size or (rows, math.ceil(whole / fit.multiple) * fit.multiple)
    return Placed((height, width), (rows, max(min(columns, canvas[1]), 1)), (0, 0), canvas)


FITS: Mapping[str, Callable[[Fit, int, int], Placed]] = {
    "stretch": _stretch,
    "shortest": _shortest,
    "centre": _centre,
    "cropped": _cropped,
    "letterbox": _letterbox,
    "corner": _corner,
    "longest": _longest,
    "edges": _edges,
    "multiple": _multiple,
    "padded": _padded,
    "limited": _limited,
    "line": _line,
}
"""The fitting methods by name."""
