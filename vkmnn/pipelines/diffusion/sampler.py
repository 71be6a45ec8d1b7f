"""The base of samplers: from noise to an image in steps, by a network's predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from vkmnn.base.config_file import Section
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.noise import (
    TRAINING,
    Settings,
    cumulative_alphas,
    one_of,
    read_settings,
)

Draw = Callable[[], Array]
"""Returns new unit noise of the latents' shape."""


def _clean_by_noise(made: Array, x: Array, alpha: float, sigma: float) -> Array:
    return np.asarray((x - sigma * made) / alpha)


def _clean_by_velocity(made: Array, x: Array, alpha: float, sigma: float) -> Array:
    return np.asarray(alpha * x - sigma * made)


_CLEAN: dict[str, Callable[[Array, Array, float, float], Array]] = {
    "epsilon": _clean_by_noise,
    "v_prediction": _clean_by_velocity,
    "sample": lambda made, x, alpha, sigma: made,
}
"""The image that a network predicts, by `prediction_type`."""


class Sampler(ABC):
    """A scheduler during one generation: it holds the state of its steps.

    Args:
        section: scheduler_config.json.
        steps: the number of steps.
        strength: the part of the steps to run, up to 1: less for an image that is to be changed.

    Attributes:
        first: the first run; those before it are for a strength of 1.
        own: its options besides those of all schedulers, and their defaults.
        divides: whether it divides by the share of signal.
        timesteps: what the network is told at each of its runs, float64 [runs].
        order: runs of the network per step.
        keeps_steps: whether the number of runs does not depend on the strength.
        initial: standard deviation of the latents before the first step.
    """

    own: ClassVar[Settings] = {}
    divides: ClassVar[bool] = False
    order: ClassVar[int] = 1
    keeps_steps: ClassVar[bool] = False
    timesteps: Array
    initial: float = 1.0

    def __init__(self, section: Section, steps: int, strength: float = 1.0) -> None:
        self.settings = read_settings(section, {**TRAINING, **self.own})
        one_of(self.settings, "prediction_type", _CLEAN)
        self.alphas = cumulative_alphas(self.settings, self.divides)
        self.last = len(self.alphas)
        if not 0 < steps <= self.last:
            raise InvalidInputError(
                f"steps={steps} is not between 1 and {self.last}, the steps of training"
            )
        self.steps = steps
        self.strength = strength
        self.plan()
        if self.keeps_steps:
            self.first = 0
        else:
            self.first = (steps - min(int(steps * strength), steps)) * self.order
        if int(steps * strength) < 1 or self.first >= len(self.timesteps):
            raise InvalidInputError(
                f"strength={strength} of {steps} steps is less than one step",
                hint="choose more steps, or a larger strength",
            )

    @abstractmethod
    def plan(self) -> None:
        """Set the steps."""

    def scaled(self, x: Array, index: int) -> Array:
        """Return latents as the network takes them at a run."""
        del index
        return x

    @abstractmethod
    def levels(self, index: int) -> tuple[float, float]:
        """Return the factors of image and noise in the latents before a run."""

    def noised(self, image: Array, noise: Array, index: int) -> Array:
        """Return an image with the noise that latents have before a run."""
        alpha, sigma = self.levels(index)
        return np.asarray(alpha * image + sigma * noise, np.float32)

    @abstractmethod
    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run.

        Args:
            made: the network's prediction, float32.
            index: the run.
            x: the latents before it.
            draw: for new noise.
        """

    def clean(self, made: Array, x: Array, alpha: float, sigma: float) -> Array:
        """Return the predicted image, limited as the options say.

        Args:
            made: the network's prediction.
            x: alpha × image + sigma × noise, of unit variance.
            alpha: factor of the image.
            sigma: factor of the noise.
        """
        image = _CLEAN[self.settings["prediction_type"]](made, x, alpha, sigma)
        if self.settings.get("thresholding"):
            return self._within_quantile(image)
        if self.settings.get("clip_sample"):
            most = self.settings["clip_sample_range"]
            return np.clip(image, -most, most)
        return image

    def _within_quantile(self, image: Array) -> Array:
        """Return an image divided by a quantile of its values, if that exceeds 1."""
        sizes = np.abs(image.reshape(len(image), -1))
        most = np.quantile(sizes, self.settings["dynamic_thresholding_ratio"], axis=1)
        most = np.minimum(np.maximum(most, 1), max(self.settings["sample_max_value"], 1))
        limit = most.astype(np.float32).reshape(-1, *[1] * (image.ndim - 1))
        return np.asarray(np.clip(image, -limit, limit) / limit)
