"""The network that predicts noise, with guidance by a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.part import needed_part
from vkmnn.pipelines.diffusion.prompts import Embedded
from vkmnn.pipelines.options import Options

_SAMPLE, _TIME, _TOKENS = "sample", "timestep", "encoder_hidden_states"
_POOLED, _SIZES, _GUIDANCE = "text_embeds", "time_ids", "timestep_cond"


class Denoiser:
    """The network `unet`.

    Args:
        folder: the pipeline's folder.
        options: device and settings of the session.

    Attributes:
        channels: channels of its input; 9 for inpainting networks.
        is_distilled: whether it takes the strength of guidance as an input, as LCM does.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self.part = needed_part(folder, "unet", options)
        self.part.only((_SAMPLE, _TIME, _TOKENS, _POOLED, _SIZES, _GUIDANCE))
        for name in (_SAMPLE, _TIME, _TOKENS):
            self.part.input(name)
        config = self.part.config
        self.channels = self.part.side(_SAMPLE, 1) or config.number("in_channels") or 4
        self.is_distilled = _GUIDANCE in self.part.inputs
        static = self.part.side(_GUIDANCE, 1) if self.is_distilled else None
        self._width = static or config.number("time_cond_proj_dim") or 256
        self.takes_sizes = _SIZES in self.part.inputs

    def size(self, factor: int) -> tuple[int, int] | None:
        """Return the usual size of images: static, or from config.json; None if neither says."""
        static = self.part.side(_SAMPLE, 2), self.part.side(_SAMPLE, 3)
        config = self.part.config
        said = config.reals("sample_size") if config.is_list("sample_size") else None
        side = config.number("sample_size") if said is None else 0
        height, width = (int(one) for one in said or (side, side))
        height, width = static[0] or height, static[1] or width
        return (height * factor, width * factor) if height and width else None

    def check_size(self, size: tuple[int, int], factor: int) -> None:
        """Refuse a size of images that the network does not take.

        Raises:
            InvalidInputError: it takes only another size.
        """
        for side, axis in zip(size, (2, 3), strict=True):
            static = self.part.side(_SAMPLE, axis)
            if static is not None and static * factor != side:
                raise InvalidInputError(
                    f"the network makes only images of {self.size(factor)}, not {size}",
                    hint="leave out size, or export the network with dynamic sizes",
                )

    def conditions(
        self, embedded: Embedded, sizes: Array | None, guidance: float
    ) -> list[Mapping[str, Any]]:
        """Return the inputs that do not change from step to step, on the device, run by run.

        Args:
            embedded: the prompts: the negative one and the other, or only that one.
            sizes: float32 [prompts, n]: sizes of the image, for Stable Diffusion XL.
            guidance: the strength of guidance, for distilled networks.
        """
        count = len(embedded.tokens)
        values: dict[str, Array] = {_TOKENS: embedded.tokens}
        if _POOLED in self.part.inputs:
            if embedded.pooled is None:
                raise InvalidInputError("the folder has no second text encoder: text_encoder_2")
            values[_POOLED] = embedded.pooled
        if self.takes_sizes:
            assert sizes is not None
            values[_SIZES] = sizes
        if self.is_distilled:
            values[_GUIDANCE] = np.repeat(_waves(guidance - 1, self._width)[None], count, 0)
        static = self.part.side(_SAMPLE, 0)
        if static is None or static == count:
            groups = [slice(0, count)]
        elif static == 1:
            groups = [slice(number, number + 1) for number in range(count)]
        elif count == 1:  # a network with room for both halves
            values = {name: np.repeat(one, static, 0) for name, one in values.items()}
            groups = [slice(0, static)]
        else:
            raise InvalidInputError(f"the network runs {static} latents at a time, not {count}")
        return [
            {name: self.part.upload(name, one[group]) for name, one in values.items()}
            for group in groups
        ]

    def predicted(self, x: Array, step: float, conditions: list[Mapping[str, Any]]) -> Array:
        """Return the predictions for each prompt, float32 [prompts, channels, rows, columns].

        Args:
            x: latents as the network takes them, [1, channels, rows, columns].
            step: the step of training.
            conditions: from `conditions`.
        """
        made = []
        for feeds in conditions:
            count = int(feeds[_TOKENS].shape[0])
            latents = np.repeat(x, count, 0) if count > 1 else x
            run = {**feeds, _SAMPLE: self.part.cast(_SAMPLE, latents), _TIME: self._time(step)}
            made.append(next(iter(self.part.run(run).values())).astype(np.float32))
        return made[0] if len(made) == 1 else np.concatenate(made)

    def _time(self, step: float) -> Array:
        """Return a step in the shape that the network takes: a number, or one per latent."""
        shape = self.part.inputs[_TIME].shape
        sides = [one if isinstance(one, int) else 1 for one in shape or ()]
        return self.part.cast(_TIME, np.full(sides, step))

    def close(self) -> None:
        """Release device memory."""
        self.part.close()


def _waves(guidance: float, width: int) -> Array:
    """Return the strength of guidance as sines and cosines of many frequencies, float32 [width]."""
    half = width // 2
    angles = guidance * 1000.0 * np.exp(-np.log(10000.0) * np.arange(half) / max(half - 1, 1))
    made = np.concatenate([np.sin(angles), np.cos(angles), np.zeros(width % 2)])
    return made.astype(np.float32)


def guided(made: Array, guidance: float, rescale: float) -> Array:
    """Return one prediction from those for the negative prompt and the other.

    Args:
        made: predictions, [2, channels, rows, columns].
        guidance: factor of their difference.
        rescale: from 0 to 1: how far the result gets the deviation of the second prediction.
    """
    without, text = made[:1], made[1:2]
    mixed = without + np.float32(guidance) * (text - without)
    if rescale:
        matched = mixed * (text.std() / max(float(mixed.std()), 1e-12))
        mixed = np.float32(rescale) * matched + np.float32(1 - rescale) * mixed
    return np.asarray(mixed, np.float32)
