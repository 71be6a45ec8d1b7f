"""Latents and images: the encoder and the decoder of the autoencoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.config_file import Section, read_config
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.part import Part, needed_part
from vkmnn.pipelines.diffusion.sampler import Draw
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture, pil

_SCALING = 0.18215
_CHANNELS = 4
_LEVELS = 4
_PLACES = ("vae_decoder", "vae_encoder", "vae")


class Autoencoder:
    """The autoencoder of a folder.

    Args:
        folder: the pipeline's folder.
        options: device and settings of the sessions.

    Attributes:
        channels: channels of latents.
        factor: pixels per latent, along each axis.
        says: whether the folder has its config.json.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self._folder, self._options = folder, options
        paths = [folder / place / "config.json" for place in _PLACES]
        path = next((one for one in paths if one.is_file()), None)
        self.says = path is not None
        config: Section = read_config(path or paths[0])
        self.channels = config.number("latent_channels") or _CHANNELS
        levels = len(config.reals("block_out_channels")) or _LEVELS
        self.factor = int(2 ** (levels - 1))
        self._scaling = config.real("scaling_factor", _SCALING)
        if not self._scaling:
            raise config.wrong("scaling_factor", "a number other than 0")
        shift = config.real("shift_factor")
        means, spreads = (config.reals(f"latents_{name}") for name in ("mean", "std"))
        if (len(means) or self.channels) != self.channels or len(means) != len(spreads):
            raise config.wrong("latents_mean", f"a list of {self.channels} numbers")
        self._mean = _column(means or [shift])
        self._spread = _column(spreads or [1.0]) / np.float32(self._scaling)
        self._decoder = needed_part(folder, "vae_decoder", options)
        self._latent = self._decoder.input("latent_sample", "latent", "sample")
        self._decoder.only((self._latent,))
        self._encoder: Part | None = None

    def decoded(self, latents: Array) -> Array:
        """Return images, uint8 [n, height, width, 3], for latents."""
        values = latents * self._spread + self._mean
        made = [
            next(iter(self._decoder.run({self._latent: one}).values()))
            for one in (self._decoder.cast(self._latent, row[None]) for row in values)
        ]
        pixels = np.concatenate(made).astype(np.float32).transpose(0, 2, 3, 1)
        if not np.isfinite(pixels).all():
            raise InvalidInputError(
                "the image has values that are not finite",
                hint="choose precision='high', -p high, or other numbers of steps and guidance",
            )
        return np.asarray(np.rint(np.clip(pixels / 2 + 0.5, 0, 1) * 255), np.uint8)

    def encoded(self, pixels: Array, draw: Draw) -> Array:
        """Return the latents of an image.

        Args:
            pixels: float32 [height, width, 3] from -1 to 1.
            draw: for the noise of the latents.

        Raises:
            ModelFileError: the folder has no encoder.
        """
        if self._encoder is None:
            self._encoder = needed_part(self._folder, "vae_encoder", self._options)
            self._encoder.only((self._encoder.input("sample", "pixel_values"),))
        part = self._encoder
        (name,) = part.inputs
        feeds = {name: part.cast(name, pixels.transpose(2, 0, 1)[None])}
        made = np.asarray(next(iter(part.run(feeds).values())), np.float32)
        if made.shape[1] == 2 * self.channels:  # mean and logarithm of the variance
            mean, spread = np.split(made, 2, 1)
            made = mean + np.exp(0.5 * np.clip(spread, -30, 20)) * draw()
        return np.asarray((made - self._mean) / self._spread)

    def close(self) -> None:
        """Release device memory."""
        self._decoder.close()
        if self._encoder is not None:
            self._encoder.close()


def _column(values: list[float]) -> Array:
    return np.array(values, np.float32).reshape(1, -1, 1, 1)


def prepared(picture: Picture, size: tuple[int, int]) -> Array:
    """Return an image as float32 [height, width, 3] from -1 to 1, resized."""
    image = picture.image()
    if image.size != size[::-1]:
        image = image.resize(size[::-1], pil().Resampling.LANCZOS)
    return np.asarray(image, np.float32) / 127.5 - 1


def prepared_mask(picture: Picture, size: tuple[int, int]) -> Array:
    """Return a mask as float32 [height, width]: 1 where an image is to be painted, else 0."""
    image: Any = picture.image().convert("L")
    if image.size != size[::-1]:
        image = image.resize(size[::-1], pil().Resampling.LANCZOS)
    return (np.asarray(image) >= 128).astype(np.float32)
