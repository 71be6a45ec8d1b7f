"""Report of a quantisation: sizes, accuracy, sensitivity, and the parts left in float."""

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
    """Difference between the quantised and the float model in one output.

    Args:
        name: name of the output.
        largest: the largest absolute difference; infinity where shapes differ, or where one of
            the two is not finite.
        relative: the same as a fraction of the range of the float model's output.
        top1: the share of rows (all axes but the last that is longer than 1) whose largest value
            is at the same place; None for outputs without rows of floats.
        cosine: the mean cosine between both models' outputs; None where it is not defined.
        psnr: 20 log10(range / root mean square of the difference), in dB.
        rms: root mean square of the difference, divided by that of the float model's output.
    """

    name: str
    largest: float
    relative: float
    top1: float | None
    cosine: float | None = None
    psnr: float | None = None
    rms: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A quantised model compared with the float model.

    Attributes:
        outputs: one for each output.
        correct: the share of rows whose largest value is that of their label; None without labels.
        correct_before: the same of the float model.
    """

    outputs: tuple[OutputAccuracy, ...]
    correct: float | None = None
    correct_before: float | None = None


@dataclass(frozen=True, slots=True)
class LayerError:
    """Error of the outputs if a single node is quantised.

    Attributes:
        name: the node.
        op: its operator.
        nbytes: bytes of its weights in float.
        rms: root mean square of the difference, divided by that of the float model's output; None
            if there was no time to measure it.
        top1: the share of rows with the same largest value; None without rows.
    """

    name: str
    op: str
    nbytes: int
    rms: float | None
    top1: float | None


@dataclass(frozen=True, slots=True)
class Reached:
    """The outcome of accuracy targets.

    Attributes:
        targets: the targets, such as "top1>=99%", and the values that the model reaches.
        left: nodes that stay in float to meet them, the most sensitive first.
        held_out: samples on which they were measured, and which calibration did not see.
        full: the values if every node were quantised.
        full_bytes: bytes of the constants if every node were quantised.
        predicted_us: predicted time of a run of the "float" model, the fully quantised one ("full")
            and the "chosen" one; empty without a profile, or if it cannot be planned.
    """

    targets: Mapping[str, float]
    left: tuple[LayerError, ...]
    held_out: int
    full: Mapping[str, float]
    full_bytes: int
    predicted_us: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity of a language model on a text that calibration did not see.

    Attributes:
        name: "float", "int4" and so on, or the method.
        value: exp of the mean negative log-likelihood of the next token.
    """

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Quantized:
    """The result of `vkmnn.quantize`.

    Args:
        path: the written file, or the folder of a language model.
        files: this file and, with external data, the second one; the files of a folder.
        before: size of the float model's constants, by element type.
        after: the same for the quantised model.
        quantized: the nodes with quantised weights, or quantised weights and activations.
        in_float: the nodes that stayed in float, and why.
        accuracy: one for each output; empty without a comparison.
        samples: number of inputs on which the models were compared.
        made_up: True if these were random.
        advice: a better choice for this model, or what to expect; "" if there is none.
        correct: the share of labelled rows that the quantised model classifies correctly, and the
            float model; None without labels.
        sensitivity: the error of each node, the largest first; empty if it was not measured.
        reached: what the targets required; None without a target.
        perplexities: of a language model: the float model, and each method; the chosen one last.
        notes: what was assumed about the samples, and the option that changes it.
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
    correct: tuple[float, float] | None = None
    sensitivity: tuple[LayerError, ...] = ()
    reached: Reached | None = None
    perplexities: tuple[Perplexity, ...] = ()
    notes: tuple[str, ...] = ()
