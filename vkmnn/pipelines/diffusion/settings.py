"""Checks of the settings of text-to-image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.diffusion.schedulers import scheduler_name
from vkmnn.pipelines.options import Check, check_seed, is_flag, real_from, whole_from

_MOST_STEPS = 1000
_MOST_IMAGES = 64


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
    "steps": whole_from(1, _MOST_STEPS),
    "guidance": real_from(0, 1000),
    "negative": _text,
    "seed": check_seed,
    "count": whole_from(1, _MOST_IMAGES),
    "image": _anything,
    "mask": _anything,
    "strength": real_from(0, 1),
    "rescale": real_from(0, 1),
    "latents": _anything,
    "progress": _call,
    "truncate": is_flag,
}
"""Checks by setting."""
