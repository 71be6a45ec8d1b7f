"""Images transformed by a matrix, as MNN samples them."""

from __future__ import annotations

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError

NEAREST, BILINEAR, BICUBIC = 0, 1, 2
CLAMP_TO_EDGE, ZERO, REPEAT = 0, 1, 2

_TILE = 512  # pixels of a row between which MNN interpolates the source's coordinates
_LARGEST = 1 << 28  # elements of an image


def transformed(
    pixels: Array,
    matrix: Array,
    size: tuple[int, int],
    filter: int = NEAREST,
    padding: int | None = None,
) -> Array:
    """Return an image whose pixel (x, y) is the source's at the point that a matrix maps it to.

    Args:
        pixels: uint8 [height, width, channels].
        matrix: [3, 3], from the result to the source, between pixel centres.
        size: height and width of the result.
        filter: NEAREST, BILINEAR or BICUBIC.
        padding: what lies outside; None repeats the edge.

    Raises:
        ArgumentError: an image has no pixels, or the result too many.
    """
    height, width = pixels.shape[:2]
    if min(*size, height, width) < 1 or size[0] * size[1] * pixels.shape[2] > _LARGEST:
        raise ArgumentError(f"an image of {height} x {width} pixels cannot become {size}")
    covered = None
    if padding is not None:
        half = _exact(matrix, size, 0.499)  # MNN rounds to the pixel at which a row enters
        covered = _inside(*_exact(matrix, size), width, height) | _inside(*half, width, height)
    x, y = _places(matrix, size, covered)
    column, row = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
    made = _SAMPLERS[filter if filter in _SAMPLERS else NEAREST](pixels, column, row)
    if covered is None or padding is None:
        return made
    return np.where(covered[..., None], made, np.uint8(padding & 255))


def _inside(x: Array, y: Array, width: int, height: int) -> Array:
    slack = 1e-4
    right, bottom = width - 1 + slack, height - 1 + slack
    return np.asarray((x >= -slack) & (x <= right) & (y >= -slack) & (y <= bottom))


def _exact(matrix: Array, size: tuple[int, int], shift: float = 0.0) -> tuple[Array, Array]:
    """Return the coordinates of each pixel in the source."""
    return _mapped(matrix, np.arange(size[1]) + shift, np.arange(size[0])[:, None])


def _places(matrix: Array, size: tuple[int, int], covered: Array | None) -> tuple[Array, Array]:
    """Return coordinates in the source as MNN has them: linear inside the tiles of a row.

    They are exact at the first pixel of a tile, or at the first that is covered.
    """
    height, width = size
    starts = np.arange(0, width, _TILE)
    counts = np.minimum(_TILE, width - starts)
    rows = np.arange(height)[:, None]
    first = np.broadcast_to(starts, (height, len(starts))).copy()
    if covered is not None:
        for number, (start, count) in enumerate(zip(starts, counts, strict=True)):
            first[:, number] += covered[:, start : start + count].argmax(1)
    at = _mapped(matrix, first, rows)
    ends = _mapped(matrix, starts, rows), _mapped(matrix, starts + counts, rows)
    tile = np.arange(width) // _TILE
    steps = np.arange(width) - first[:, tile]
    x, y = (
        place[:, tile] + ((last - start) / counts)[:, tile] * steps
        for place, start, last in zip(at, *ends, strict=True)
    )
    return x, y


def _mapped(matrix: Array, x: Array, y: Array) -> tuple[Array, Array]:
    u, v, w = (row[0] * x + row[1] * y + row[2] for row in matrix)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(u / w), np.nan_to_num(v / w)


def _rounded(values: Array) -> Array:
    return np.floor(np.clip(values, 0, 255) + 0.5).astype(np.uint8)


def _nearest(pixels: Array, x: Array, y: Array) -> Array:
    # Coordinates that are a half but for their rounding count as one.
    return pixels[np.floor(y + 0.50001).astype(np.int64), np.floor(x + 0.50001).astype(np.int64)]


def _bilinear(pixels: Array, x: Array, y: Array) -> Array:
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    right, bottom = np.ceil(x).astype(np.int64), np.ceil(y).astype(np.int64)
    along, down = (x - left)[..., None], (y - top)[..., None]
    upper = pixels[top, left] * (1 - along) + pixels[top, right] * along
    lower = pixels[bottom, left] * (1 - along) + pixels[bottom, right] * along
    return _rounded(upper * (1 - down) + lower * down + 1e-5)


def _weight(distance: Array) -> Array:
    a, d = -0.5, np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _bicubic(pixels: Array, x: Array, y: Array) -> Array:
    height, width = pixels.shape[:2]
    column, row = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    total = np.zeros((*x.shape, pixels.shape[2]))
    for down in range(-1, 3):
        rows, by_row = np.clip(row + down, 0, height - 1), _weight(down - (y - row))
        for along in range(-1, 3):
            columns = np.clip(column + along, 0, width - 1)
            share = by_row * _weight(along - (x - column))
            total += pixels[rows, columns] * share[..., None]
    return _rounded(total)


_SAMPLERS = {NEAREST: _nearest, BILINEAR: _bilinear, BICUBIC: _bicubic}
