"""Depth maps: the distance of each pixel of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.maps import Depth
from vkmnn.pipelines.vision.segment import on_picture
from vkmnn.pipelines.vision.single_map import single_map


class Depths(PicturePipeline[Depth]):
    """Estimates the depth of each pixel."""

    task = "depth-estimation"
    own: ClassVar[tuple[str, ...]] = ("feeds",)
    usual = ImageProcessor(
        Fit("stretch", (384, 384)), "bicubic", 1 / 255, IMAGENET_MEAN, IMAGENET_STD
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
