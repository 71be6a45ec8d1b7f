"""Mattes and depth maps: one value per pixel of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.heads.candidates import sigmoid
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.maps import Depth, Matte
from vkmnn.pipelines.vision.segment import on_picture


def single_map(outputs: Mapping[str, Array], what: str) -> Array:
    """Return the first output with one value per pixel: [n, rows, columns].

    Raises:
        InvalidInputError: there is none.
    """
    for array in outputs.values():
        if array.ndim == 4 and 1 in (array.shape[1], array.shape[3]):
            return array.reshape(len(array), *(array.shape[2:] if array.shape[1] == 1
                                               else array.shape[1:3]))  # fmt: skip
        if array.ndim == 3:
            return array
    shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in outputs.items())
    raise InvalidInputError(
        f"no output has {what} per pixel: {shapes}", hint="choose another task: --task"
    )


class CutOut(PicturePipeline[Matte]):
    """Cuts the foreground out of images."""

    task = "image-matting"
    own: ClassVar[tuple[str, ...]] = ("feeds",)
    usual = ImageProcessor(Fit("stretch", (512, 512)), "bilinear", 1 / 255, (0.5,) * 3, (0.5,) * 3)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Matte]:
        """Return the matte of each image."""
        maps = single_map(outputs, "an opacity").astype("float32")
        if maps.min() < -0.01 or maps.max() > 1.01:
            maps = sigmoid(maps)
        return [
            Matte(on_picture(one, where, picture).clip(0, 1), picture)
            for one, where, picture in zip(maps, placed, pictures, strict=True)
        ]


class Depths(PicturePipeline[Depth]):
    """Estimates the depth of each pixel."""

    task = "depth-estimation"
    own: ClassVar[tuple[str, ...]] = ("feeds",)
    usual = ImageProcessor(
        Fit("stretch", (384, 384)), "bicubic", 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Depth]:
        """Return the depth of each image."""
        maps = single_map(outputs, "a depth").astype("float32")
        return [
            Depth(on_picture(one, where, picture), picture)
            for one, where, picture in zip(maps, placed, pictures, strict=True)
        ]
