"""Resizing of 8-bit images: PIL's filters, and OpenCV's bilinear filter without antialiasing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.pictures import pil

FILTERS: Mapping[int, str] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
"""PIL's filters by their numbers in preprocessor_config.json; all but "nearest" antialias."""

LINEAR = "linear"
"""Bilinear without antialiasing, like OpenCV's INTER_LINEAR."""


def resize(pixels: Array, height: int, width: int, by: str) -> Array:
    """Resize an image.

    Args:
        pixels: uint8 [rows, columns, channels].
        height: rows of the result.
        width: its columns.
        by: `LINEAR`, or the name of a filter.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    if by in _PLAIN:
        return _PLAIN[by](pixels, height, width)
    image = pil()
    grey = pixels.shape[2] == 1
    given = image.fromarray(pixels[:, :, 0] if grey else pixels)
    made = np.asarray(given.resize((width, height), getattr(image.Resampling, by.upper())))
    return made[:, :, None] if grey else made


def _linear(pixels: Array, height: int, width: int) -> Array:
    """Interpolate linearly between adjacent rows and columns, half-pixel centres, rounded."""
    below, above, share = _neighbours(pixels.shape[0], height)
    wide = pixels[below].astype(np.float32) * (1 - share)[:, None, None]
    wide += pixels[above].astype(np.float32) * share[:, None, None]
    left, right, share = _neighbours(pixels.shape[1], width)
    made = wide[:, left] * (1 - share)[None, :, None] + wide[:, right] * share[None, :, None]
    return np.asarray(np.floor(made + np.float32(0.5)).astype(np.uint8))


def _neighbours(have: int, want: int) -> tuple[Array, Array, Array]:
    places = np.clip((np.arange(want) + 0.5) * (have / want) - 0.5, 0, have - 1)
    first = np.floor(places).astype(np.int64)
    return first, np.minimum(first + 1, have - 1), (places - first).astype(np.float32)


_PLAIN: Mapping[str, Callable[[Array, int, int], Array]] = {LINEAR: _linear}


def enlarge(values: Array, height: int, width: int) -> Array:
    """Resize maps of floats, bilinear with half-pixel centres.

    Args:
        values: float [..., rows, columns].
        height: rows of the result.
        width: its columns.
    """
    if values.shape[-2:] == (height, width):
        return values
    below, above, down = _neighbours(values.shape[-2], height)
    left, right, along = _neighbours(values.shape[-1], width)
    wide = values[..., below, :] * (1 - down)[:, None] + values[..., above, :] * down[:, None]
    return np.asarray(wide[..., left] * (1 - along) + wide[..., right] * along)
