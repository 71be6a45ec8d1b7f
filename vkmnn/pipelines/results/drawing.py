"""Drawing on images, legible on light and dark backgrounds."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.base.extras import need
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.pictures import Picture

Colour = tuple[int, int, int]
_DARK, _LIGHT = (16, 16, 16), (250, 250, 250)
_GOLDEN = 0.61803398875


def colour_of(index: int) -> Colour:
    """Return the colour of a class; adjacent indices differ clearly."""
    hue = (0.98 + index * _GOLDEN) % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.75 if index % 2 else 0.9, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def ink_on(colour: Colour) -> Colour:
    """Return black or white, whichever is legible on a colour."""
    red, green, blue = colour
    return _DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else _LIGHT


class Canvas:
    """An image to draw on.

    Args:
        picture: the background, which is not modified.
    """

    def __init__(self, picture: Picture) -> None:
        self.image: Any = picture.image().convert("RGB")
        self._draw: Any = need("PIL.ImageDraw", "drawing results", "images").Draw(self.image)
        fonts: Any = need("PIL.ImageFont", "drawing results", "images")
        side = max(min(self.image.size), 1)
        self.thickness = max(round(side / 320), 2)
        try:
            self._font = fonts.load_default(max(round(side / 36), 12))
        except TypeError:  # pillow before 10.1, or without FreeType
            self._font = fonts.load_default()

    def box(self, corners: Sequence[float], colour: Colour) -> None:
        """Outline a rectangle; a dark line next to the coloured one shows on any background."""
        left, top, right, bottom = corners
        right, bottom = max(left, right), max(top, bottom)
        wide = self.thickness
        outer = (left - 1, top - 1, right + 1, bottom + 1)
        self._draw.rectangle(outer, outline=_DARK, width=wide + 2)
        self._draw.rectangle((left, top, right, bottom), outline=colour, width=wide)

    def polygon(self, points: Array, colour: Colour) -> None:
        """Outline a polygon of points (x, y)."""
        closed = [tuple(map(float, point)) for point in [*points, points[0]]]
        self._draw.line(closed, fill=_DARK, width=self.thickness + 2, joint="curve")
        self._draw.line(closed, fill=colour, width=self.thickness, joint="curve")

    def line(self, start: Sequence[float], end: Sequence[float], colour: Colour) -> None:
        """Draw a line."""
        ends = [tuple(map(float, start)), tuple(map(float, end))]
        self._draw.line(ends, fill=_DARK, width=self.thickness + 2)
        self._draw.line(ends, fill=colour, width=self.thickness)

    def dot(self, x: float, y: float, colour: Colour) -> None:
        """Draw a point with a dark rim."""
        size = self.thickness + 1
        self._draw.ellipse((x - size - 1, y - size - 1, x + size + 1, y + size + 1), fill=_DARK)
        self._draw.ellipse((x - size, y - size, x + size, y + size), fill=colour)

    def tag(self, x: float, y: float, text: str, colour: Colour) -> None:
        """Write text on a coloured background, above a point or within the image."""
        text = self._writable(text)
        left, top, right, bottom = self._draw.textbbox((0, 0), text, font=self._font)
        pad = max(self.thickness, 2)
        width, height = right - left + 2 * pad, bottom - top + 2 * pad
        x = min(max(x, 0), max(self.image.width - width, 0))
        y = min(max(y - height, 0), max(self.image.height - height, 0))
        self._draw.rectangle((x, y, x + width, y + height), fill=colour)
        place = (x + pad - left, y + pad - top)
        self._draw.text(place, text, font=self._font, fill=ink_on(colour))

    def height_of(self, text: str) -> float:
        """Return the height of a tag."""
        _, top, _, bottom = self._draw.textbbox((0, 0), self._writable(text), font=self._font)
        return float(bottom - top + 2 * max(self.thickness, 2) + 1)

    def _writable(self, text: str) -> str:
        """Return a string restricted to the font's characters."""
        try:
            self._draw.textbbox((0, 0), text, font=self._font)
        except (UnicodeError, ValueError):
            return text.encode("ascii", "replace").decode()
        return text

    def shade(self, mask: Array, colour: Colour, share: float = 0.5) -> None:
        """Tint the pixels of a mask, bool [height, width]."""
        pixels = np.asarray(self.image).copy()
        tint = np.array(colour, np.float32)
        pixels[mask] = (pixels[mask] * (1 - share) + tint * share).astype(np.uint8)
        self.image.paste(need("PIL.Image", "drawing results", "images").fromarray(pixels))
