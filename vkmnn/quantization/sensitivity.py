"""The error that each node causes if it alone is quantised."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from vkmnn.quantization.accuracy import Reference, measure
from vkmnn.quantization.candidates import Candidate, Layer, Quantiser
from vkmnn.quantization.report import LayerError, Progress

SECONDS = 300.0
"""Time after which no further node is measured."""
SAMPLES = 16
"""Samples on which each node is measured, at most."""


def rank(
    quantiser: Quantiser,
    full: Candidate,
    reference: Reference,
    folder: Path,
    progress: Progress,
) -> list[LayerError]:
    """Return the error of each node, the most sensitive first, those without a measurement last.

    Args:
        quantiser: creates the models.
        full: the model with all nodes quantised.
        reference: the float model's outputs.
        folder: a folder for models.
        progress: called after each node. The measurements go from both ends of the network inwards
            while there is time: the first and the last nodes are usually the most sensitive.
    """
    layers = quantiser.layers(full)
    end = time.monotonic() + SECONDS
    errors: dict[str, LayerError] = {}
    for number, layer in enumerate(_inwards(layers), 1):
        rms = top1 = None
        if number == 1 or time.monotonic() < end:
            left = dict.fromkeys((name for name in full.quantized if name != layer.name), "")
            alone = quantiser.make(left, _silent)
            outputs = measure(alone.proto, reference, folder).outputs
            rms = max((one.rms for one in outputs if one.rms is not None), default=None)
            top1 = min((one.top1 for one in outputs if one.top1 is not None), default=None)
        errors[layer.name] = LayerError(layer.name, layer.op, layer.nbytes, rms, top1)
        progress("measuring nodes", number, len(layers))
    found = [errors[layer.name] for layer in layers]
    return sorted(found, key=lambda one: (one.rms is None, -(one.rms or 0.0)))


def _inwards(layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield the first node, the last, the second, and so on."""
    for number in range(len(layers)):
        yield layers[number // 2] if number % 2 == 0 else layers[-1 - number // 2]


def _silent(what: str, done: int, total: int) -> None:
    """Ignore the steps of a single node."""
