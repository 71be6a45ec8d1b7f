"""The options of a pipeline, validated once, and its guesses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from vkmnn.base.budget import Budget
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.schedule_config import OnOverflow, PrecisionName, Unsupported

_log = logging.getLogger(__name__)

Check = Callable[[str, Any], Any]
"""Converts the value of an option to its type; raises InvalidInputError."""
PLACES = ("auto", "device", "host")
"""Where images are prepared: "auto" resizes on the host and normalises on the device."""
CHANNELS = ("rgb", "bgr")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a pipeline by name; None defers to the model's files.

    Attributes:
        device: as for `InferenceSession`, like `precision`, `budget`, `unsupported`, `driver`,
            `validation` and `on_overflow`.
        input_shapes: shapes of inputs for which the file states none (TorchScript), or others.
        labels: class names in order, or a file that lists them.
        threshold: the lowest score to report.
        size: height and width of the network's input.
        mean: subtracted from values, by channel; in units of 0 to 1, or of 0 to 255 if any exceeds
            1.
        std: divides the difference, in the same units.
        channels: the channel order that the network expects, "rgb" or "bgr".
        preprocess: "auto", "device" or "host".
        batch: images per run, if the network's batch size is dynamic.
        tell: called with a sentence on each guess; by default it is logged.
        more: options that are specific to a task.
    """

    device: str | int = "auto"
    precision: PrecisionName = "high"
    budget: Budget | None = None
    unsupported: Unsupported = "cpu"
    driver: str | None = None
    validation: bool | None = None
    on_overflow: OnOverflow = "warn"
    input_shapes: Mapping[str, tuple[int | str | None, ...]] | None = None
    labels: Sequence[str] | str | Path | None = None
    threshold: float | None = None
    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channels: str | None = None
    preprocess: str = "auto"
    batch: int = 1
    tell: Callable[[str], object] = _log.warning
    more: Mapping[str, Any] = field(default_factory=dict)

    def take(self, name: str, default: Any) -> Any:
        """Return a task-specific option."""
        found = self.more.get(name)
        return default if found is None else found


_COMMON = frozenset(Options.__dataclass_fields__) - {"more"}


def checked_options(
    given: Mapping[str, Any],
    own: Sequence[str],
    task: str,
    checks: Mapping[str, Check] | None = None,
) -> Options:
    """Return options validated by their names.

    Args:
        given: the options from the caller.
        own: the names of the task's own options.
        task: its name, for messages.
        checks: of the task's own options.

    Raises:
        InvalidInputError: an unknown name or a wrong value.
    """
    known = [*sorted(_COMMON), *own]
    for name in given:
        if name not in known:
            hint = nearest(name, known, "options")
            raise InvalidInputError(f"'{task}' has no option '{name}'", hint=hint)
    common = {name: value for name, value in given.items() if name in _COMMON and value is not None}
    for name, check in _CHECKS.items():
        if name in common:
            common[name] = check(name, common[name])
    more = {name: given[name] for name in own if name in given}
    return Options(**common, more=checked_settings(more, checks or {}))


def common_options(given: Mapping[str, Any]) -> Options:
    """Return the options that all tasks have, before the task is known.

    Raises:
        InvalidInputError: a wrong value.
    """
    common = {name: value for name, value in given.items() if name in _COMMON}
    return checked_options(common, (), "auto")


def checked_settings(given: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return options or settings of a task, validated by their names.

    Raises:
        InvalidInputError: a value is not valid.
    """
    known = {**_CHECKS, **SETTINGS, **checks}
    return {
        name: known[name](name, value) if name in known and value is not None else value
        for name, value in given.items()
    }


def _size(name: str, value: Any) -> tuple[int, int]:
    sides = (value, value) if isinstance(value, int) else value
    try:
        height, width = (int(side) for side in sides)
    except (TypeError, ValueError):
        height = width = 0
    if isinstance(value, bool) or not (0 < height <= 1 << 15 and 0 < width <= 1 << 15):
        raise InvalidInputError(
            f"{name}={value!r} is not a size", hint="for example size=640 or size=(480, 640)"
        )
    return height, width


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    try:
        found = (float(value),) if isinstance(value, int | float) else tuple(map(float, value))
    except (TypeError, ValueError):
        found = ()
    if not found or (name == "std" and not all(found)):
        raise InvalidInputError(
            f"{name}={value!r} is not a list of numbers, one per channel",
            hint="for example mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)",
        )
    return found


def _fraction(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidInputError(f"{name}={value!r} is not a number from 0 to 1")
    return float(value)


def one_of(*words: str) -> Callable[[str, Any], str]:
    """Return a check for words of a list."""

    def check(name: str, value: Any) -> str:
        if value not in words:
            raise InvalidInputError(
                f"{name}={value!r} is not known", hint=nearest(str(value), words, "values")
            )
        return str(value)

    return check


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 4096:
        raise InvalidInputError(f"{name}={value!r} is not an integer from 1 to 4096")
    return value


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 100:
        raise InvalidInputError(f"{name}={value!r} is not a positive number")
    return float(value)


def number_of_pixels(name: str, value: Any) -> int:
    """Return a whole number of pixels, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 15:
        raise InvalidInputError(f"{name}={value!r} is not a non-negative integer number of pixels")
    return value


def is_flag(name: str, value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name}={value!r} is neither true nor false")
    return value


def whole_from(least: int, most: int) -> Check:
    """Return a check for integers in a range."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInputError(f"{name}={value!r} is not an integer from {least} to {most}")
        return value

    return check


def real_from(least: float, most: float) -> Check:
    """Return a check for numbers in a range."""

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


def _labels(name: str, value: Any) -> Any:
    if isinstance(value, str | Path):
        return value
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise InvalidInputError(
            f"{name}={value!r} is neither a list of names nor a file",
            hint="a text file with one label per line, or labels=['cat', 'dog']",
        )
    return value


ACTIVATIONS = ("softmax", "sigmoid", "none")
SETTINGS: Mapping[str, Check] = {
    "top": _count,
    "most": _count,
    "tile": _count,
    "overlap": _fraction,
    "least": _fraction,
    "growth": _positive,
    "activation": one_of(*ACTIVATIONS),
}
"""Checks of settings with the same meaning in all tasks."""

_CHECKS: Mapping[str, Check] = {
    "labels": _labels,
    "size": _size,
    "mean": _numbers,
    "std": _numbers,
    "threshold": _fraction,
    "channels": one_of(*CHANNELS),
    "preprocess": one_of(*PLACES),
    "batch": _count,
}
