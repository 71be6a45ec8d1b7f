"""Pixels in MNN's image formats, and conversions between these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError

CHANNELS = {
    "RGBA": 4, "RGB": 3, "BGR": 3, "GRAY": 1, "BGRA": 4, "YCrCb": 3, "YUV": 3, "HSV": 3,
    "XYZ": 3, "BGR555": 2, "BGR565": 2, "HSV_FULL": 3, "YUV_NV21": 1, "YUV_NV12": 1,
}  # fmt: skip
"""Format -> bytes of a pixel; a plane of luminance stands for those of two planes."""

_COLOURS = ("RGB", "BGR", "RGBA", "BGRA")

# Coefficients of R, G and B, in units of 2^-14 and 2^-12.
_LUMA = (4899, 9617, 1868)
_CRCB = ((8192, -6860, -1332), (-2765, -5427, 8192))
_UV = ((-2412, -4734, 7146), (10076, -8438, -1638))
_XYZ = ((1689, 1465, 739), (871, 2929, 296), (79, 488, 3892))


def _rgb(pixels: Array, source: str) -> tuple[Array, Array, Array]:
    """Return red, green and blue as integers."""
    wide = pixels.astype(np.int64)
    order = (2, 1, 0) if source.startswith("BGR") else (0, 1, 2)
    red, green, blue = (wide[..., place] for place in order)
    return red, green, blue


def _sum(parts: tuple[Array, ...], factors: tuple[int, ...], bits: int) -> Array:
    total = sum(part * factor for part, factor in zip(parts, factors, strict=True))
    return np.asarray((total + (1 << (bits - 1))) >> bits)


def _gray(pixels: Array, source: str) -> Array:
    red, green, blue = _rgb(pixels, source)
    return np.asarray((19 * red + 38 * green + 7 * blue) >> 6)[..., None]


def _luminance(coefficients: tuple[tuple[int, ...], ...]) -> Callable[[Array, str], Array]:
    def convert(pixels: Array, source: str) -> Array:
        parts = _rgb(pixels, source)
        colours = (_sum(parts, one, 14) + 128 for one in coefficients)
        return np.stack([_sum(parts, _LUMA, 14), *colours], -1)

    return convert


def _xyz(pixels: Array, source: str) -> Array:
    parts = _rgb(pixels, source)
    return np.stack([np.clip(_sum(parts, one, 12), 0, 255) for one in _XYZ], -1)


def _hsv(hues: int) -> Callable[[Array, str], Array]:
    def convert(pixels: Array, source: str) -> Array:
        red, green, blue = _rgb(pixels, source)
        value = np.maximum(np.maximum(red, green), blue)
        range_ = value - np.minimum(np.minimum(red, green), blue)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.nan_to_num(range_ * (255 << 12) / value)
            unit = np.nan_to_num((hues << 12) / (6.0 * range_) + 0.5, posinf=0).astype(np.int64)
        saturation = (share.astype(np.int64) + (1 << 11)) >> 12
        hue = np.where(
            value == red,
            green - blue,
            np.where(value == green, blue - red + 2 * range_, red - green + 4 * range_),
        )
        hue = (hue * unit + (1 << 11)) >> 12
        hue = np.where(hue < 0, hue + hues, hue)
        return np.stack([np.clip(hue, 0, 255), saturation, value], -1)

    return convert


def _packed(green_mask: int, shifts: tuple[int, int]) -> Callable[[Array, str], Array]:
    def convert(pixels: Array, source: str) -> Array:
        red, green, blue = _rgb(pixels, source)
        word = (blue >> 3) | ((green & ~green_mask) << shifts[0]) | ((red & ~7) << shifts[1])
        return np.stack([word & 255, word >> 8], -1)

    return convert


_FROM_COLOURS: dict[str, Callable[[Array, str], Array]] = {
    "GRAY": _gray,
    "YCrCb": _luminance(_CRCB),
    "YUV": _luminance(_UV),
    "XYZ": _xyz,
    "HSV": _hsv(180),
    "HSV_FULL": _hsv(256),
    "BGR555": _packed(7, (2, 7)),
    "BGR565": _packed(3, (3, 8)),
}


def converted(pixels: Array, source: str, target: str) -> Array:
    """Return pixels in another format.

    Args:
        pixels: uint8 [height, width, channels].
        source: their format; not one of two planes, see `from_planes`.
        target: the other format.

    Raises:
        ArgumentError: MNN has no such conversion, or the pixels have other channels.
    """
    if source not in CHANNELS or target not in CHANNELS:
        raise ArgumentError(f"there is no conversion from {source} to {target}")
    if pixels.shape[-1] != CHANNELS[source]:
        raise ArgumentError(f"{source} has {CHANNELS[source]} channels, not {pixels.shape[-1]}")
    if source == target:
        return pixels
    if source == "GRAY" and target in _COLOURS:
        return _with_alpha(np.repeat(pixels, 3, -1), target)
    if source in _COLOURS and target in _FROM_COLOURS:
        return _FROM_COLOURS[target](pixels, source).astype(np.uint8)
    if source in _COLOURS and target in _COLOURS:
        made = pixels if source[0] == target[0] else pixels[..., [2, 1, 0, 3][: pixels.shape[-1]]]
        return made[..., :3] if CHANNELS[target] == 3 else _with_alpha(made, target)
    raise ArgumentError(f"there is no conversion from {source} to {target}")


def _with_alpha(pixels: Array, target: str) -> Array:
    if CHANNELS[target] == pixels.shape[-1]:
        return pixels
    opaque = np.full((*pixels.shape[:-1], 1), 255, np.uint8)
    return np.concatenate([pixels[..., :3], opaque], -1)


def from_planes(luminance: Array, colours: Array, source: str, target: str) -> Array:
    """Return pixels for a plane of luminance and one of colours of half the size.

    Args:
        luminance: uint8 [height, width].
        colours: uint8 [height / 2, width / 2, 2], in the format's order.
        source: YUV_NV21 or YUV_NV12.
        target: RGB, BGR, RGBA, BGRA or GRAY.
    """
    if target == "GRAY":
        return luminance[..., None]
    if target not in _COLOURS:
        raise ArgumentError(f"there is no conversion from {source} to {target}")
    height, width = luminance.shape
    wide = np.repeat(np.repeat(colours, 2, 0), 2, 1)[:height, :width].astype(np.int64) - 128
    first = 1 if source == "YUV_NV21" else 0
    u, v, y = wide[..., first], wide[..., 1 - first], luminance.astype(np.int64) << 6
    parts = ((y + 73 * v) >> 6, (y - 25 * u - 37 * v) >> 6, (y + 130 * u) >> 6)
    rgb = np.clip(np.stack(parts, -1), 0, 255).astype(np.uint8)
    return _with_alpha(rgb if target.startswith("RGB") else rgb[..., ::-1], target)
