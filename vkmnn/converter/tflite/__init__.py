"""TFLite's model files: each operator becomes nodes of ONNX, whose converter does the rest.

`docs/coming-from-tflite.md` describes what is supported. Quantised tensors are pairs of
DequantizeLinear and QuantizeLinear; operators that only move data move the quantised values. The
readers of operators are imported when a file is read.
"""

from __future__ import annotations

from vkmnn.converter.tflite.custom import reads_custom
from vkmnn.converter.tflite.front_end import TfliteFrontEnd

__all__ = ["TfliteFrontEnd", "reads_custom"]
