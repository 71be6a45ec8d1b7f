"""Mattes from an image and its trimap: ViTMatte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vkmnn.base.media import PICTURES, has_suffix
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Settings
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture, read_picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.maps import Matte
from vkmnn.pipelines.trimap_input import split_trimap, trimap_input
from vkmnn.pipelines.vision.cut_out import CutOut

_WHAT = "black for background, white for foreground, grey for unknown"


@dataclass(frozen=True, slots=True, eq=False)
class _WithTrimap(Picture):
    """An image with its trimap, uint8 [height, width, 3]."""

    trimap: Array = field(kw_only=True)


class CutOutByTrimap(CutOut):
    """Cuts the foreground out of images with trimaps."""

    own: ClassVar[tuple[str, ...]] = (*CutOut.own, "trimap")
    usual = ImageProcessor(
        Fit("padded", None, multiple=32), "bilinear", 1 / 255, (0.5,) * 3, (0.5,) * 3, fill=(128,)
    )

    def __init__(self, loaded: Loaded, options: Options) -> None:
        split = split_trimap(loaded)
        super().__init__(split, options)
        self._trimap: NodeArg = trimap_input(split)
        self.settings = {**self.settings, "trimap": options.take("trimap", None)}

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return the preprocessing: images in their own size, padded."""
        del loaded
        return self.usual

    def usual_activation(self, loaded: Loaded) -> str | None:
        """Return None: the network ends in its own."""
        del loaded
        return None

    def _flow(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[Matte]:
        given = chosen["trimap"]
        paired = (_paired(one, given, number) for number, one in enumerate(pictures))
        return super()._flow(paired, chosen)

    def part(self, picture: Picture) -> Picture:
        """Return an image with the trimap of the options."""
        return _paired(picture, self.settings["trimap"], 0)

    def _feeds(
        self, pictures: Sequence[Picture], placed: Sequence[Placed], chosen: Settings
    ) -> dict[str, Array]:
        fit = self.network.processor.fit
        reading = ImageProcessor(fit, "nearest", channels="grey")
        trimaps = np.stack([
            reading.normalised(reading.pixels(Picture(one.trimap), where))
            for one, where in zip(pictures, placed, strict=True) if isinstance(one, _WithTrimap)
        ])  # fmt: skip
        shape = self._trimap.shape or [None, 1, None, None]
        values = np.moveaxis(trimaps, 3, 1) if shape[1] == 1 else trimaps
        return super()._feeds(pictures, placed, {**chosen, "trimap": values})

    def more_feeds(self, chosen: Settings, placed: Sequence[Placed]) -> dict[str, Array]:
        """Return the trimaps of a run."""
        del placed
        return {self._trimap.name: np.ascontiguousarray(chosen["trimap"], self._trimap.dtype)}


def _paired(picture: Picture, given: Any, number: int) -> _WithTrimap:
    """Return an image with its trimap.

    Args:
        picture: the image.
        given: its trimap; a list, by number; or a folder, by the image's name.
        number: the image's place among the images of the call.

    Raises:
        InvalidInputError: there is none, or its size differs.
    """
    if isinstance(given, list | tuple):
        if number >= len(given):
            raise InvalidInputError(
                f"there are more images than trimaps: {len(given)}", hint="give one for each image"
            )
        given = given[number]
    elif isinstance(given, str | Path) and Path(given).is_dir():
        given = _in_folder(Path(given), Path(picture.name).stem)
    if given is None:
        raise InvalidInputError(
            "the network takes a trimap with the image",
            hint=f"trimap=FILE, or --trimap FILE: {_WHAT}",
        )
    trimap = read_picture(given).pixels
    if trimap.shape != picture.pixels.shape:
        raise InvalidInputError(
            f"the trimap has {trimap.shape[0]}×{trimap.shape[1]} pixels, the image "
            f"{picture.height}×{picture.width}",
            hint="a trimap has the size of its image",
        )
    return _WithTrimap(picture.pixels, picture.name, trimap=trimap)


def _in_folder(folder: Path, stem: str) -> Path:
    found = sorted(
        one for one in folder.iterdir() if one.stem == stem and has_suffix(one, PICTURES)
    )
    if not found:
        raise InvalidInputError(
            f"the folder '{folder}' has no trimap for '{stem}'",
            hint="trimaps in a folder are named as their images",
        )
    return found[0]
