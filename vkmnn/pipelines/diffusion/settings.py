"""Checks of the settings of text-to-image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.diffusion.schedulers import scheduler_name
from vkmnn.pipelines.options import Check, is_flag

_MOST_STEPS = 1000
_MOST_IMAGES = 64


def _whole(most: int) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidInputError(f"{name}={value!r} is not an integer from 1 to {most}")
        return value

    return check


def _real(least: float, most: float) -> Check:
    def check(name: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most:
            raise InvalidInputError(f"{name}={value!r} is not a number from {least:g} to {most:g}")
        return float(value)

    return check


def check_seed(name: str, value: Any) -> int:
    """Return the seed of a random number generator, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise InvalidInputError(f"{name}={value!r} is not a non-negative integer")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{name}={value!r} is not a text")
    return value


def _call(name: str, value: Any) -> Any:
    if not callable(value):
        raise InvalidInputError(
            f"{name}={value!r} cannot be called", hint="a function of (done, total)"
        )
    return value


def _anything(name: str, value: Any) -> Any:
    del name
    return value


CHECKS: Mapping[str, Check] = {
    "scheduler": lambda name, value: scheduler_name(_text(name, value)),
    "steps": _whole(_MOST_STEPS),
    "guidance": _real(0, 1000),
    "negative": _text,
    "seed": check_seed,
    "count": _whole(_MOST_IMAGES),
    "image": _anything,
    "mask": _anything,
    "strength": _real(0, 1),
    "rescale": _real(0, 1),
    "latents": _anything,
    "progress": _call,
    "truncate": is_flag,
}
"""Checks by setting."""
