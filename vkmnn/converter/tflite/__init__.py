"""TFLite's model files: each operator becomes nodes of ONNX, whose converter does the rest.

`docs/coming-from-tflite.md` says what is read. Quantised tensors are pairs of DequantizeLinear and
QuantizeLinear; operators that only move values move the quantised ones.
"""

from __future__ import annotations

from vkmnn.converter.tflite import (  # noqa: F401 - they register operators
    control,
    convolution,
    detection,
    elementwise,
    indexing,
    movement,
    quantized,
    recurrent,
    reduction,
    resizing,
    spectra,
    stablehlo,
    strided_slice,
    variables,
)
from vkmnn.converter.tflite.front_end import TfliteFrontEnd
from vkmnn.converter.tflite.nodes import LiteOp, reads_custom

__all__ = ["LiteOp", "TfliteFrontEnd", "reads_custom"]
