"""Mattes of videos, with states from frame to frame: Robust Video Matting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Settings
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Check, Options, real_from
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.maps import Matte
from vkmnn.pipelines.vision.cut_out import CutOut
from vkmnn.pipelines.vision.segment import on_picture

_STATE = re.compile(r"(r\d+)i")
_RATIO = "downsample_ratio"
_STATES = "states"
_COARSE = 512
"""Longest side of images in the coarse pass."""


def states_of(loaded: Loaded) -> dict[str, str]:
    """Return the names of states: of each input, the output with its next value."""
    outputs = {arg.name for arg in loaded.outputs}
    named = [_STATE.fullmatch(arg.name) for arg in loaded.inputs]
    return {one[0]: f"{one[1]}o" for one in named if one is not None and f"{one[1]}o" in outputs}


class RecurrentCutOut(CutOut):
    """Cuts the foreground out of the frames of a video; each call or stream begins anew."""

    sequential = True
    own: ClassVar[tuple[str, ...]] = (*CutOut.own, _RATIO)
    checks: ClassVar[Mapping[str, Check]] = {**CutOut.checks, _RATIO: real_from(0.01, 1)}
    usual = ImageProcessor(Fit("stretch"))

    def __init__(self, loaded: Loaded, options: Options) -> None:
        self._next = states_of(loaded)
        self._args = {arg.name: arg for arg in loaded.inputs}
        super().__init__(_with_own_sizes(loaded, self._next), options)
        ratio = options.take(_RATIO, None)
        if _RATIO in self._args:
            self.settings = {**self.settings, _RATIO: ratio}
        elif ratio is not None:
            raise InvalidInputError(
                f"the network has no input '{_RATIO}'", hint=f"leave out {_RATIO}"
            )

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return the preprocessing: images in their own size, from 0 to 1."""
        del loaded
        return self.usual

    def usual_activation(self, loaded: Loaded) -> str | None:
        """Return None: the network ends in its own."""
        del loaded
        return None

    def _flow(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[Matte]:
        """Run images one after the other; the next one is read while the device works."""
        states: dict[str, Array] = {}
        canvas = None
        source = iter(pictures)
        picture = next(source, None)
        while picture is not None:
            size = self.network.processor.placed(picture).canvas
            if size != canvas:  # states have the size of the images
                states, canvas = {}, size
            group = self._prepared([picture], {**chosen, _STATES: states})
            future = self.network.submit(group.feeds)
            picture = next(source, None)
            found = dict(zip(self.network.outputs, future.result(), strict=True))
            states = {name: found[output] for name, output in self._next.items()}
            yield from self.results(found, group.pictures, group.placed, chosen)[: group.count]

    def more_feeds(self, chosen: Settings, placed: Sequence[Placed]) -> dict[str, Array]:
        """Return the states, zeros before the first image, and the ratio of the coarse pass."""
        states = chosen.get(_STATES) or {name: _zeros(self._args[name]) for name in self._next}
        if _RATIO not in self._args:
            return dict(states)
        arg = self._args[_RATIO]
        ratio = chosen[_RATIO] or min(_COARSE / max(placed[0].canvas), 1.0)
        shape = [1] * len([1] if arg.shape is None else arg.shape)
        return {**states, _RATIO: np.full(shape, ratio, arg.dtype)}

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Matte]:
        """Return the matte of each image, and its colours without the background."""
        maps = {name: one for name, one in outputs.items() if name not in self._next.values()}
        made = super().results(maps, pictures, placed, chosen)
        colours = next((one for one in maps.values() if one.ndim == 4 and one.shape[1] == 3), None)
        if colours is not None:
            for matte, one, where, picture in zip(made, colours, placed, pictures, strict=True):
                values = on_picture(one.astype(np.float32), where, picture).clip(0, 1)
                matte.foreground = np.rint(np.moveaxis(values, 0, 2) * 255).astype(np.uint8)
        return made


def _zeros(arg: NodeArg) -> Array:
    """Return a state before the first image: one value where the shape is open."""
    sides = [side if isinstance(side, int) else 1 for side in arg.shape or (1,) * 4]
    return np.zeros(sides, arg.dtype)


def _with_own_sizes(loaded: Loaded, states: Mapping[str, str]) -> Loaded:
    """Return a network whose states share no named size with the image.

    The authors' export names rows and columns of states as those of the image, and they differ.
    """
    source = loaded.network.source
    inputs = [
        replace(info, shape=tuple(
            side if isinstance(side, int) or not axis else f"{info.name}.{axis}"
            for axis, side in enumerate(info.shape)
        )) if info.name in states and info.shape is not None else info
        for info in source.inputs
    ]  # fmt: skip
    return replace(loaded, network=replace(loaded.network, source=replace(source, inputs=inputs)))
