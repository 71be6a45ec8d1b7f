"""Noise schedules of diffusion models: noise levels of training, and the steps of a generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vkmnn.base.config_file import Section
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.pipelines.arrays import Array

Settings = Mapping[str, Any]

TRAINING: Settings = {
    "num_train_timesteps": 1000,
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "trained_betas": [],
    "prediction_type": "epsilon",
    "steps_offset": 0,
    "rescale_betas_zero_snr": False,
}
"""Options of all schedulers and their defaults."""
CLIPPING: Settings = {
    "clip_sample": False,
    "clip_sample_range": 1.0,
    "thresholding": False,
    "dynamic_thresholding_ratio": 0.995,
    "sample_max_value": 1.0,
}
"""Options that limit the predicted image."""
UNSUPPORTED: Settings = {
    "use_flow_sigmas": False,
    "use_dynamic_shifting": False,
    "timestep_type": "discrete",
    "solver_p": None,
    "shift_terminal": None,
}
"""Options of which only the default is supported."""

_SMALLEST = 2.0**-24
"""The last cumulative alpha of a schedule without signal, where a division by it follows."""
_MOST_STEPS = 100_000


def read_settings(section: Section, defaults: Settings) -> dict[str, Any]:
    """Return the options of a scheduler.

    Args:
        section: scheduler_config.json.
        defaults: the known options; the default determines the type.

    Raises:
        ModelFileError: a value has the wrong type.
        InvalidInputError: an option has a value that is not supported.
    """
    for key, only in UNSUPPORTED.items():
        if key in section and not _is(section, key, only):
            raise InvalidInputError(
                f"'{section.path}': the scheduler's option {key} is not supported",
                hint="choose another scheduler: scheduler='euler', --set scheduler=euler",
            )
    return {key: _read(section, key, value) for key, value in defaults.items()}


def _is(section: Section, key: str, only: Any) -> bool:
    if only is None or section.is_list(key) or section.is_object(key):
        return False
    return bool(_read(section, key, only) == only)


def _read(section: Section, key: str, default: Any) -> Any:
    if key not in section:
        return default
    if isinstance(default, bool):
        return section.flag(key)
    if isinstance(default, int):
        return section.number(key)
    if isinstance(default, float):
        infinite = abs(default) == float("inf")
        return section.limit(key, default) if infinite else section.real(key)
    return section.text(key) if isinstance(default, str) else section.reals(key)


def one_of(settings: Settings, key: str, known: Mapping[str, Any] | tuple[str, ...]) -> Any:
    """Return the value of an option that names one of several things.

    Raises:
        InvalidInputError: it is none of them.
    """
    value = settings[key]
    if value not in known:
        raise InvalidInputError(
            f"the scheduler's option {key}='{value}' is not known",
            hint=nearest(str(value), known, "values"),
        )
    return known[value] if isinstance(known, Mapping) else value


# --- training -------------------------------------------------------------------------------------


def _cosine(settings: Settings) -> Array:
    """Return betas for a signal that decreases as a squared cosine."""
    at = np.arange(settings["num_train_timesteps"] + 1) / settings["num_train_timesteps"]
    signal = np.cos((at + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.asarray(np.minimum(1 - signal[1:] / signal[:-1], 0.999))


def _between(settings: Settings, power: float) -> Array:
    first, last = settings["beta_start"] ** power, settings["beta_end"] ** power
    return np.linspace(first, last, settings["num_train_timesteps"]) ** (1 / power)


def _sigmoid(settings: Settings) -> Array:
    rising = 1 / (1 + np.exp(-np.linspace(-6, 6, settings["num_train_timesteps"])))
    return np.asarray(
        settings["beta_start"] + rising * (settings["beta_end"] - settings["beta_start"])
    )


_BETAS = {
    "linear": lambda settings: _between(settings, 1.0),
    "scaled_linear": lambda settings: _between(settings, 0.5),
    "squaredcos_cap_v2": _cosine,
    "sigmoid": _sigmoid,
}
"""Noise variances of training by `beta_schedule`."""


def cumulative_alphas(settings: Settings, divides: bool) -> Array:
    """Return the share of signal variance at each step of training, decreasing, float64.

    Args:
        settings: the options of `TRAINING`.
        divides: keep the last one above 0, which a schedule with zero terminal SNR ends in.
    """
    given = settings["trained_betas"]
    if not 1 < (len(given) or settings["num_train_timesteps"]) <= _MOST_STEPS:
        raise InvalidInputError("the scheduler's option num_train_timesteps is out of range")
    betas = np.array(given) if given else one_of(settings, "beta_schedule", _BETAS)(settings)
    alphas = np.cumprod(1 - betas)
    if not (np.isfinite(alphas).all() and (alphas > 0).all() and (alphas < 1).all()):
        raise InvalidInputError("the scheduler's betas are not between 0 and 1")
    if settings["rescale_betas_zero_snr"]:
        roots = np.sqrt(alphas)
        alphas = ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2
        if divides:
            alphas[-1] = _SMALLEST
    return alphas


# --- generation -----------------------------------------------------------------------------------


def spaced(settings: Settings, steps: int, last: int, beyond: int = 0) -> Array:
    """Return the training steps of a generation, decreasing, float64.

    Args:
        settings: `timestep_spacing` and `steps_offset`.
        steps: their number.
        last: the number of training steps.
        beyond: 1 for schedulers that space one more step, after the last.
    """
    how = one_of(settings, "timestep_spacing", ("linspace", "leading", "trailing"))
    if how == "linspace":
        return np.linspace(0, last - 1, steps + beyond)[::-1][:steps]
    if how == "leading":
        ratio = last // (steps + beyond)
        return (np.arange(steps + beyond) * ratio)[::-1][:steps] + float(settings["steps_offset"])
    return np.round(np.arange(last, 0, -settings["num_train_timesteps"] / steps)) - 1


def karras(highest: float, lowest: float, steps: int) -> Array:
    """Return noise levels whose seventh roots are evenly spaced."""
    ramp = np.linspace(highest ** (1 / 7), lowest ** (1 / 7), steps)
    return np.asarray(ramp**7)


def exponential(highest: float, lowest: float, steps: int) -> Array:
    """Return noise levels whose logarithms are evenly spaced."""
    return np.exp(np.linspace(np.log(highest), np.log(lowest), steps))


def lu(highest: float, lowest: float, steps: int) -> Array:
    """Return noise levels with even steps of the signal-to-noise ratio's logarithm."""
    return exponential(highest, lowest, steps)


_SHAPE = 0.6
"""Both parameters of the beta distribution whose quantiles space noise levels."""
_HALVINGS = 50


def beta(highest: float, lowest: float, steps: int) -> Array:
    """Return noise levels at quantiles of a beta distribution: dense at both ends."""
    at = 1 - np.linspace(0, 1, steps)
    below = _beta_quantiles(np.minimum(at, 1 - at))
    return np.asarray(lowest + np.where(at <= 0.5, below, 1 - below) * (highest - lowest))


def _beta_quantiles(shares: Array) -> Array:
    """Return the quantiles for shares of 1/2 at most of a symmetric beta distribution.

    With x = t^(1/a), the integral of (x (1 - x))^(a - 1) has a smooth integrand.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)

    def integral(end: Array) -> Array:
        inner = (end[:, None] * (nodes + 1) / 2) ** (1 / _SHAPE)
        return np.asarray(((1 - inner) ** (_SHAPE - 1)) @ weights * end / 2)

    half = np.array([0.5**_SHAPE])
    wanted = shares * 2 * integral(half)
    low, high = np.zeros_like(shares), np.broadcast_to(half, shares.shape).copy()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_below = integral(middle) < wanted
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return np.asarray(((low + high) / 2) ** (1 / _SHAPE))


SPACINGS = {
    "use_karras_sigmas": karras,
    "use_exponential_sigmas": exponential,
    "use_beta_sigmas": beta,
    "use_lu_lambdas": lu,
}
"""Spacings of noise levels by the option that asks for them."""


def training_step(levels: Array, training: Array) -> Array:
    """Return the fractional training steps of noise levels, by the logarithm.

    Args:
        levels: noise levels [n].
        training: those of all training steps, increasing.
    """
    at = np.arange(len(training), dtype=np.float64)
    return np.interp(np.log(np.maximum(levels, 1e-10)), np.log(training), at)
