"""Samplers on latents of constant variance: DDIM, DDPM, PNDM, LCM."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.noise import CLIPPING, Settings, one_of, spaced
from vkmnn.pipelines.diffusion.sampler import Draw, Sampler


class VarianceSampler(Sampler):
    """A sampler on training steps."""

    own: ClassVar[Settings] = {**CLIPPING, "timestep_spacing": "leading", "set_alpha_to_one": True}

    def plan(self) -> None:
        """Space the steps of training."""
        self.timesteps = np.round(spaced(self.settings, self.steps, self.last))

    def alpha(self, step: float) -> float:
        """Return the share of signal variance at a training step; a negative one ends."""
        if step >= 0:
            return float(self.alphas[min(int(step), self.last - 1)])
        return 1.0 if self.settings["set_alpha_to_one"] else float(self.alphas[0])

    def levels(self, index: int) -> tuple[float, float]:
        """Return the factors of image and noise."""
        share = self.alpha(self.timesteps[index])
        return share**0.5, (1 - share) ** 0.5

    def next_step(self, index: int) -> float:
        """Return the training step after a run; -1 after the last."""
        return float(self.timesteps[index + 1]) if index + 1 < len(self.timesteps) else -1.0


class Ddim(VarianceSampler):
    """Denoising diffusion implicit models, without new noise."""

    own: ClassVar[Settings] = {**VarianceSampler.own, "clip_sample": True}

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        del draw
        alpha, sigma = self.levels(index)
        after = self.alpha(self.timesteps[index] - self.last // self.steps)
        image = self.clean(made, x, alpha, sigma)
        if self.settings["prediction_type"] == "epsilon":
            noise = made
        elif self.settings["prediction_type"] == "v_prediction":
            noise = alpha * made + sigma * x
        else:
            noise = (x - alpha * made) / sigma
        return np.asarray(after**0.5 * image + (1 - after) ** 0.5 * noise)


class Ddpm(VarianceSampler):
    """Denoising diffusion probabilistic models: new noise after each step."""

    own: ClassVar[Settings] = {
        **VarianceSampler.own, "clip_sample": True, "variance_type": "fixed_small"
    }  # fmt: skip

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        alpha, sigma = self.levels(index)
        here, after = alpha**2, self.alpha(self.next_step(index))
        ratio = here / after
        image = self.clean(made, x, alpha, sigma)
        mean = (after**0.5 * (1 - ratio) * image + ratio**0.5 * (1 - after) * x) / (1 - here)
        if self.timesteps[index] <= 0:
            return np.asarray(mean)
        large = one_of(self.settings, "variance_type", {
            "fixed_small": False, "fixed_small_log": False, "fixed_large": True,
        })  # fmt: skip
        variance = 1 - ratio if large else (1 - after) / (1 - here) * (1 - ratio)
        return np.asarray(mean + max(variance, 1e-20) ** 0.5 * draw())


_PNDM_ORDER = 4
_ADAMS = {
    1: (1.0,),
    2: (3 / 2, -1 / 2),
    3: (23 / 12, -16 / 12, 5 / 12),
    4: (55 / 24, -59 / 24, 37 / 24, -9 / 24),
}
"""Weights of the last predictions by their number: Adams and Bashforth's."""
_RUNGE = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
"""Weights of the four predictions of a step: Runge and Kutta's."""


class Pndm(VarianceSampler):
    """Pseudo numerical methods: linear multistep, with or without Runge-Kutta steps before."""

    own: ClassVar[Settings] = {
        "timestep_spacing": "leading", "set_alpha_to_one": False, "skip_prk_steps": False
    }  # fmt: skip

    def plan(self) -> None:
        """Space the steps, and repeat those that the first predictions need twice."""
        steps = np.round(spaced(self.settings, self.steps, self.last))
        self._stride = self.last // self.steps
        self._warm = 0
        if not self.settings["skip_prk_steps"]:
            if self.steps < _PNDM_ORDER:
                raise InvalidInputError(
                    f"steps={self.steps} is below 4, the fewest with skip_prk_steps=false"
                )
            first = np.repeat(steps[:_PNDM_ORDER][::-1], 2) + np.tile([0, self._stride // 2], 4)
            halves = np.repeat(first[:-1], 2)[1:-1][::-1]
            self._warm = len(halves)
            steps = np.concatenate([halves, steps[_PNDM_ORDER - 1 :]])
        elif self.steps > 1:
            steps = np.insert(steps, 1, steps[1])
        self.timesteps = steps
        self._made: list[Array] = []
        self._start: Array | None = None
        self._sum: Array | float = 0.0

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        del draw
        if index < self._warm:
            return self._runge(made, index, x)
        step = float(self.timesteps[index])
        after = step - self._stride
        repeats = self._warm == 0 and len(self._made) == 1 and self._start is not None
        if repeats:  # the second prediction improves the first step
            assert self._start is not None
            after, step = step, step + self._stride
            made, x, self._start = (made + self._made[-1]) / 2, self._start, None
            return self._moved(x, step, after, made)
        if self._warm == 0 and not self._made:
            self._start = x
        self._made = [*self._made[-3:], made]
        weights = _ADAMS[len(self._made)]
        mixed = sum(weight * one for weight, one in zip(weights, reversed(self._made), strict=True))
        return self._moved(x, step, after, np.asarray(mixed))

    def _runge(self, made: Array, index: int, x: Array) -> Array:
        part = index % 4
        ahead = 0 if index % 2 else self._stride // 2
        after = float(self.timesteps[index]) - ahead
        step = float(self.timesteps[index // 4 * 4])
        if part == 0:
            self._made.append(made)
            self._start = x
        self._sum = self._sum + _RUNGE[part] * made
        if part == 3:
            made, self._sum = np.asarray(self._sum), 0.0
        assert self._start is not None
        return self._moved(self._start, step, after, made)

    def _moved(self, x: Array, step: float, after: float, made: Array) -> Array:
        """Return latents moved from a training step to another along a prediction."""
        here, there = self.alpha(step), self.alpha(after)
        if self.settings["prediction_type"] == "v_prediction":
            made = here**0.5 * made + (1 - here) ** 0.5 * x
        elif self.settings["prediction_type"] == "sample":
            raise InvalidInputError("PNDMScheduler has no prediction_type 'sample'")
        scale = here * (1 - there) ** 0.5 + (here * (1 - here) * there) ** 0.5
        return np.asarray((there / here) ** 0.5 * x - (there - here) / scale * made)


class Lcm(VarianceSampler):
    """Latent consistency models: each run predicts the image, and new noise is added."""

    own: ClassVar[Settings] = {
        **VarianceSampler.own,
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "original_inference_steps": 50,
        "timestep_scaling": 10.0,
    }
    keeps_steps = True

    def plan(self) -> None:
        """Choose among the steps of the distillation."""
        original = self.settings["original_inference_steps"]
        if not self.steps <= original <= self.last:
            raise InvalidInputError(
                f"steps={self.steps} is more than the {original} steps that the model was "
                "distilled from"
            )
        count = int(original * self.strength)
        if count < self.steps:
            raise InvalidInputError(
                f"strength={self.strength} leaves {count} of the {original} steps of the "
                f"distillation, fewer than steps={self.steps}",
                hint="choose fewer steps, or a larger strength",
            )
        steps = (np.arange(1, count + 1) * (self.last // original) - 1)[::-1]
        chosen = np.linspace(0, count, self.steps, endpoint=False)
        self.timesteps = steps[np.floor(chosen).astype(np.int64)].astype(np.float64)

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        alpha, sigma = self.levels(index)
        scaled = float(self.timesteps[index]) * self.settings["timestep_scaling"]
        skip, out = 0.25 / (scaled**2 + 0.25), scaled / (scaled**2 + 0.25) ** 0.5
        image = out * self.clean(made, x, alpha, sigma) + skip * x
        if index + 1 == len(self.timesteps):
            return np.asarray(image)
        after = self.alpha(self.next_step(index))
        return np.asarray(after**0.5 * image + (1 - after) ** 0.5 * draw())
