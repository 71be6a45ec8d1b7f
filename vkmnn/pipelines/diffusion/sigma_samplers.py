"""Samplers on noise levels: Euler, ancestral Euler, Heun, linear multistep."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.noise import (
    CLIPPING,
    SPACINGS,
    Settings,
    one_of,
    spaced,
    training_step,
)
from vkmnn.pipelines.diffusion.sampler import Draw, Sampler


class SigmaSampler(Sampler):
    """A sampler on latents that are an image plus noise of a level.

    Attributes:
        sigmas: the noise level before each run, and after the last, float64 [runs + 1].
    """

    own: ClassVar[Settings] = {
        "timestep_spacing": "linspace",
        "use_karras_sigmas": False,
        "use_exponential_sigmas": False,
        "use_beta_sigmas": False,
        "final_sigmas_type": "zero",
    }
    divides = True
    sigmas: Array

    def plan(self) -> None:
        """Space the noise levels."""
        self.timesteps = spaced(self.settings, self.steps, self.last)
        self._choose_levels()

    def _choose_levels(self) -> None:
        training = ((1 - self.alphas) / self.alphas) ** 0.5
        sigmas = np.interp(self.timesteps, np.arange(self.last), training)
        how = next((name for name in SPACINGS if self.settings.get(name)), None)
        if how is not None:
            sigmas = SPACINGS[how](*self.ends(sigmas, training), len(sigmas))
            self.timesteps = training_step(sigmas, training)
        last = one_of(self.settings, "final_sigmas_type",
                      {"zero": 0.0, "sigma_min": float(training[0])})  # fmt: skip
        self.sigmas = np.append(sigmas, last)
        most = float(self.sigmas.max())
        evenly = self.settings["timestep_spacing"] != "leading"
        self.initial = most if evenly else (most**2 + 1) ** 0.5

    def ends(self, sigmas: Array, training: Array) -> tuple[float, float]:
        """Return the highest and the lowest level of a spacing."""
        highest, lowest = self.settings.get("sigma_max"), self.settings.get("sigma_min")
        del training
        return float(highest or sigmas[0]), float(lowest or sigmas[-1])

    def levels(self, index: int) -> tuple[float, float]:
        """Return the factors of image and noise."""
        return 1.0, float(self.sigmas[index])

    def scaled(self, x: Array, index: int) -> Array:
        """Return latents of unit variance."""
        return np.asarray(x / (float(self.sigmas[index]) ** 2 + 1) ** 0.5)

    def direction(self, made: Array, index: int, x: Array) -> Array:
        """Return the derivative of the latents by the noise level."""
        sigma = float(self.sigmas[index])
        alpha = 1 / (sigma**2 + 1) ** 0.5
        image = self.clean(made, x * alpha, alpha, sigma * alpha)
        return np.asarray((x - image) / sigma)

    def to_next(self, index: int) -> float:
        """Return the change of the noise level at a run."""
        return float(self.sigmas[index + 1] - self.sigmas[index])


class Euler(SigmaSampler):
    """Euler's method."""

    own: ClassVar[Settings] = {
        **SigmaSampler.own,
        "interpolation_type": "linear",
        "sigma_min": 0.0,
        "sigma_max": 0.0,
    }

    def plan(self) -> None:
        """Space the noise levels; "log_linear" spaces their logarithms from end to end."""
        how = one_of(self.settings, "interpolation_type", ("linear", "log_linear"))
        super().plan()
        if how == "log_linear" and not any(self.settings.get(name) for name in SPACINGS):
            training = ((1 - self.alphas) / self.alphas) ** 0.5
            sigmas = np.exp(np.linspace(np.log(training[-1]), np.log(training[0]), self.steps + 1))
            self.sigmas = np.append(sigmas, self.sigmas[-1])

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        del draw
        return np.asarray(x + self.direction(made, index, x) * self.to_next(index))


class EulerAncestral(SigmaSampler):
    """Euler's method with new noise after each step."""

    own: ClassVar[Settings] = {"timestep_spacing": "linspace", "final_sigmas_type": "zero"}

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        here, there = float(self.sigmas[index]), float(self.sigmas[index + 1])
        fresh = (there**2 * (here**2 - there**2) / here**2) ** 0.5
        down = (there**2 - fresh**2) ** 0.5
        return np.asarray(x + self.direction(made, index, x) * (down - here) + fresh * draw())


class Heun(SigmaSampler):
    """Heun's method: two runs a step, except for the last."""

    own: ClassVar[Settings] = {**SigmaSampler.own, **CLIPPING}
    order = 2

    def plan(self) -> None:
        """Space the noise levels; those between the ends serve two runs."""
        super().plan()
        self.sigmas = np.concatenate([self.sigmas[:1], np.repeat(self.sigmas[1:-1], 2),
                                      self.sigmas[-1:]])  # fmt: skip
        self.timesteps = np.concatenate([self.timesteps[:1], np.repeat(self.timesteps[1:], 2)])
        self._first: tuple[Array, Array] | None = None

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        del draw
        slope = self.direction(made, index, x)
        if self._first is None:
            moved = x + slope * self.to_next(index)
            self._first = (x, slope) if index + 1 < len(self.timesteps) else None
            return np.asarray(moved)
        start, before = self._first
        self._first = None
        return np.asarray(start + (before + slope) / 2 * self.to_next(index - 1))


_LMS_ORDER = 4


class Lms(SigmaSampler):
    """A linear multistep method on up to four derivatives."""

    own: ClassVar[Settings] = {**SigmaSampler.own}

    def plan(self) -> None:
        """Space the noise levels."""
        super().plan()
        self._slopes: list[Array] = []

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        del draw
        self._slopes = [self.direction(made, index, x), *self._slopes[: _LMS_ORDER - 1]]
        at = [float(self.sigmas[index - back]) for back in range(len(self._slopes))]
        ends = float(self.sigmas[index]), float(self.sigmas[index + 1])
        weights = [_integral(at, one, *ends) for one in range(len(at))]
        moved = sum(weight * slope for weight, slope in zip(weights, self._slopes, strict=True))
        return np.asarray(x + moved)


def _integral(at: list[float], one: int, start: float, end: float) -> float:
    """Return the integral of the polynomial that is 1 at a place and 0 at the others."""
    others = [place for number, place in enumerate(at) if number != one]
    scale = float(np.prod([at[one] - place for place in others]))
    whole = np.polynomial.Polynomial.fromroots(others).integ() if others else None
    area = end - start if whole is None else float(whole(end) - whole(start))
    return area / scale
