"""Multistep samplers in the logarithm of the signal-to-noise ratio: DPM-Solver, UniPC."""

from __future__ import annotations

from math import exp, expm1, log
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.noise import CLIPPING, SPACINGS, Settings, one_of, spaced
from vkmnn.pipelines.diffusion.sampler import Draw
from vkmnn.pipelines.diffusion.sigma_samplers import SigmaSampler


class MultistepSampler(SigmaSampler):
    """A sampler on latents of unit variance that uses several predictions.

    Attributes:
        made: the last predictions, newest first.
    """

    own: ClassVar[Settings] = {
        **SigmaSampler.own,
        **{key: value for key, value in CLIPPING.items() if "clip" not in key},
        "solver_order": 2,
        "lower_order_final": True,
    }

    def plan(self) -> None:
        """Space the noise levels."""
        if not 1 <= self.settings["solver_order"] <= 3:
            raise InvalidInputError("the scheduler's option solver_order is not 1, 2 or 3")
        self.timesteps = np.round(spaced(self.settings, self.steps, self._last(), beyond=1))
        plain = self.settings["timestep_spacing"] == "trailing"
        self.steps = len(self.timesteps) if plain else self.steps
        self._choose_levels()
        if self.rounds:
            self.timesteps = np.round(self.timesteps)
        self.timesteps = np.trunc(self.timesteps)
        self.initial = 1.0
        self.made: list[Array] = []

    rounds: bool = True
    """Whether the training steps of spaced noise levels are rounded, not cut off."""

    def _cuts_off(self) -> bool:
        return any(self.settings[f"use_{one}_sigmas"] for one in ("exponential", "beta"))

    def _last(self) -> int:
        return self.last

    def ends(self, sigmas: Array, training: Array) -> tuple[float, float]:
        """Return the highest and the lowest level of a spacing: those of training."""
        del sigmas
        return float(training[-1]), float(training[0])

    def scaled(self, x: Array, index: int) -> Array:
        """Return the latents, whose variance is 1."""
        del index
        return x

    def levels(self, index: int) -> tuple[float, float]:
        """Return the factors of image and noise."""
        sigma = float(self.sigmas[index])
        alpha = 1 / (sigma**2 + 1) ** 0.5
        return alpha, sigma * alpha

    def ratio(self, index: int) -> float:
        """Return the logarithm of the ratio of image and noise."""
        sigma = float(self.sigmas[index])
        return -log(sigma) if sigma else float("inf")

    def predicted(self, made: Array, index: int, x: Array, image: bool) -> Array:
        """Return the predicted image, or the predicted noise."""
        alpha, sigma = self.levels(index)
        clean = self.clean(made, x, alpha, sigma)
        return clean if image else np.asarray((x - alpha * clean) / sigma)

    def keep(self, predicted: Array) -> None:
        """Keep a prediction for the next steps."""
        self.made = [predicted, *self.made[: self.settings["solver_order"] - 1]]


_ALGORITHMS = {
    "dpmsolver++": (True, False),
    "dpmsolver": (False, False),
    "sde-dpmsolver++": (True, True),
    "sde-dpmsolver": (False, True),
    "deis": (True, False),
}
"""Whether an algorithm predicts images (or noise), and whether it adds noise."""
_FEW = 15
"""Fewer steps than these end with lower orders."""


class DpmSolver(MultistepSampler):
    """DPM-Solver and DPM-Solver++, also as stochastic equations."""

    own: ClassVar[Settings] = {
        **MultistepSampler.own,
        "algorithm_type": "dpmsolver++",
        "solver_type": "midpoint",
        "euler_at_final": False,
        "use_lu_lambdas": False,
        "lambda_min_clipped": float("-inf"),
        "variance_type": "",
    }

    def plan(self) -> None:
        """Space the noise levels."""
        self._image, self._adds = one_of(self.settings, "algorithm_type", _ALGORITHMS)
        kinds = {"midpoint": False, "heun": True, "logrho": False, "bh1": False, "bh2": False}
        self._heun = one_of(self.settings, "solver_type", kinds)
        cosine = self.settings["beta_schedule"] == "squaredcos_cap_v2"
        self.rounds = not cosine and not self._cuts_off()
        if self._adds and self.settings["solver_order"] == 3:
            raise InvalidInputError(
                f"{self.settings['algorithm_type']} has no solver_order=3",
                hint="choose 2, or dpmsolver++",
            )
        if not self._image and self.settings["final_sigmas_type"] == "zero":
            raise InvalidInputError(
                f"{self.settings['algorithm_type']} needs final_sigmas_type='sigma_min'"
            )
        super().plan()

    def _last(self) -> int:
        """Return the number of training steps whose ratio is not below the limit."""
        ratios = -0.5 * np.log((1 - self.alphas) / self.alphas)
        return self.last - int(np.searchsorted(ratios[::-1], self.settings["lambda_min_clipped"]))

    def _order(self, index: int) -> int:
        """Return the number of predictions that a step uses."""
        left, few = len(self.timesteps) - index, len(self.timesteps) < _FEW
        eases = self.settings["lower_order_final"] and few
        zero = self.settings["final_sigmas_type"] == "zero"
        most = self.settings["solver_order"]
        if left == 1 and (eases or zero or self.settings["euler_at_final"]):
            most = 1
        elif left == 2 and eases:
            most = min(most, 2)
        return min(int(most), len(self.made))

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        if self.settings["variance_type"] in ("learned", "learned_range"):
            made = made[:, : x.shape[1]]
        self.keep(self.predicted(made, index, x, self._image))
        order = self._order(index)
        alpha, sigma = self.levels(index)
        alpha_to, sigma_to = self.levels(index + 1)
        length = self.ratio(index + 1) - self.ratio(index)
        if self._image:
            reach, weight, keeps = -length, alpha_to, sigma_to / sigma
        else:
            reach, weight, keeps = length, sigma_to, alpha_to / alpha
        if self._adds and self._image:
            reach, keeps = 2 * reach, keeps * exp(-length)
        elif self._adds:
            weight *= 2
        first, second, third = _integrals(reach)
        if order == 2 and not self._heun:
            second = first / 2
        terms = self._differences(index, order, length)
        moved = keeps * x
        for factor, term in zip((first, second, third), terms, strict=False):
            moved = moved - weight * factor * term
        if not self._adds:
            return np.asarray(moved)
        fresh = -expm1(-2 * length) if self._image else expm1(2 * length)
        return np.asarray(moved + sigma_to * fresh**0.5 * draw())

    def _differences(self, index: int, order: int, length: float) -> list[Array]:
        """Return the newest prediction and its divided differences by the step's length."""
        if order == 1:
            return self.made[:1]
        at = [self.ratio(index - back) for back in range(order)]
        one = (self.made[0] - self.made[1]) * (length / (at[0] - at[1]))
        if order == 2:
            return [self.made[0], one]
        two = (self.made[1] - self.made[2]) * (length / (at[1] - at[2]))
        near, far = (at[0] - at[1]) / length, (at[1] - at[2]) / length
        bend = (one - two) / (near + far)
        return [self.made[0], one + near * bend, bend]


def _integrals(reach: float) -> tuple[float, float, float]:
    """Return the integrals of an exponential times 1, a line and a parabola."""
    first = expm1(reach)
    if reach == float("-inf"):
        return first, 0.0, 0.0
    return first, first / reach - 1, (first - reach) / reach**2 - 0.5


class UniPc(MultistepSampler):
    """UniPC: a predictor, and a corrector that uses the next run's prediction."""

    own: ClassVar[Settings] = {
        **MultistepSampler.own,
        "predict_x0": True,
        "solver_type": "bh2",
        "disable_corrector": [],
        "sigma_min": 0.0,
        "sigma_max": 0.0,
    }

    def plan(self) -> None:
        """Space the noise levels."""
        kinds = {"bh1": True, "bh2": False, "midpoint": False, "heun": False, "logrho": False}
        self._linear = one_of(self.settings, "solver_type", kinds)
        self.rounds = not self._cuts_off()
        if not self.settings["predict_x0"] and self.settings["final_sigmas_type"] == "zero":
            raise InvalidInputError("predict_x0=false needs final_sigmas_type='sigma_min'")
        super().plan()
        if any(self.settings.get(name) for name in SPACINGS) and (
            self.settings["final_sigmas_type"] == "sigma_min"
        ):
            self.sigmas[-1] = self.sigmas[-2]
        self._order = 0
        self._before: Array | None = None

    def ends(self, sigmas: Array, training: Array) -> tuple[float, float]:
        """Return the highest and the lowest level of a spacing."""
        highest, lowest = super().ends(sigmas, training)
        return self.settings["sigma_max"] or highest, self.settings["sigma_min"] or lowest

    def step(self, made: Array, index: int, x: Array, draw: Draw) -> Array:
        """Return the latents after a run."""
        del draw
        new = self.predicted(made, index, x, self.settings["predict_x0"])
        if self._before is not None and index - 1 not in self.settings["disable_corrector"]:
            x = self._moved(self._before, index - 1, self._order, new)
        self.keep(new)
        most = self.settings["solver_order"]
        if self.settings["lower_order_final"]:
            most = min(most, len(self.timesteps) - index)
        self._order, self._before = min(most, len(self.made)), x
        return self._moved(x, index, self._order, None)

    def _moved(self, x: Array, index: int, order: int, new: Array | None) -> Array:
        """Return latents moved over a step; with the prediction at its end, corrected."""
        alpha, sigma = self.levels(index)
        alpha_to, sigma_to = self.levels(index + 1)
        here = self.ratio(index)
        length = self.ratio(index + 1) - here
        image = self.settings["predict_x0"]
        keeps, weight = (sigma_to / sigma, alpha_to) if image else (alpha_to / alpha, sigma_to)
        reach = -length if image else length
        base = keeps * x - weight * expm1(reach) * self.made[0]
        places = [(self.ratio(index - back) - here) / length for back in range(1, order)]
        slopes = [
            (one - self.made[0]) / place
            for place, one in zip(places, self.made[1:order], strict=True)
        ]
        if new is not None:
            places.append(1.0)
            slopes.append(new - self.made[0])
        if not slopes:
            return np.asarray(base)
        scale = reach if self._linear else expm1(reach)
        for factor, slope in zip(self._weights(places, reach, scale), slopes, strict=True):
            base = base - weight * scale * factor * slope
        return np.asarray(base)

    def _weights(self, places: list[float], reach: float, scale: float) -> list[float]:
        """Return weights of slopes that integrate polynomials exactly; 1/2 for a single one."""
        if len(places) == 1:
            return [0.5]
        wanted, product, value = [], 1.0, expm1(reach) / reach - 1
        for power in range(1, len(places) + 1):
            wanted.append(value * product / scale)
            product *= power + 1
            value = value / reach - 1 / product
        table = np.vander(places, increasing=True).T
        return [float(one) for one in np.linalg.solve(table, np.array(wanted))]
