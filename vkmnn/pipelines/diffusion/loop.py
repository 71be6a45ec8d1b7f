"""The loop of a generation: from noise, or an image with noise, to latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.sampler import Draw, Sampler


@dataclass(frozen=True, slots=True)
class Source:
    """The image that a generation changes.

    Attributes:
        latents: of the image; None without one.
        mask: 1 where it is to be painted, [1, 1, rows, columns]; None for the whole image.
        hints: mask, and latents of the rest of the image, for inpainting networks.
    """

    latents: Array | None = None
    mask: Array | None = None
    hints: Array | None = None


def denoising(
    sampler: Sampler,
    noise: Array,
    source: Source,
    predict: Callable[[Array, float], Array],
    draw: Draw,
) -> Iterator[Array]:
    """Yield the latents after each run of the network.

    Args:
        sampler: the scheduler.
        noise: unit noise of the latents' shape.
        source: the image to change.
        predict: returns the network's prediction for latents at a step of training.
        draw: for new noise.
    """
    x = _start(sampler, noise, source)
    last = len(sampler.timesteps) - 1
    for index in range(sampler.first, last + 1):
        with np.errstate(all="ignore"):  # levels of 0 and infinite ratios cancel out
            taken = sampler.scaled(x, index)
            if source.hints is not None:
                taken = np.concatenate([taken, source.hints], 1)
            made = predict(taken, float(sampler.timesteps[index]))
            x = sampler.step(made, index, x, draw).astype(np.float32)
            if source.mask is not None and source.hints is None and source.latents is not None:
                kept = source.latents
                if index < last:
                    kept = sampler.noised(kept, noise, index + 1)
                x = (1 - source.mask) * kept + source.mask * x
        yield x


def _start(sampler: Sampler, noise: Array, source: Source) -> Array:
    """Return the latents before the first run."""
    if source.latents is None or (source.mask is not None and sampler.strength == 1):
        return np.asarray(noise * np.float32(sampler.initial))
    return sampler.noised(source.latents, noise, sampler.first)
