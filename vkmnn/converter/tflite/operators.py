"""All operators of TFLite that are read: importing this registers them."""

from __future__ import annotations

from vkmnn.converter.tflite import (
    control,
    convolution,
    detection,
    elementwise,
    indexing,
    movement,
    padding,
    quantized,
    recurrent,
    reduction,
    resizing,
    rnn,
    spectra,
    stablehlo,
    strided_slice,
    variables,
)
from vkmnn.converter.tflite.nodes import read_ops

__all__ = [
    "control",
    "convolution",
    "detection",
    "elementwise",
    "indexing",
    "movement",
    "padding",
    "quantized",
    "read_ops",
    "recurrent",
    "reduction",
    "resizing",
    "rnn",
    "spectra",
    "stablehlo",
    "strided_slice",
    "variables",
]
