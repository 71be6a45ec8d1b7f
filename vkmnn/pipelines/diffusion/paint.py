"""Text to image by Stable Diffusion, its XL form, and distilled models."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vkmnn.base.config_file import read_config
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Pipeline, Settings
from vkmnn.pipelines.description import describe
from vkmnn.pipelines.diffusion.autoencoder import Autoencoder, prepared, prepared_mask
from vkmnn.pipelines.diffusion.denoiser import Denoiser, guided
from vkmnn.pipelines.diffusion.loop import Source, denoising
from vkmnn.pipelines.diffusion.prompts import Prompts
from vkmnn.pipelines.diffusion.sampler import Draw
from vkmnn.pipelines.diffusion.schedulers import Scheduler
from vkmnn.pipelines.diffusion.settings import CHECKS
from vkmnn.pipelines.guessing import INDEX, is_painter
from vkmnn.pipelines.options import Check, Options
from vkmnn.pipelines.pictures import Picture, read_picture
from vkmnn.pipelines.results.images import Images

_FAMILIES = re.compile(r"(ORT|Onnx|OV)?(StableDiffusion(XL)?|LatentConsistencyModel)"
                       r"(Img2Img|Inpaint(Legacy)?)?Pipeline(Legacy)?")  # fmt: skip
"""Classes of pipelines with the networks that are run here."""
_USUAL = {"steps": 50, "guidance": 7.5}
_LARGE = {"steps": 50, "guidance": 5.0}
_DISTILLED = {"steps": 4, "guidance": 8.5}
_TURBO = {"steps": 1, "guidance": 0.0}
_STRENGTH = 0.8
_AESTHETIC = (2.5, 6.0)
"""Scores of beauty for the negative prompt and the other, which refiners take."""
_FAST = ("EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler")


class TextToImage(Pipeline):
    """Paints images for prompts.

    Args:
        model: a folder as diffusers and optimum write it.
        options: the options.

    Raises:
        InvalidInputError: the model is no such folder, or of a kind that is not supported.
        ModelError: a network is missing or damaged.
    """

    task = "text-to-image"
    own: ClassVar[tuple[str, ...]] = tuple(CHECKS)
    checks: ClassVar[Mapping[str, Check]] = CHECKS

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(options)
        folder = _folder(model)
        self.about = describe(folder, {}, folder.name)
        index = read_config(folder / INDEX)
        chosen = options.take("scheduler", None)
        self.scheduler = Scheduler(folder / "scheduler", chosen, options.tell)
        self._parts: list[Any] = []
        try:
            self.denoiser = self._opened(Denoiser(folder, options))
            self.prompts = self._opened(Prompts(folder, index, options))
            self.autoencoder = self._opened(Autoencoder(folder, options))
        except BaseException:
            self.close()
            raise
        self._scores = index.flag("requires_aesthetics_score")
        if (folder / "safety_checker").is_dir():
            self._tell("the folder's safety checker is not run")
        if not self.autoencoder.says:
            self._tell("no config.json describes the autoencoder: that of Stable Diffusion 1 is "
                       "assumed")  # fmt: skip
        usual = self._usual(index.text("_name_or_path"))
        self._side = self.denoiser.size(self.autoencoder.factor) or (512, 512)
        if self.denoiser.size(1) is None and not options.size:
            self.guess("no file says the size of images: it is 512×512", "--size")
        self.settings = {
            "steps": options.take("steps", usual["steps"]),
            "guidance": options.take("guidance", usual["guidance"]),
            "size": options.size,
            **{name: options.take(name, value) for name, value in _DEFAULTS.items()},
        }

    def _opened(self, part: Any) -> Any:
        self._parts.append(part)
        return part

    def _tell(self, note: str) -> None:
        self.notes.append(note)
        self.options.tell(note)

    def _usual(self, name: str) -> Mapping[str, Any]:
        """Return default numbers of steps and guidance."""
        if self.denoiser.is_distilled or self.scheduler.name == "LCMScheduler":
            return _DISTILLED if self.denoiser.is_distilled else {**_DISTILLED, "guidance": 1.0}
        spacing = self.scheduler.section.text("timestep_spacing")
        if "turbo" in name or (self.scheduler.name in _FAST and spacing == "trailing"):
            self.guess("the model seems to be distilled (turbo): 1 step without guidance",
                       "--steps and --guidance")  # fmt: skip
            return _TURBO
        return _LARGE if self.prompts.is_large else _USUAL

    @property
    def device(self) -> str:
        """The name of the device."""
        return str(self.denoiser.part.session.device.name)

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return the images for a prompt, or a list of results for a list of prompts.

        Args:
            inputs: a text, or a list of them.
            settings: `steps`; `guidance`, how closely to follow the prompt, without effect up to 1;
                `negative`, a text with what not to paint; `seed`, `count` of images, whose seeds
                follow each other; `size`, (height, width); `image` to change, with `strength` from
                0 to 1; `mask`, an image that is white where to paint; `rescale`, which reduces
                overexposure, from 0 to 1; `latents`, the initial noise; `progress`, called with
                (done, total); `truncate` prompts that are too long.

        Raises:
            InvalidInputError: a prompt is too long, or a setting is not known or does not fit.
        """
        chosen = self.chosen(settings)
        if not isinstance(inputs, list | tuple):
            return self._painted(inputs, chosen)
        return [self._painted(one, chosen) for one in inputs]

    def _painted(self, prompt: Any, chosen: Settings) -> Images:
        if chosen["mask"] is not None and chosen["image"] is None:
            raise InvalidInputError("a mask without an image", hint="pass both: image, mask")
        picture = None if chosen["image"] is None else read_picture(chosen["image"])
        size, factor = self._size(chosen, picture), self.autoencoder.factor
        guidance, count = float(chosen["guidance"]), int(chosen["count"])
        both = guidance > 1 and not self.denoiser.is_distilled
        texts = [chosen["negative"], prompt] if both else [prompt]
        embedded = self.prompts.embedded(texts, chosen["truncate"])
        sizes = self._sizes(size, both) if self.denoiser.takes_sizes else None
        conditions = self.denoiser.conditions(embedded, sizes, guidance)
        shape = (1, self.autoencoder.channels, size[0] // factor, size[1] // factor)
        first = secrets.randbits(31) if chosen["seed"] is None else int(chosen["seed"])
        seeds = [first + number for number in range(count)]

        def predict(x: Array, step: float) -> Array:
            made = self.denoiser.predicted(x, step, conditions)
            return guided(made, guidance, float(chosen["rescale"])) if both else made[:1]

        pixels = []
        for number, seed in enumerate(seeds):
            sampler = self.scheduler.sampler(int(chosen["steps"]), _strength(chosen))
            draw = _drawing(seed, shape)
            noise = draw() if chosen["latents"] is None else _latents(chosen["latents"], shape)
            source = self._source(picture, chosen, size, draw)
            runs = denoising(sampler, noise, source, predict, draw)
            x, left = noise, len(sampler.timesteps) - sampler.first
            for done, latents in enumerate(runs, 1):
                x = latents
                if chosen["progress"] is not None:
                    chosen["progress"](number * left + done, count * left)
            pixels.append(self.autoencoder.decoded(x)[0])
        return Images(pixels, seeds, picture)

    # --- inputs ---------------------------------------------------------------------------------

    def _size(self, chosen: Settings, picture: Picture | None) -> tuple[int, int]:
        """Return the size of the images: the given one, or that of the image to change."""
        factor = self.autoencoder.factor
        size: tuple[int, int] = chosen["size"] or self._side
        if picture is not None and chosen["size"] is None:
            height, width = (max(side // factor, 1) * factor
                             for side in (picture.height, picture.width))  # fmt: skip
            size = height, width
        if size[0] % factor or size[1] % factor:
            down = tuple(max(side // factor, 1) * factor for side in size)
            raise InvalidInputError(
                f"size={size} is not a multiple of {factor}", hint=f"for example size={down}"
            )
        self.denoiser.check_size(size, factor)
        return size

    def chosen(self, given: Settings) -> Settings:
        """Return the settings of one call; None stands for the default."""
        return super().chosen({name: one for name, one in given.items() if one is not None})

    def _sizes(self, size: tuple[int, int], both: bool) -> Array:
        """Return original size, crop and target size of the image, or a score, for each prompt."""
        rows: list[list[float]] = [[*size, 0, 0, *size]] * (2 if both else 1)
        if self._scores:
            rows = [[*size, 0, 0, score] for score in (_AESTHETIC if both else _AESTHETIC[1:])]
        return np.array(rows, np.float32)

    def _source(
        self, picture: Picture | None, chosen: Settings, size: tuple[int, int], draw: Draw
    ) -> Source:
        paints = self.denoiser.channels > self.autoencoder.channels
        if picture is None:
            if paints:
                raise InvalidInputError("the model changes images", hint="pass image and mask")
            return Source()
        pixels = prepared(picture, size)
        latents = self.autoencoder.encoded(pixels, draw)
        if chosen["mask"] is None:
            if paints:
                raise InvalidInputError("the model paints within a mask", hint="pass mask")
            return Source(latents)
        mask = prepared_mask(read_picture(chosen["mask"]), size)
        step = self.autoencoder.factor
        small = mask[None, None, ::step, ::step]
        if not paints:
            return Source(latents, small)
        rest = self.autoencoder.encoded(pixels * (mask < 0.5)[:, :, None], draw)
        return Source(latents, small, np.concatenate([small, rest], 1))

    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""
        for part in self._parts:
            part.close()


_DEFAULTS: Mapping[str, Any] = {
    "negative": None,
    "seed": None,
    "count": 1,
    "image": None,
    "mask": None,
    "strength": None,
    "rescale": 0.0,
    "latents": None,
    "progress": None,
    "truncate": False,
}


def _folder(model: Any) -> Path:
    """Return the folder of a pipeline.

    Raises:
        InvalidInputError: it is none, or of a kind that is not supported.
    """
    if not is_painter(model):
        raise InvalidInputError(
            f"a model of 'text-to-image' is a folder with {INDEX}",
            hint="pass the path of a folder as diffusers and optimum write it",
        )
    folder = Path(model)
    name = read_config(folder / INDEX).text("_class_name")
    if not _FAMILIES.fullmatch(name) or (folder / "transformer").is_dir():
        raise InvalidInputError(
            f"'{folder}' is a {name or 'pipeline without a name'}, which is not supported",
            hint="folders of Stable Diffusion 1, 2 and XL, their turbo forms and LCM are",
        )
    return folder


def _strength(chosen: Settings) -> float:
    """Return the part of the steps to run."""
    usual = 1.0 if chosen["mask"] is not None else _STRENGTH
    given = usual if chosen["strength"] is None else float(chosen["strength"])
    return given if chosen["image"] is not None else 1.0


def _drawing(seed: int, shape: tuple[int, ...]) -> Draw:
    """Return a function that draws unit noise."""
    rng = np.random.default_rng(seed)
    return lambda: np.asarray(rng.standard_normal(shape, np.float32))


def _latents(given: Any, shape: tuple[int, ...]) -> Array:
    latents = np.asarray(given, np.float32)
    if latents.shape != shape or not np.isfinite(latents).all():
        raise InvalidInputError(
            f"latents of shape {list(latents.shape)} do not fit",
            hint=f"the initial noise is {list(shape)}, of finite numbers",
        )
    return latents
