"""Image to image: super-resolution in tiles, restoration, style transfer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import Loaded, input_of
from vkmnn.pipelines.options import Check, Options, number_of_pixels
from vkmnn.pipelines.pictures import Picture, pil
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.maps import Enlarged

_TILE, _OVERLAP = 256, 16
Tile = tuple[int, int, Array]
"""Row, column and pixels."""


class Upscale(PicturePipeline[Enlarged]):
    """Enlarges or restores images, tile by tile; overlapping tiles are blended."""

    task = "image-to-image"
    own: ClassVar[tuple[str, ...]] = ("tile", "overlap", "feeds")
    checks: ClassVar[Mapping[str, Check]] = {"overlap": number_of_pixels}
    usual = ImageProcessor(Fit("padded"), "bicubic")

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        taken = input_of(loaded)
        self._tile = taken.size or options.size or (options.take("tile", _TILE),) * 2
        self.settings = {"overlap": options.take("overlap", min(_OVERLAP, min(self._tile) // 4))}
        self._luma = taken.channels == 1

    def choose_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return a processor that keeps the size of images."""
        made = super().choose_processor(loaded)
        return replace(made, fit=replace(made.fit, how="padded", size=None))

    def _flow(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[Enlarged]:
        """Cut images into tiles, run these, and blend the results."""
        for picture in pictures:
            tiles = _tiles(picture.pixels, self._tile, self._overlap(chosen))
            yield self._blended(picture, list(tiles), chosen)

    def part(self, picture: Picture) -> Picture:
        """Return the tile in the middle."""
        tiles = list(_tiles(picture.pixels, self._tile, self._overlap(self.settings)))
        return Picture(tiles[len(tiles) // 2][2])

    def _overlap(self, chosen: Settings) -> int:
        overlap = int(chosen["overlap"])
        if not 0 <= overlap < min(self._tile):
            raise InvalidInputError(
                f"an overlap of {overlap} does not fit tiles of {min(self._tile)} pixels"
            )
        return overlap

    def _blended(self, picture: Picture, tiles: Sequence[Tile], chosen: Settings) -> Enlarged:
        """Return the sum of enlarged tiles, with weights that decrease towards their edges."""
        whole, weights = np.zeros((1, 1, 3), np.float32), np.zeros((1, 1, 1), np.float32)
        made = super()._flow((Picture(tile) for _, _, tile in tiles), chosen)
        for number, ((top, left, tile), one) in enumerate(zip(tiles, made, strict=True)):
            values = one.pixels.astype(np.float32)
            scale = values.shape[0] / tile.shape[0]
            if number == 0:
                shape = round(picture.height * scale), round(picture.width * scale)
                whole, weights = (np.zeros((*shape, n), np.float32) for n in (3, 1))
            first, start = round(top * scale), round(left * scale)
            window = np.s_[first : first + values.shape[0], start : start + values.shape[1]]
            rows, columns = whole[window].shape[:2]
            weight = _weight((rows, columns), round(self._overlap(chosen) * scale))[:, :, None]
            whole[window] += values[:rows, :columns] * weight
            weights[window] += weight
        return Enlarged(np.rint(whole / weights).clip(0, 255).astype(np.uint8), picture)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Enlarged]:
        """Return the network's output for each tile."""
        array = next((one for one in outputs.values() if one.ndim == 4), None)
        if array is None or (array.shape[1] not in (1, 3) and array.shape[3] not in (1, 3)):
            shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in outputs.items())
            raise InvalidInputError(
                f"no output is an image: {shapes}", hint="choose another task: --task"
            )
        channels_first = array.shape[1] in (1, 3)
        made = array.astype(np.float32).transpose(0, 2, 3, 1) if channels_first else array
        processor = self.network.processor
        factor, summand = processor.factors
        pixels = (made - summand) / factor  # outputs have the same units as inputs
        pixels = np.rint(pixels).clip(0, 255).astype(np.uint8)
        if not self._luma:
            return [Enlarged(_ordered(one, processor), picture)
                    for one, picture in zip(pixels, pictures, strict=True)]  # fmt: skip
        return [
            Enlarged(_coloured(one[:, :, 0], picture), picture)
            for one, picture in zip(pixels, pictures, strict=True)
        ]


def _ordered(pixels: Array, processor: ImageProcessor) -> Array:
    return np.ascontiguousarray(pixels[:, :, ::-1]) if processor.channels == "bgr" else pixels


def _coloured(luma: Array, picture: Picture) -> Array:
    """Return the image of a network that enlarges only luminance; colours are interpolated."""
    image = pil()
    size = luma.shape[1], luma.shape[0]
    large = picture.image().convert("YCbCr").resize(size, image.Resampling.BICUBIC)
    _, blue, red = large.split()
    merged = image.merge("YCbCr", (image.fromarray(luma), blue, red))
    return np.asarray(merged.convert("RGB"))


def _starts(length: int, tile: int, overlap: int) -> list[int]:
    """Return the first pixels of tiles; the last tile ends at the image's edge."""
    if length <= tile:
        return [0]
    count = -(-(length - overlap) // (tile - overlap))
    return [round(n * (length - tile) / (count - 1)) for n in range(count)]


def _tiles(pixels: Array, tile: tuple[int, int], overlap: int) -> Iterator[Tile]:
    """Yield the tiles of an image; small images are mirrored at their edges."""
    height, width = pixels.shape[:2]
    missing = max(tile[0] - height, 0), max(tile[1] - width, 0)
    if any(missing):
        pad = ((0, missing[0]), (0, missing[1]), (0, 0))
        pixels = np.pad(pixels, pad, "symmetric")
    for top in _starts(pixels.shape[0], tile[0], overlap):
        for left in _starts(pixels.shape[1], tile[1], overlap):
            part = pixels[top : top + tile[0], left : left + tile[1]]
            yield top, left, np.ascontiguousarray(part)


def _weight(shape: Sequence[int], overlap: int) -> Array:
    """Return weights that rise from the edges over the width of an overlap."""
    sides = [
        np.minimum(np.minimum(np.arange(1, n + 1), np.arange(n, 0, -1)) / (overlap + 1), 1)
        for n in shape
    ]
    return np.outer(*sides).astype(np.float32)
