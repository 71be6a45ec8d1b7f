"""Preprocessing: from an image to the network's input array."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed, place
from vkmnn.pipelines.resampling import resize

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_GREY = np.array([19595, 38470, 7471], np.uint32)  # as in PIL, out of 2 ** 16


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """Preprocessing of images: resize, then (pixel * scale - mean) / std.

    Attributes:
        fit: how images are fitted to the network's size.
        filter: the resize filter; see `resampling`.
        scale: factor for pixels from 0 to 255.
        mean: by channel, subtracted from scaled values.
        std: by channel.
        channels: "rgb", "bgr" or "grey".
        fill: the value of padding, from 0 to 255.
        brighten: whether the brightest value of each resized image becomes 255 (U²-Net).
    """

    fit: Fit = Fit()
    filter: str = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    channels: str = "rgb"
    fill: tuple[int, ...] = (0,)
    brighten: bool = False

    def with_size(self, size: tuple[int, int]) -> ImageProcessor:
        """Return the processor for another size of the network's input."""
        return replace(self, fit=replace(self.fit, size=size))

    @property
    def factors(self) -> tuple[Array, Array]:
        """Return factor and offset by channel, float32: the value is pixel * factor + offset."""
        mean, std = np.array(self.mean, np.float64), np.array(self.std, np.float64)
        factor = np.broadcast_to(self.scale / std, np.broadcast_shapes(mean.shape, std.shape))
        return factor.astype(np.float32), (-mean / std).astype(np.float32)

    def placed(self, picture: Picture) -> Placed:
        """Return the placement of an image in the network's input."""
        return place(self.fit, picture.height, picture.width)

    def pixels(self, picture: Picture, placed: Placed) -> Array:
        """Return the canvas with the image: uint8 [height, width, channels]."""
        small = resize(self.ordered(picture.pixels), *placed.resized, self.filter)
        if self.brighten and 0 < small.max() < 255:
            small = np.rint(small * np.float32(255 / small.max())).astype(np.uint8)
        if placed.offset == (0, 0) and placed.canvas == placed.resized:
            return np.ascontiguousarray(small)
        fill = np.array(self.fill, np.uint8)
        canvas = np.empty((*placed.canvas, small.shape[2]), np.uint8)
        canvas[...] = fill
        rows, columns = placed.window
        top, left = placed.offset
        canvas[rows, columns] = small[
            rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
        ]
        return canvas

    def ordered(self, pixels: Array) -> Array:
        """Return RGB pixels in the network's channel order."""
        if self.channels == "bgr":
            return np.ascontiguousarray(pixels[:, :, ::-1])
        if self.channels == "grey":
            grey = (pixels.astype(np.uint32) * _GREY).sum(2) + (1 << 15)
            return np.asarray((grey >> 16).astype(np.uint8)[:, :, None])
        return pixels

    def normalised(self, pixels: Array) -> Array:
        """Return pixels from 0 to 255 normalised for the network: float32, channels last."""
        factor, summand = self.factors
        made: Array = pixels.astype(np.float32) * factor + summand
        return made
