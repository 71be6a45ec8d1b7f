"""Mattes: how much of each pixel is foreground, from an image alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.heads.candidates import sigmoid
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.networks import Loaded, input_of
from vkmnn.pipelines.options import Check, Options, one_of
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.maps import Matte
from vkmnn.pipelines.vision.segment import on_picture
from vkmnn.pipelines.vision.single_map import single_map

ACTIVATIONS = ("sigmoid", "minmax", "none")
_HALF, _ONE = (0.5,) * 3, (1.0,) * 3
_SHARP = 1024, 1024
"""Input size of IS-Net, RMBG and BiRefNet."""
_SIDE_OUTPUTS = 6
"""Fewest outputs of networks with deep supervision: a map from each stage of the decoder."""

_U2NET = ImageProcessor(
    Fit("stretch", (320, 320)), "lanczos", 1 / 255, IMAGENET_MEAN, IMAGENET_STD, brighten=True
)
_ISNET = ImageProcessor(Fit("stretch", _SHARP), "bilinear", 1 / 255, _HALF, _ONE)
_BIREFNET = ImageProcessor(Fit("stretch", _SHARP), "bilinear", 1 / 255, IMAGENET_MEAN, IMAGENET_STD)


class CutOut(PicturePipeline[Matte]):
    """Cuts the foreground out of images."""

    task = "image-matting"
    own: ClassVar[tuple[str, ...]] = ("feeds", "activation")
    checks: ClassVar[Mapping[str, Check]] = {"activation": one_of(*ACTIVATIONS)}
    usual = ImageProcessor(
        Fit("shortest", None, 512, multiple=32), "bilinear", 1 / 255, _HALF, _HALF
    )

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        self.settings = {"activation": options.take("activation", self.usual_activation(loaded))}

    def usual_activation(self, loaded: Loaded) -> str | None:
        """Return "minmax" for U²-Net and IS-Net, told by side outputs or normalisation."""
        made = self.network.processor
        side_by_side = len(loaded.outputs) >= _SIDE_OUTPUTS
        is_isnet = set(made.mean) == set(_HALF) and set(made.std) == set(_ONE)
        return "minmax" if side_by_side or is_isnet else None

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return the preprocessing of the family: U²-Net, IS-Net, BiRefNet; else of MODNet."""
        size = self.options.size or input_of(loaded).size
        if len(loaded.outputs) >= _SIDE_OUTPUTS:
            return _ISNET if size == _SHARP else _U2NET
        if size == _SHARP:
            return _BIREFNET if _is_birefnet(loaded) else _ISNET
        fit = Fit("stretch", size) if size else self.usual.fit
        return replace(self.usual, fit=fit)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Matte]:
        """Return the matte of each image."""
        maps = single_map(outputs, "an opacity")
        return [
            Matte(on_picture(opacity(one, chosen["activation"]), where, picture), picture)
            for one, where, picture in zip(maps, placed, pictures, strict=True)
        ]


def _is_birefnet(loaded: Loaded) -> bool:
    """Return whether a network returns logits (BiRefNet), or is named as RMBG 2's."""
    first = loaded.outputs[0].name
    if first == "alphas":
        return True
    ops = loaded.network.source.ops
    last = next((op for op in ops if first in op.outputs), None)
    return last is not None and getattr(last.attrs, "kind", "") != "SIGMOID"


def opacity(values: Array, activation: str | None) -> Array:
    """Return a network's values as opacities from 0 to 1, float32.

    Args:
        values: [rows, columns]; unsigned integers are out of 255.
        activation: one of `ACTIVATIONS`; None for a sigmoid if values are outside 0 to 1.
    """
    if values.dtype.kind == "u":
        return values.astype(np.float32) / 255
    made = values.astype(np.float32)
    low, high = float(made.min()), float(made.max())
    if activation == "sigmoid" or (activation is None and (low < -0.01 or high > 1.01)):
        return np.asarray(sigmoid(made))
    if activation == "minmax" and high > low:
        return (made - low) / (high - low)
    return made.clip(0, 1)
