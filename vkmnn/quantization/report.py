"""Report of a quantisation: sizes, accuracy, and the parts left in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from vkmnn.base.records import dataclass

Progress = Callable[[str, int, int], None]
"""Progress callback: current step, done, total."""


class Size(NamedTuple):
    """Number and bytes of the constants of one element type."""

    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class FloatNode:
    """A node with weights or arithmetic that still computes in float, and why."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """Difference of an output between the quantised and the float model.

    Args:
        name: name of the output.
        largest: the largest absolute difference; infinity where shapes differ, or where one of
            the two is not finite.
        relative: the same as a fraction of the range of the float model's output.
        top1: the share of rows (all axes but the last that is longer than 1) whose largest value
            is at the same place; None for outputs without rows of floats.
    """

    name: str
    largest: float
    relative: float
    top1: float | None


@dataclass(frozen=True, slots=True)
class Quantized:
    """The result of `vkmnn.quantize`.

    Args:
        path: the written file.
        files: this file and, with external data, the second one.
        before: size of the float model's constants, by element type.
        after: the same for the quantised model.
        quantized: the nodes with quantised weights, or quantised weights and activations.
        in_float: the nodes that stayed in float, and why.
        accuracy: one for each output; empty without a comparison.
        samples: number of inputs on which the models were compared.
        made_up: true if these were random.
        advice: a better choice of weights for this model; "" if there is none.
    """

    path: Path
    files: tuple[Path, ...]
    before: Mapping[str, Size]
    after: Mapping[str, Size]
    quantized: tuple[str, ...]
    in_float: tuple[FloatNode, ...]
    accuracy: tuple[OutputAccuracy, ...]
    samples: int
    made_up: bool
    advice: str = ""
