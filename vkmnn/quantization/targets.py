"""Targets of accuracy, such as "top1>=99%", and how far a quantised model is from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, VkmnnError, nearest
from vkmnn.quantization.report import Measured

_FORM = re.compile(r"\s*([a-z0-9_]+)\s*(>=|<=|≥|≤)\s*([-+0-9.e]+)\s*(%?)\s*(dB)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of accuracy.

    Attributes:
        says: its meaning.
        rises: larger values are better.
        share: a fraction, written as a percentage.
        highest: the largest value that a target may have; None without a bound.
    """

    says: str
    rises: bool
    share: bool
    highest: float | None = None


METRICS: Mapping[str, Metric] = {
    "top1": Metric("rows with the same largest value as in the float model", True, True, 1),
    "accuracy": Metric("rows whose largest value is that of their label", True, True, 1),
    "drop": Metric("accuracy that is lost, in points", False, True, 1),
    "cosine": Metric("cosine between the outputs of both models", True, False, 1),
    "psnr": Metric("peak signal-to-noise ratio in dB", True, False),
    "rms": Metric("root mean square of the difference, by that of the output", False, True),
    "largest": Metric("largest absolute difference", False, False),
}
"""Measures by name; of several outputs, the worst one counts."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound of one measure."""

    name: str
    bound: float

    def is_met(self, value: float) -> bool:
        """Return whether a value is within the bound."""
        return value >= self.bound if METRICS[self.name].rises else value <= self.bound

    def __str__(self) -> str:
        """Return the target as it is typed."""
        return f"{self.name}{'>=' if METRICS[self.name].rises else '<='}{self.text(self.bound)}"

    def text(self, value: float) -> str:
        """Return a value of the measure."""
        return f"{100 * value:.4g}%" if METRICS[self.name].share else f"{value:.6g}"


class TargetMissedError(VkmnnError):
    """No quantised model meets a target.

    Attributes:
        best: the best values that were reached, by measure.
    """

    def __init__(self, message: str, best: Mapping[str, float], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.best = dict(best)


def read_targets(texts: str | Sequence[str] | None) -> tuple[Target, ...]:
    """Return targets: `top1>=99%`, several separated by commas or in a list.

    Raises:
        InvalidInputError: no such measure, or a bound that it cannot have.
    """
    lines = [texts] if isinstance(texts, str) else texts or ()
    return tuple(_target(part) for line in lines for part in line.split(","))


def _target(text: str) -> Target:
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidInputError(
            f"'{text}' is no target", hint=f"top1>=99%, cosine>=0.999; measures: {_listed()}"
        )
    name, sign, number, percent, _ = found.groups()
    metric = METRICS.get(name.lower())
    if metric is None:
        raise InvalidInputError(
            f"there is no measure '{name}'", hint=nearest(name, METRICS, "measures")
        )
    if (sign in (">=", "≥")) != metric.rises:
        better = "rises" if metric.rises else "falls"
        raise InvalidInputError(
            f"'{text.strip()}': {name} {better} as the model becomes more accurate",
            hint=f"write {name}{'>=' if metric.rises else '<='}{number}{percent}",
        )
    try:
        bound = float(number) / (100 if percent else 1)
    except ValueError as error:
        raise InvalidInputError(f"'{number}' is no number", hint="top1>=99%") from error
    if metric.highest is not None and not -metric.highest <= bound <= metric.highest:
        raise InvalidInputError(
            f"'{text.strip()}': {name} is at most {metric.highest:g}",
            hint=f"write {number}%" if metric.share and bound <= 100 else "cosine>=0.99",
        )
    return Target(name.lower(), bound)


def _listed() -> str:
    return ", ".join(METRICS)


def value_of(name: str, measured: Measured) -> float:
    """Return the value of a measure.

    Raises:
        InvalidInputError: the outputs or samples do not allow it.
    """
    if name in ("accuracy", "drop"):
        if measured.correct is None or measured.correct_before is None:
            raise InvalidInputError(
                f"the samples have no labels, which the target '{name}' needs",
                hint="a folder with a subfolder of pictures for each class, or an array 'labels' "
                "in the .npz file",
            )
        lost = measured.correct_before - measured.correct
        return measured.correct if name == "accuracy" else lost
    found = [value for one in measured.outputs if (value := getattr(one, name)) is not None]
    if not found:
        raise InvalidInputError(
            f"no output has values that '{name}' compares", hint=f"measures: {_listed()}"
        )
    return float(min(found) if METRICS[name].rises else max(found))


def values_of(targets: Sequence[Target], measured: Measured) -> dict[str, float]:
    """Return the values of the targets' measures."""
    return {one.name: value_of(one.name, measured) for one in targets}
